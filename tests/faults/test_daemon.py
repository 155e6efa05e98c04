# SPDX-License-Identifier: Apache-2.0 OR MIT
"""hallwayd is killed, and started again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random

import pytest
from hallway_tests.guests import AT_ONCE, Stream, counters, rmmod, wait_members
from hallway_tests.pair import Pair
from hallway_tests.record import Outcome
from hallway_tests.suite import check, wait_for

from .bystander import bystander, victim

pytestmark = [pytest.mark.record("faults"), pytest.mark.kernel("6.1"), pytest.mark.xdist_group("faults")]

ENOUGH = 500_000  # bytes through rings that show that rings are in use


@pytest.mark.fault("kill -9 of hallwayd, and its restart")
def test_daemon_killed(pair: Pair, outcome: Outcome, rounds: Iterator[int], rng: Random) -> None:
    """The daemon is killed at any moment: rings go on, and the next daemon has the same members."""
    site, a = pair.site, pair.a
    with bystander(pair, outcome) as stream:
        before = _members(pair)
        for _ in rounds:
            time.sleep(rng.random())  # the moment is what varies
            site.daemon.kill(9)
            moved = counters(a)["tx_bytes_ring"]
            wait_for(lambda: counters(a)["tx_bytes_ring"] > moved + ENOUGH, "rings go on without it")  # noqa: B023
            with outcome.timed("back after"):
                site.daemon.start()
            stream.check_running("with the daemon")
            check(_members(pair) == before, f"members are {_members(pair)}, not {before}")
        # Members of before and a new one can join.
        with victim(pair) as third:
            Stream(third, a, conns=2, seconds=1).finish()
            check(counters(third)["tx_promoted"] >= 2, "a VM that came later is not promoted")


@pytest.mark.fault("kill -9 of hallwayd while a guest joins")
def test_daemon_killed_joining(pair: Pair, outcome: Outcome, rounds: Iterator[int], rng: Random) -> None:
    """The daemon is killed while a guest leaves or joins: the next one answers, and streams are promoted."""
    site, (a, b) = pair.site, pair.both
    words = " ".join(f"{name}={value}" for name, value in AT_ONCE.items())
    with bystander(pair, outcome), victim(pair) as third:
        for number in rounds:
            rmmod(third)
            load = third.spawn(f"insmod /hallway/hallway.ko {words}")
            time.sleep(rng.random() / 10)  # the moment is what varies
            site.daemon.kill(9)
            site.daemon.start()
            load.wait()
            with outcome.timed("joined after"):
                wait_members(a, b, third)
            Stream(third, a, conns=2, seconds=0.5).finish()
            check(counters(third)["tx_promoted"] >= 2, f"nothing is promoted in round {number}")


def _members(pair: Pair) -> list[tuple[str, int, str]]:
    shown = pair.site.daemon.status()["regions"][0]["members"]
    return [(m["uuid"], m["generation"], m["liveness"]) for m in shown if not m["host"]]
