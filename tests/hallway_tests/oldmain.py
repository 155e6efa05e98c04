"""`tests/run`: which tests there are, and in which order they run.

A suite on a kernel is a process of its own, because it lives in namespaces of
its own; the process that a person starts runs them and adds up.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import time
from collections import deque

from hallway_lab import isolate, paths
from hallway_lab.prepare import guest_steps, run_steps
from hallway_lab.sh import guarded

from . import guests
from .suite import GuestLost, Report

REPO = guests.REPO
KERNELS = ("6.1", "6.12")
SUMMARY = re.compile(r"^(?:\S+: )?(\d+) passed, (\d+) failed$")
FAILURE = re.compile(r"\bFAIL(?:ED)?\b")
KEPT_LINES, KEPT_COLUMNS = 8, 160  # of what each failure says, for the end


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    options = _parse()
    return guarded("tests", lambda: _enter(options))


def _enter(options: argparse.Namespace) -> int:
    isolate.enter()
    return _suite(options) if options.what == "guests" else _run(options)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/run", description="Hallway's tests.")
    names = ("all", "module")
    parser.add_argument("what", choices=(*names, "debug", "guests"), nargs="?", default="all")
    parser.add_argument("--kernel", choices=[*KERNELS, "debug"], help="only on this kernel")
    parser.add_argument("--only", default="", help="only tests whose names contain this")
    parser.add_argument("--seed", type=int, default=None, help="repeat a run's random choices")
    parser.add_argument("--suite", help=argparse.SUPPRESS)
    return parser.parse_args()


# -- one suite on one kernel ---------------------------------------------------


def _suite(options: argparse.Namespace) -> int:
    kernel, name = options.kernel or KERNELS[0], options.suite
    seed = options.seed if options.seed is not None else random.getrandbits(32)
    run_steps(guest_steps(kernel))
    share = guests.share(kernel)
    isolate.cut_off()
    random.seed(seed)
    report = Report(f"{name} {kernel}", only=options.only)
    print(f"{report.label}: seed {seed}", flush=True)
    logs = paths.out("tests", f"{name}-{kernel}", "x").parent
    slow = guests.SLOWER if kernel == "debug" else 1
    try:
        from module import host

        host.run(report, kernel, share, logs, slow)
    except GuestLost:
        print(f"{report.label}: the guests are of no more use: stopped here", flush=True)
    print(f"{report.label}: {report.summary()}", flush=True)
    return 1 if report.failed or not report.passed else 0


# -- all suites ----------------------------------------------------------------


class Total:
    """The sum over all that ran, and what a reader of the last lines alone must know of it."""

    def __init__(self) -> None:
        self.passed = self.failed = 0
        self.failures: list[str] = []

    def add(self, report: Report) -> None:
        """Count the tests of a suite that ran in this process."""
        self.passed += report.passed
        self.failed += len(report.failed)
        self.failures += [f"{report.label}: {name}" for name in report.failed]

    def run(self, label: str, *words: object) -> None:
        """Run a command, pass its lines on, and count it or what it counted."""
        self.finish(label, begin(*words))

    def finish(self, label: str, process: subprocess.Popen[str]) -> None:
        """The same for a command that has begun; its lines come now."""
        since = time.monotonic()
        assert process.stdout is not None
        counted = None
        last: deque[str] = deque(maxlen=KEPT_LINES)
        failures: list[str] = []
        room = 0
        for line in process.stdout:
            print(line, end="", flush=True)
            counted = SUMMARY.match(line.removeprefix(f"{label}: ").rstrip()) or counted
            last.append(line.rstrip())
            begins = FAILURE.search(line) is not None
            room = KEPT_LINES if begins else room - 1 if line.startswith("    ") else 0
            if room > 0:
                failures.append(last[-1])
        code = process.wait()
        passed, failed = (int(n) for n in counted.groups()) if counted else (0, 0)
        if not counted:
            passed, failed = (1, 0) if code == 0 else (0, 1)
        elif code and not failed:
            failed = 1
        self.passed += passed
        self.failed += failed
        if code:
            self.failures += [f"{label}:", *(line[:KEPT_COLUMNS] for line in failures or last)]
        print(
            f"tests: {label}: {'passed' if code == 0 else 'FAILED'} in {time.monotonic() - since:.0f} s",
            flush=True,
        )


def begin(*words: object) -> subprocess.Popen[str]:
    """Start a command of which Total.finish() will tell."""
    command = [str(word) for word in words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPO, text=True, errors="replace")


def _aside(*words: object) -> subprocess.Popen[str]:
    """Start a command that leaves the CPUs to all others."""
    return begin("nice", "-n", "19", *words)


def _in_guests(options: argparse.Namespace, suite: str, kernel: str) -> list[object]:
    """Return the command that runs a suite on a kernel."""
    command = [sys.executable, REPO / "tests/old", "guests", "--suite", suite, "--kernel", kernel]
    command += ["--only", options.only] if options.only else []
    command += ["--seed", options.seed] if options.seed is not None else []
    return command


def _run(options: argparse.Namespace) -> int:
    since = time.monotonic()
    total = Total()
    what = options.what
    kernels = [options.kernel] if options.kernel else ["debug"] if what == "debug" else list(KERNELS)
    if what in ("all", "debug", "module"):
        # Each is one guest, which waits for most of the time.
        begun = [(kernel, begin(*_in_guests(options, "module", kernel))) for kernel in kernels]
        for kernel, process in begun:
            total.finish(f"module {kernel}", process)
    print(f"tests: all done in {time.monotonic() - since:.0f} s")
    for line in total.failures:
        print(f"tests: failed: {line}")
    print(f"{total.passed} passed, {total.failed} failed", flush=True)
    return 1 if total.failed or not total.passed else 0
