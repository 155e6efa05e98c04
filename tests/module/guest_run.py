# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A guest that runs pytest: which tests it runs, and what it says of them.

The chosen tests of a group run in one pytest in the guest. pytest-reportlog
writes a line of JSON for each phase of each test as it ends; the host reads the
lines through the guest agent, and replays them as reports of its own items.
"""

from __future__ import annotations

import base64
import contextlib
import json
import tarfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hallway_lab.emulator import FAST
from hallway_lab.sh import LabError
from hallway_lab.vm import VM, Job
from hallway_tests.guests import settle_in
from hallway_tests.pair import name_logs
from hallway_tests.suite import GuestLost

# Pure Python, of the host's own versions: reports are read by what wrote them.
LIBRARIES = (
    *("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments"),
    *("pytest_timeout", "pytest_reportlog"),
)
LEXERS = ("__init__", "_mapping", "diff", "python")
PLUGINS = ("pytest_timeout", "pytest_reportlog.plugin")
FOLDER = "module/guest"  # of the tests, below tests/ on the host and /tmp/tests in the guest
# Seconds that a test in the guest may take; on the debug kernel it ends this long before the next one.
LIMIT = 180
SILENCE = 2 * LIMIT  # seconds without a report after which the guest is given up
LOOK = 0.3  # seconds between two looks for reports


def lay_libraries(share: Path) -> None:
    """Put pytest into the folder that guests share."""
    with tarfile.open(share / "pytest.tar", "w") as tar:
        for name in LIBRARIES:
            spec = find_spec(name)
            assert spec and spec.origin, f"{name} is not installed"
            path = Path(spec.origin)
            whole = path.parent if path.name == "__init__.py" else path
            tar.add(whole, arcname=whole.name, filter=_needed)


def _needed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out the many languages that pygments knows."""
    path = Path(member.name)
    if "lexers" in path.parts[:-1] and path.name.split(".")[0] not in LEXERS and path.name != "__pycache__":
        return None
    return member


class Guest:
    """A guest, and the pytest that runs in it."""

    def __init__(self, vm: VM, slow: float) -> None:
        self.vm, self._slow = vm, slow
        self._job: Job | None = None
        self._handle = 0
        self._rest = ""
        self._reports: dict[str, list[dict[str, Any]]] = defaultdict(list)

    @property
    def running(self) -> bool:
        """Tell whether pytest has been started."""
        return self._job is not None

    def start(self, tests: Sequence[str]) -> None:
        """Start pytest with these tests, by their node ids."""
        self.vm.run("touch /tmp/report.jsonl")
        self._handle = self.vm.ask("guest-file-open", path="/tmp/report.jsonl", mode="r")
        self.vm.put("\n".join(tests) + "\n", "/tmp/chosen")
        plugins = " ".join(f"-p {name}" for name in PLUGINS)
        options = f"--timeout={SILENCE * self._slow - LIMIT} --report-log=/tmp/report.jsonl --tb=short -q"
        self._job = self.vm.spawn(
            "cd /tmp/tests && PYTHONPATH=/tmp/pytest"
            f" HALLWAY_TEST_SLOW={self._slow} python3 -B -m pytest -c /dev/null --rootdir=/tmp/tests"
            f" -p no:cacheprovider -p no:faulthandler -W ignore::pytest.PytestUnknownMarkWarning"
            f" {plugins} {options} @/tmp/chosen"
        )

    def reports(self, test: str) -> Iterator[dict[str, Any]]:
        """Yield the reports of a test as its phases end; raises GuestLost if they do not come."""
        deadline = time.monotonic() + SILENCE * self._slow
        replayed = 0
        while True:
            for report in self._reports[test][replayed:]:
                replayed += 1
                yield report
                if report["when"] == "teardown":
                    return
            try:
                ended = self._job.poll() if self._job else None
                self._read()
            except LabError as error:
                raise GuestLost(f"the guest was lost in this test: {error}\n{self.vm.verdict()}") from None
            if len(self._reports[test]) > replayed:
                continue
            if ended:
                said = f"{ended.out[-3000:]}{ended.err[-3000:]}"
                raise GuestLost(f"pytest in the guest ended without a report of this test:\n{said}")
            if time.monotonic() > deadline:
                raise GuestLost(f"no report of this test within {SILENCE * self._slow:.0f} s: {self._tail()}")
            time.sleep(LOOK)

    def _tail(self) -> str:
        lines = self.vm.log.read_text(errors="replace").splitlines()[-30:]
        return "\n".join([f"{self.vm.verdict()}", *lines])

    def _read(self) -> None:
        """Read the lines that have come."""
        while True:
            got = self.vm.ask("guest-file-read", handle=self._handle, count=1 << 16)
            self._rest += base64.b64decode(got.get("buf-b64", "")).decode(errors="replace")
            if not got["count"]:
                break
        *lines, self._rest = self._rest.split("\n")
        for line in lines:
            said = json.loads(line)
            if said.get("$report_type") == "TestReport":
                self._reports[said["nodeid"]].append(said)

    def healthy(self) -> None:
        """Raise GuestLost if the guest's kernel complained; its log tells, the guest is not disturbed."""
        health = self.vm.verdict()
        if not health.ok:
            raise GuestLost(f"{self.vm.name}'s kernel complained ({self.vm.log}): {health}")


@contextlib.contextmanager
def booted(kernel: str, share: Path, logs: Path, slow: float) -> Iterator[Guest]:
    """Boot a guest with the tests and pytest on its disk, for the length of the block."""
    lay_libraries(share)
    vm = VM(
        number=1,
        kernel=kernel,
        qemu=FAST,
        share=share,
        cpus=2,
        network=False,
        boot_timeout=120 * slow,
        kmemleak=True,
    )
    name_logs(vm, logs)
    with vm:
        settle_in(vm)
        vm.run("mkdir -p /tmp/tests/module /tmp/pytest && cp -r /hallway/tests /tmp/tests/module/guest")
        vm.run(
            "tar -x -f /hallway/pytest.tar -C /tmp/pytest; ip link set lo up",
            timeout=60 * slow,
        )
        yield Guest(vm, slow)
