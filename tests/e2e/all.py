"""All end-to-end tests, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hallway_tests import pair as pair_of_vms
from hallway_tests import two_hosts
from hallway_tests.guests import no_leaks
from hallway_tests.pair import Pair
from hallway_tests.suite import Report

from . import (
    budget,
    configured,
    errors,
    hostile,
    kernel_users,
    leaving,
    life,
    migrate,
    peers,
    programs,
    streams,
)

ON_PAIR = (
    *streams.TESTS,
    *budget.TESTS,
    *life.TESTS,
    *leaving.TESTS,
    *kernel_users.TESTS,
    *programs.TESTS,
    *peers.TESTS,
    *hostile.TESTS,
    errors.host,
    errors.region_full,
)
NOT_ON = {
    # What is hardly a matter of the kernel: other people's programs, what the daemon does by its
    # configuration, migration, which is a matter of QEMU, and of the transport, and what the rings' own
    # code makes of memory that is not as it should be.
    "6.12": (*programs.TESTS, *migrate.TESTS, *configured.TESTS, *hostile.TESTS),
    # It has no traffic control, no NFS and no kexec, takes every module, and is slow.
    "debug": (
        *(peers.nat, errors.locked_down, kernel_users.nfs, configured.config_kexec),
        *(*programs.TESTS, *migrate.TESTS),
    ),
}


def run(report: Report, kernel: str, share: Path, logs: Path, slow: float, seed: int) -> None:
    """Run them; a guest that is lost is replaced, and the next test goes on."""
    if _wanted(report, kernel, (*ON_PAIR, *errors.TESTS, *configured.TESTS)):
        _on_pair(report, kernel, share, logs, slow, seed)
    moves = _wanted(report, kernel, migrate.TESTS)
    if moves:
        with two_hosts.booted(kernel, share, logs / "migration", slow) as stage:
            for test in moves:
                report.run(test.__name__, lambda: test(stage))  # noqa: B023


def _on_pair(report: Report, kernel: str, share: Path, logs: Path, slow: float, seed: int) -> None:
    with pair_of_vms.booted(kernel, share, logs, slow, seed) as pair:
        for test in _wanted(report, kernel, ON_PAIR):
            _one(report, pair, test, pair)
        rest = _wanted(report, kernel, errors.TESTS)
        if rest:
            with errors.booted(pair) as guest:
                for test in rest:
                    _one(report, pair, test, guest)
        rest = _wanted(report, kernel, configured.TESTS)
        if rest:
            with configured.booted(pair) as company:
                for test in rest:
                    _one(report, pair, test, company)
        if kernel == "debug":
            report.run("no_leaks", lambda: _no_leaks(pair))


def _wanted(report: Report, kernel: str, tests: tuple[Callable[..., None], ...]) -> list[Callable[..., None]]:
    return [test for test in tests if report.wanted(test.__name__) and test not in NOT_ON.get(kernel, ())]


def _no_leaks(pair: Pair) -> None:
    pair.unload()
    no_leaks(*pair.both)


def _one(report: Report, pair: Pair, test: Callable[..., None], given: object) -> None:
    def judged() -> None:
        try:
            test(given)
        except Exception:
            pair.sweep()
            raise
        finally:
            pair.healthy()

    report.run(test.__name__, judged)
