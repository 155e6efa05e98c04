# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What `tests/run` tells of failures and of guests that are lost; and that nothing outlives it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from hallway_tests.suite import wait_for

from .test_interrupt import carrying

pytestmark = pytest.mark.xdist_group("harness")  # the samples share folders for their logs
WORKERS = [pytest.param("0", marks=pytest.mark.slow), "2"]

RUN = Path(__file__).resolve().parents[1] / "run"
Sample = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def sample(tmp_path: Path) -> Sample:
    """Return a function that runs a file of samples, with words for pytest."""

    def run(name: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [RUN, f"lab/samples/{name}.py", "-o", f"cache_dir={tmp_path}", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())

    return run


def _environment(**more: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return {**own, "COLUMNS": "200", **more}


def test_failure(sample: Sample) -> None:
    """A failure tells file, line, values, and the command that repeats it alone, which does."""
    failed = sample("failing")
    assert failed.returncode == 1
    assert "lab/samples/failing.py:13: in test_fails" in failed.stdout
    assert "{'came': 3} != {'came': 4}" in failed.stdout
    repeat = re.search(r"^tests/run (\S+) --seed (\d+)$", failed.stdout, re.M)
    assert repeat, failed.stdout
    assert repeat[1] == "lab/samples/failing.py::test_fails"
    again = sample("failing", "--seed", repeat[2])
    numbers = [re.search(r"^the number is (\d+)$", one.stdout, re.M)[1] for one in (failed, again)]
    assert numbers[0] == numbers[1]


def test_nothing_chosen(sample: Sample) -> None:
    """A selection without a test is an error."""
    assert sample("failing", "-k", "nothing").returncode == 5


@pytest.mark.parametrize("workers", WORKERS)
def test_not_run(sample: Sample, workers: str) -> None:
    """Tests whose guests do not boot are counted, with the reason in the last lines."""
    done = sample("sites", "-k", "not_run", "-n", workers)
    assert done.returncode == 1
    said = "\n".join(done.stdout.splitlines()[-3:])
    assert "NOT RUN: 3 tests of sample-broken: LabError: Could not get lock /some/where" in said, done.stdout
    assert "3 not run" in said, done.stdout


def test_not_prepared(sample: Sample) -> None:
    """Where something that tests need cannot be made, the last line counts the tests."""
    done = sample("needy")
    assert done.returncode == 1
    reason, count = done.stderr.splitlines()[-2:]
    assert "test_nothing:prepare" in reason, done.stderr
    assert count.startswith("NOT RUN: 3 tests"), done.stderr


@pytest.mark.parametrize("workers", WORKERS)
def test_guest_lost(sample: Sample, workers: str) -> None:
    """The test that lost its guests fails, and the next one gets others."""
    done = sample("sites", "-k", "loses or goes_on", "-n", workers)
    assert "1 failed, 1 passed" in done.stdout.splitlines()[-1], done.stdout
    assert "GuestLost: vm1's kernel complained: BUG: sample" in done.stdout
    assert re.search(r"^\S+/out/tests/logs/sample-lost$", done.stdout, re.M), done.stdout


@pytest.mark.kernel("6.1")
def test_guest_panics(sample: Sample, kernel: str) -> None:
    """A guest that panics fails its test with the end of its log, and is replaced."""
    done = sample("panic", "--kernel", kernel)
    assert "1 failed, 1 passed" in done.stdout.splitlines()[-1], done.stdout
    assert "sysrq: Trigger a crash" in done.stdout, done.stdout
    assert f"/out/tests/logs/sample-panic-{kernel}" in done.stdout, done.stdout


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL],
    ids=lambda one: one.name,
)
def test_ends(tmp_path: Path, number: signal.Signals, workers: str) -> None:
    """However a run is ended, no process of it is left."""
    mark, ready = str(uuid.uuid4()), tmp_path / "ready"
    command = [RUN, "lab/samples/waiting.py", "-o", f"cache_dir={tmp_path / 'cache'}", "-n", workers]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
        env=_environment(SAMPLE_READY=str(ready), SAMPLE_MARK=mark),
    ) as process:
        wait_for(ready.exists, "the sample runs", 60)
        process.send_signal(number)
        said = process.communicate(timeout=40)[0]
        wanted = -number if number == signal.SIGKILL else 128 + number
        assert process.returncode == wanted, said
        wait_for(lambda: not carrying(f"SAMPLE_MARK={mark}"), "the end of its processes", 5)
