"""More connections than a region has rings for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from e2e.peers import seen_by_daemon
from e2e.streams import CALM
from hallway_tests.guests import Delta, Stream, connections
from hallway_tests.suite import check, wait_for

from .scenario import Outcome, Scenario, Setting
from .stage import Stage, pair

REGION_MIB = 16  # a slice has room for 15 rings of 256 KiB
CONNECTIONS = 60
AT_LEAST = 10  # of them on rings: the bystander has some, too


@contextlib.contextmanager
def small(setting: Setting) -> Iterator[Stage]:
    """Boot the two VMs, with a small region."""
    with pair(setting, region_mib=REGION_MIB) as stage:
        yield stage


def exhausted(stage: Stage, outcome: Outcome) -> None:
    """Some connections get no ring, and are none the worse; all memory comes back, each time."""
    a, b = stage.pair.both
    with stage.bystander(outcome, ring_bytes=256 << 10):
        before = seen_by_daemon(stage.pair, a)["channels"]
        for number in outcome.rounds():
            delta = Delta(a, b)
            stream = Stream(b, a, conns=CONNECTIONS, both=f"{CALM} --stall 60")
            wait_for(
                lambda: any(c["reason_name"] == "NO_MEMORY" for c in connections(a)),
                "memory runs out",
            )
            stream.stop()
            stream.finish()
            moved = delta.of(a)
            check(moved["tx_promoted"] >= AT_LEAST, f"round {number}: {moved['tx_promoted']} on rings")
            check(not moved["resets"], f"round {number}: {moved['resets']} were reset")
            wait_for(
                lambda: seen_by_daemon(stage.pair, a)["channels"] == before, f"{before} channels are left"
            )


SCENARIOS = (
    Scenario("memory-exhausted", f"{CONNECTIONS} connections, ring memory for 15", 20, small, exhausted),
)
