"""Doorbells that come too often."""

from __future__ import annotations

import pytest
from hallway_tests.guests import AT_ONCE, Delta
from hallway_tests.pair import Pair
from hallway_tests.suite import wait_for

pytestmark = pytest.mark.xdist_group("e2e-streams")

TRIPS = 300  # round trips
JIFFY = 4000  # us; in each the interrupt is masked at most once


def test_doorbell_storm(pair: Pair) -> None:
    """The interrupt is masked because it came too often: doorbells are answered within a part of a jiffy."""
    pair.load(**AT_ONCE, spin_us=0, storm=1)
    a, b = pair.both
    delta = Delta(a, b)
    hearer = b.spawn("python3 -B /hallway/guest/fault.py hear 4903")
    wait_for(lambda: b.run("ss -Hltn sport = :4903").out, "port 4903 is open", 60 * pair.slow)
    said = a.run(f"python3 -B /hallway/guest/rtt.py 4903 {b.ip4} {TRIPS}").out
    total, fast = map(int, said.split())
    moved = delta.of(a)
    hearer.kill(9)
    assert moved["storms"] >= min(TRIPS, total / JIFFY) / 2, "the interrupt was seldom masked"
    # Waiting for the rest of a jiffy on each side lengthens every trip, load only some.
    assert fast < 2500 * pair.slow, f"nine of ten round trips take more than {fast} us"
