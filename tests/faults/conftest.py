# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The guests of the faults, and how often each fault happens."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hallway_tests.pair
import pytest
from hallway_lab.vm import VM
from hallway_tests import guests, two_hosts
from hallway_tests import outsourced as outsourcers
from hallway_tests.outsourced import Outsourced
from hallway_tests.pair import Pair
from hallway_tests.record import Outcome
from hallway_tests.two_hosts import Hosts

from . import domain
from .domain import Domains

SLOW = 3  # how much longer things may take under the load of a VM that migrates
LIMIT = 3 * 3600  # seconds for one fault, with all its rounds
Site = Callable[[Callable[[Path], AbstractContextManager[Any]]], Any]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the number of rounds."""
    parser.addoption("--rounds", type=int, help="how often each fault happens (default: its own number)")


def pytest_configure(config: pytest.Config) -> None:
    """Name the marks of faults."""
    for line in (
        "fault(what, rounds=20): what is done, for the table of results, and how often",
        "machine(reboots=): what is special about the VM that has an outsourcer",
        "region(slots=, region_mib=): what is special about the region of the pair of VMs",
    ):
        config.addinivalue_line("markers", line)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give faults their time."""
    for item in items:
        if item.get_closest_marker("fault"):
            item.add_marker("slow")
            item.add_marker(pytest.mark.timeout(LIMIT))


@pytest.fixture
def outcome(outcome: Outcome, request: pytest.FixtureRequest) -> Outcome:
    """Return where a fault puts what it measured."""
    outcome.figures["what is done"] = request.node.get_closest_marker("fault").args[0]
    return outcome


@pytest.fixture
def rounds(outcome: Outcome, request: pytest.FixtureRequest) -> Iterator[int]:
    """Return the rounds of a fault, to iterate over; one that fails is not counted."""
    mark = request.node.get_closest_marker("fault")
    return outcome.rounds(request.config.option.rounds or mark.kwargs.get("rounds", 20))


@dataclass
class Unshared:
    """Guests that no other test gets after one that failed: they may be in any state."""

    stage: Any
    vms: Callable[[], tuple[VM, ...]]

    def healthy(self) -> None:
        """Fail if a guest is gone or its kernel complained."""
        guests.healthy(*self.vms())


@pytest.fixture
def pair(request: pytest.FixtureRequest, site: Site, kernel: str, share: Path) -> Pair:
    """Return two VMs with one region."""
    mark = request.node.get_closest_marker("region")

    @contextlib.contextmanager
    def boot(logs: Path) -> Iterator[Unshared]:
        region = mark.kwargs if mark else {}
        with hallway_tests.pair.booted(kernel, share, logs, 1, **region) as two:
            yield Unshared(two, lambda: tuple(two.site.vms))

    return site(boot).stage


@pytest.fixture
def outsourcing(request: pytest.FixtureRequest, site: Site, kernel: str, share: Path) -> Outsourced:
    """Return a VM with an outsourcer."""
    mark = request.node.get_closest_marker("machine")

    @contextlib.contextmanager
    def boot(logs: Path) -> Iterator[Unshared]:
        with outsourcers.booted(kernel, share, logs, 1, **(mark.kwargs if mark else {})) as one:
            yield Unshared(one, lambda: (one.vm,))

    return site(boot).stage


@pytest.fixture
def hosts(site: Site, kernel: str, share: Path) -> Hosts:
    """Return two VMs on the first of two hosts, with servers in both."""

    @contextlib.contextmanager
    def boot(logs: Path) -> Iterator[Unshared]:
        with two_hosts.booted(kernel, share, logs, SLOW) as two:
            for vm in two.both:
                vm.run("redis-server --daemonize yes --save '' --protected-mode no --bind 0.0.0.0")
                vm.run("iperf3 -s -D")
            yield Unshared(two, lambda: two.both)

    return site(boot).stage


@pytest.fixture
def domains(site: Site, kernel: str, share: Path) -> Domains:
    """Return a VM of libvirt's, and one that stays."""

    @contextlib.contextmanager
    def boot(logs: Path) -> Iterator[Unshared]:
        with domain.booted(kernel, share, logs) as two:
            yield Unshared(two, lambda: (two.moves, two.stays))

    return site(boot).stage
