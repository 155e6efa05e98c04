# SPDX-License-Identifier: Apache-2.0 OR MIT
"""More connections than a region has memory for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hallway_tests.crowd import crowd
from hallway_tests.guests import Delta, Stream, connections, counters
from hallway_tests.pair import Pair
from hallway_tests.record import Outcome
from hallway_tests.streams import CALM
from hallway_tests.suite import check, wait_for

from .bystander import BYSTANDERS, bystander

pytestmark = [pytest.mark.record("faults"), pytest.mark.kernel("6.1")]

REGION_MIB = 16  # a slice has room for 180 rings of the smallest size
CONNECTIONS = 250
AT_LEAST = 10  # of them on rings: the bystander has some, too
CROWD_MIB, IDLE, BUSY = 64, 5000, 50


@pytest.mark.fault(f"{CONNECTIONS} connections, ring memory for 180 at most")
@pytest.mark.xdist_group("faults-small-region")
@pytest.mark.region(region_mib=REGION_MIB)
def test_memory_exhausted(pair: Pair, outcome: Outcome, rounds: Iterator[int]) -> None:
    """Some connections get no ring and work without; all memory is free again after each round."""
    a, b = pair.both
    with bystander(pair, outcome, ring_bytes=256 << 10):
        alone = "the daemon sees only the bystander's channels"
        wait_for(lambda: pair.member(a)["channels"] == BYSTANDERS, alone)
        for number in rounds:
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
            wait_for(lambda: pair.member(a)["channels"] == BYSTANDERS, alone)


@pytest.mark.fault(f"{IDLE:,} connections idle, {BUSY} are busy, in a region of {CROWD_MIB} MiB", rounds=1)
@pytest.mark.xdist_group("faults-crowd")
@pytest.mark.region(region_mib=CROWD_MIB)
def test_idle_crowd(pair: Pair, outcome: Outcome, rounds: Iterator[int]) -> None:
    """Far more connections than there are rings for had one and are idle; a few others need theirs."""
    for _ in rounds:
        crowd(pair, IDLE, BUSY)
        outcome.add_ring_bytes(sum(counters(vm)["tx_bytes_ring"] for vm in pair.both))
