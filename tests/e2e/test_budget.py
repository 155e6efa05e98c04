# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Ring memory is a budget: large rings for streams in bulk, and little memory for many connections."""

from __future__ import annotations

import pytest
from hallway_tests.crowd import crowd
from hallway_tests.guests import Delta, Stream, autopsy
from hallway_tests.pair import Pair, most_by_rings
from hallway_tests.suite import wait_for

pytestmark = pytest.mark.xdist_group("e2e-streams")

RING = 16384 + 4096  # bytes that the smallest ring takes of a slice
MUCH = 32 << 20  # bytes: several laps of a ring that grew


@pytest.mark.xen
@pytest.mark.slow_on("6.1")
def test_budget_crowd(pair: Pair) -> None:
    """500 idle connections and 10 busy ones, with memory for 100 small rings (125 and 25, debug kernel)."""
    crowd(pair, int(500 / pair.slow), 10, memory_bytes=int(100 / pair.slow) * RING)


@pytest.mark.slow_on("6.1")
def test_budget_grows(pair: Pair) -> None:
    """Streams in bulk get larger rings, and go on by them, with the default parameters."""
    pair.load()
    delta = Delta(*pair.both)
    stream = Stream(pair.b, pair.a, conns=6, both="--no-pauses --stall 60")
    patience = 60 * pair.slow
    with autopsy(*pair.both):
        wait_for(lambda: all(delta.of(vm)["rings_grown"] >= 4 for vm in pair.both), "rings grow", patience)
        grown = Delta(*pair.both)
        wait_for(
            lambda: all(grown.of(vm)["tx_bytes_ring"] > MUCH for vm in pair.both), "bytes flow", patience
        )
        wait_for(
            lambda: all(most_by_rings(delta.of(vm)) for vm in pair.both), "rings carry most bytes", patience
        )
    stream.stop()
    stream.finish(patience)
    pair.check_counters(delta)
    pair.check_through_rings(delta, 0)
