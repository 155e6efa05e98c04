"""More connections than a region has rings for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from hallway_tests.crowd import crowd
from hallway_tests.guests import Delta, Stream, connections, counters
from hallway_tests.streams import CALM
from hallway_tests.suite import check, wait_for

from .scenario import Outcome, Scenario, Setting
from .stage import BYSTANDERS, Stage, pair

REGION_MIB = 16  # a slice has room for 180 rings, if all are of the smallest size
CONNECTIONS = 250
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
        alone = "the daemon sees the bystander's channels alone"
        wait_for(lambda: stage.pair.member(a)["channels"] == BYSTANDERS, alone)
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
            wait_for(lambda: stage.pair.member(a)["channels"] == BYSTANDERS, alone)


CROWD_MIB, IDLE, BUSY = 64, 5000, 50


@contextlib.contextmanager
def crowded(setting: Setting) -> Iterator[Stage]:
    """Boot the two VMs, with a region for a crowd."""
    with pair(setting, region_mib=CROWD_MIB) as stage:
        yield stage


def idle_crowd(stage: Stage, outcome: Outcome) -> None:
    """Far more connections than there are rings for have had one, and a few need theirs."""
    for _ in outcome.rounds():
        crowd(stage.pair, IDLE, BUSY)
        outcome.ring_bytes += sum(counters(vm)["tx_bytes_ring"] for vm in stage.pair.both)


SCENARIOS = (
    Scenario(
        "memory-exhausted", f"{CONNECTIONS} connections, ring memory for 180 at most", 20, small, exhausted
    ),
    Scenario(
        "idle-crowd",
        f"{IDLE:,} connections idle, {BUSY} are busy, in a region of {CROWD_MIB} MiB",
        1,
        crowded,
        idle_crowd,
    ),
)
