# SPDX-License-Identifier: Apache-2.0 OR MIT
"""However a run of the lab ends, nothing of it is left: no process, no network."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

from hallway_tests.suite import wait_for

SUBJECT = Path(__file__).with_name("subject.py")
MARK = "HALLWAY_TEST_SUBJECT"


class Subject:
    """A run of the lab in a process group of its own."""

    def __init__(self, place: str, cache: str) -> None:
        self._mark = f"{MARK}={uuid.uuid4()}"
        name, _, value = self._mark.partition("=")
        self.process = subprocess.Popen(
            [sys.executable, SUBJECT, place],
            env={**os.environ, name: value, "HALLWAY_CACHE": cache},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        assert self.process.stdout is not None
        ready, *own = self.process.stdout.readline().split() or [""]
        assert ready == "ready", f"the subject did not begin: {ready}"
        self._network = own[0] if own else None

    def wait_children(self) -> None:
        """Wait until it has started all that it is to leave behind."""
        wait_for(lambda: len(self._processes()) >= 6, f"the subject's processes: {self._processes()}")

    def gone(self, code: int) -> str:
        """Check the exit code, and that nothing is left; return what it said."""
        said = "".join(self.process.communicate(timeout=30))
        assert self.process.returncode == code, f"exit code {self.process.returncode}, not {code}: {said}"
        wait_for(lambda: not self._processes(), f"the end of {self._processes()}", 5)
        wait_for(lambda: self._network not in _networks(), "the end of the private network", 5)
        return said

    def _processes(self) -> list[str]:
        return carrying(self._mark)


def carrying(mark: str) -> list[str]:
    """Return the commands of the processes with these words in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def _networks() -> set[str]:
    found = set()
    for link in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(os.readlink(link))
        except OSError:
            continue
    return found


def _scratch(cache: str) -> list[str]:
    return [path.name for path in Path(cache, "tmp").iterdir()]


def _ended(place: str, code: int, end: Callable[[Subject], None], cache: str = "") -> str:
    if not cache:
        with tempfile.TemporaryDirectory() as own:
            said = _ended(place, code, end, own)
            assert not _scratch(own), f"temporary files are left: {_scratch(own)}"
            return said
    subject = Subject(place, cache)
    try:
        end(subject)
        return subject.gone(code)
    finally:
        subject.process.kill()


def _sender(number: int) -> Callable[[Subject], None]:
    def end(subject: Subject) -> None:
        subject.wait_children()
        subject.process.send_signal(number)

    return end


def _to_group(subject: Subject) -> None:
    os.killpg(subject.process.pid, signal.SIGINT)


def _as_a_terminal(subject: Subject) -> None:
    subject.wait_children()
    _to_group(subject)


def _again_while_it_cleans_up(subject: Subject) -> None:
    _as_a_terminal(subject)
    assert subject.process.stdout is not None
    assert subject.process.stdout.readline() == "cleaning\n", "it does not clean up"
    for _ in range(5):
        _to_group(subject)


def _nothing(_subject: Subject) -> None:
    pass


def test_signals() -> None:
    """A signal to the outer process alone ends all, while it prepares and while it runs VMs."""
    for place in ("preparing", "running"):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            said = _ended(place, 128 + number, _sender(number))
            assert "Traceback" not in said, said


def test_killed() -> None:
    """SIGKILL, which nobody can forward, ends all too."""
    with tempfile.TemporaryDirectory() as cache:
        for place in ("preparing", "running"):
            _ended(place, -signal.SIGKILL, _sender(signal.SIGKILL), cache)
        _ended("failing", 1, _nothing, cache)
        assert not _scratch(cache), f"a later run left its predecessors' {_scratch(cache)}"


def test_repeated() -> None:
    """Ctrl-C reaches every process, and an impatient person presses it again."""
    said = _ended("running", 130, _as_a_terminal)
    assert "Traceback" not in said and "interrupted" in said, said
    said = _ended("cleaning", 130, _again_while_it_cleans_up)
    assert "Traceback" not in said and "interrupted" in said, said
    assert "clean\n" in said, f"the second signal broke into the clean-up: {said}"


def test_failures() -> None:
    """A command that fails, or a bug in the lab itself."""
    assert "exit code 1" in _ended("failing", 1, _nothing), "the failure is not reported"
    assert "ZeroDivisionError" in _ended("broken", 1, _nothing), "the bug is not reported"


def test_stuck() -> None:
    """A run that does not come to an end is killed."""
    _ended("stuck", 128 + signal.SIGKILL, _sender(signal.SIGTERM))
