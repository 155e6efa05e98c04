"""All end-to-end tests, in the order in which they run."""

from __future__ import annotations

from pathlib import Path

from hallway_tests.guests import no_leaks
from hallway_tests.suite import Report

from . import kernel_users, lab, life, streams


def run(report: Report, kernel: str, share: Path, logs: Path, slow: float, seed: int) -> None:
    """Run them; a guest that is lost is replaced, and the next test goes on."""
    with lab.booted(report, kernel, share, logs, slow, seed) as pair:
        for test in (*streams.TESTS, *life.TESTS, *kernel_users.TESTS):
            _one(report, pair, test)
        if kernel == "debug":
            report.run("no_leaks", lambda: _no_leaks(pair))


def _no_leaks(pair: lab.Pair) -> None:
    pair.unload()
    no_leaks(*pair.both)


def _one(report: Report, pair: lab.Pair, test: object) -> None:
    name = test.__name__
    if not report.wanted(name):
        return

    def judged() -> None:
        try:
            test(pair)
        finally:
            pair.healthy()

    report.run(name, judged)
