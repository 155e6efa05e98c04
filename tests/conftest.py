# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What every suite has: options, kernels, and the fixtures that they imply."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

pytest.register_assert_rewrite("hallway_tests")
from hallway_lab.kernels import DEBUG  # noqa: E402
from hallway_tests import domains  # noqa: E402
from hallway_tests.guests import SLOWER, share_folder, slowness  # noqa: E402
from hallway_tests.site import kernel_of  # noqa: E402

pytest_plugins = ("hallway_tests.site", "hallway_tests.plan", "hallway_tests.tell", "hallway_tests.record")

KERNELS = ("6.1", "6.12")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this suite."""
    group = parser.getgroup("hallway", "Hallway's guests")
    group.addoption(
        "--kernel",
        action="append",
        choices=[*KERNELS, *DEBUG],
        help=f"run on this kernel (repeatable; default: {' and '.join(KERNELS)})",
    )
    group.addoption(
        "--xen", choices=["pv", "pvh"], help="run tests marked `xen` between domains of Xen, of this kind"
    )
    group.addoption("--seed", type=int, help="repeat the random choices of the run with this seed")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the seed, and end in order when a signal comes."""
    if config.option.seed is None:
        config.option.seed = random.getrandbits(32)
    if not hasattr(config, "workerinput"):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _end)


def _end(number: int, _frame: object) -> None:
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    pytest.exit(f"ended by {signal.Signals(number).name}", returncode=128 + number)


def pytest_report_header(config: pytest.Config) -> str:
    """Say what repeats the run's random choices."""
    return f"kernels: {', '.join(kernels(config))}; seed: {config.option.seed}"


def kernels(config: pytest.Config) -> tuple[str, ...]:
    """Return the kernels that the command line asks for."""
    return tuple(dict.fromkeys(config.option.kernel or KERNELS))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what boots guests once on each kernel."""
    if "kernel" not in metafunc.fixturenames:
        return
    only = {name for mark in metafunc.definition.iter_markers("kernel") for name in mark.args}
    names = [name for name in kernels(metafunc.config) if not only or name in only]
    metafunc.parametrize("kernel", names, indirect=True, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out, skip and mark what differs by kernel; give tests on the debug kernel more time."""
    on_xen = config.option.xen
    left_out = [
        item
        for item in items
        if kernel_of(item) not in ("", *kernels(config)) or (on_xen and not item.get_closest_marker("xen"))
    ]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    for item in items:
        for mark in item.iter_markers("not_on"):
            name, reason = mark.args
            if kernel_of(item) == name or (name == "debug" and kernel_of(item) in DEBUG):
                item.add_marker(pytest.mark.skip(f"not on {name}: {reason}"))
        # Between domains, no other kernel has the test.
        if not on_xen and any(kernel_of(item) in mark.args for mark in item.iter_markers("slow_on")):
            item.add_marker("slow")
        if on_xen:
            domains.move_onto_xen(item, float(config.getini("timeout")))
        if kernel_of(item) in DEBUG:
            mark = item.get_closest_marker("timeout")
            limit = mark.args[0] if mark else float(config.getini("timeout"))
            item.add_marker(pytest.mark.timeout(limit * SLOWER), append=False)


@pytest.fixture(scope="session")
def kernel(request: pytest.FixtureRequest) -> str:
    """Return the name of the guests' kernel: "6.1", "6.12" or a debug kernel."""
    return request.param


@pytest.fixture(scope="session")
def slow(kernel: str) -> float:
    """Return how much longer things may take on this kernel."""
    return slowness(kernel)


@pytest.fixture(scope="session")
def share(kernel: str) -> Path:
    """Return the folder that guests of this kernel see as /hallway."""
    return share_folder(kernel)


@pytest.fixture(autouse=True)
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Return this test's source of random choices, which --seed repeats; module random starts alike."""
    seed = f"{request.config.option.seed} {request.node.nodeid}"
    random.seed(seed)
    return random.Random(seed)
