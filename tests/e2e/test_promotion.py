# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Connections get onto rings: new and old, IPv4 and IPv6, one and many, and again after `hallway off`."""

from __future__ import annotations

import pytest
from hallway_tests.guests import (
    AT_ONCE,
    Delta,
    Stream,
    autopsy,
    connections,
    counters,
    insmod,
    members,
    wait_members,
)
from hallway_tests.pair import Pair
from hallway_tests.streams import CALM, one_way
from hallway_tests.suite import wait_for

pytestmark = [pytest.mark.xdist_group("e2e-streams"), pytest.mark.xen]


def test_promotion(pair: Pair) -> None:
    """With the default policy a stream starts on TCP and continues in a ring, both ways."""
    pair.load()
    delta = Delta(*pair.both)
    pair.stream_on_rings(pair.b, pair.a, conns=6)
    for vm in pair.both:
        moved = delta.of(vm)
        assert moved["tx_promoted"] >= 6, vm.name
        assert moved["tx_bytes_tcp"] > 0, f"{vm.name}: no byte went over TCP before the start mark"


def test_promotion_v6(pair: Pair) -> None:
    """The same over IPv6, with client and server swapped."""
    pair.load()
    pair.stream_on_rings(pair.a, pair.b, to=pair.a.ip6, conns=3)


@pytest.mark.slow_on("6.1")
def test_joins_later(pair: Pair) -> None:
    """Connections older than the module, at either end, are promoted once both ends have it."""
    pair.unload()
    stream = Stream(pair.b, pair.a, conns=6)
    wait_for(lambda: "ESTAB" in pair.a.run("ss -tnH").out, "the stream is connected")
    insmod(pair.a)
    insmod(pair.b)
    wait_members(*pair.both)
    delta = Delta(*pair.both)
    pair.wait_on_rings(6)
    stream.stop()
    stream.finish(60 * pair.slow)
    pair.check_counters(delta)
    assert counters(pair.a)["tx_promoted"] >= 6


@pytest.mark.slow_on("6.1")
def test_address_moves(pair: Pair) -> None:
    """An address is added, removed from under a stream, added again, and moves: rings for its present VM."""
    pair.load(**AT_ONCE)
    address = "10.77.0.200"
    for owner, other in (pair.both, pair.both[::-1]):
        delta = Delta(*pair.both)
        other.run(f"ip neigh flush to {address}")
        owner.run(f"ip addr add {address}/24 dev eth0")
        wait_for(lambda: address in members(other), f"{other.name} serves it")  # noqa: B023
        stream = Stream(owner, other, to=address, conns=3, both=CALM)
        pair.wait_on_rings(3)
        owner.run(f"ip addr del {address}/24 dev eth0")
        wait_for(lambda: address not in members(other), f"{other.name} misses it")  # noqa: B023
        stream.check_running("without its address")
        owner.run(f"ip addr add {address}/24 dev eth0")
        wait_for(lambda: address in members(other), f"{other.name} serves it again")  # noqa: B023
        pair.wait_on_rings(3)
        stream.stop()
        stream.finish(60 * pair.slow)
        owner.run(f"ip addr del {address}/24 dev eth0")
        wait_for(lambda: address not in members(other), f"{other.name} misses it at last")  # noqa: B023
        pair.check_counters(delta)
        pair.check_through_rings(delta, 0.5)


@pytest.mark.slow_on("6.1")
def test_many(pair: Pair) -> None:
    """200 connections at once (50 on the debug kernel) each get a ring."""
    count = int(200 / pair.slow)
    pair.load(ring_bytes=16384, ring_bytes_max=16384)
    delta = Delta(*pair.both)
    # One thread serves all: a busy machine would starve such a thread beside hundreds of others.
    stream = Stream(pair.b, pair.a, conns=count, both="--mode level --stall 200")
    wait_for(
        lambda: len(connections(pair.a)) >= count,
        f"{count} connections are shown",
        60 * pair.slow,
    )
    assert len(connections(pair.a)) == count
    with autopsy(*pair.both):
        wait_for(lambda: delta.of(pair.a)["tx_promoted"] >= count, "each has its ring", 120 * pair.slow)
        # What TCP carried before says how busy this machine is.
        promoted = Delta(*pair.both)
        wait_for(lambda: _mostly_ringed(promoted.of(pair.a)), "rings carry most bytes", 120 * pair.slow)
    stream.stop()
    stream.finish(240 * pair.slow)
    pair.check_counters(delta)
    pair.check_through_rings(delta, 0)


def _mostly_ringed(moved: dict[str, int]) -> bool:
    return moved["tx_bytes_ring"] > max(moved["tx_bytes_tcp"], 200 * 16384)


@pytest.mark.slow_on("6.12")
def test_reader_returns(pair: Pair) -> None:
    """A stream goes one way; its reader's side switches Hallway off and on, and a ring carries it again."""
    pair.load(**AT_ONCE)
    delta = Delta(*pair.both)

    def carried_by(ring: int) -> bool:
        shown = connections(pair.a)
        return len(shown) == 1 and shown[0]["tx"]["carrier"] % 2 == ring

    with autopsy(*pair.both), one_way(pair.a, pair.b, 20 * pair.slow):
        for turn in range(3):
            wait_for(lambda: carried_by(1), f"bytes go into a ring, turn {turn}", 20 * pair.slow)
            pair.b.run("hallway off")
            wait_for(lambda: carried_by(0), f"bytes go over TCP, turn {turn}", 20 * pair.slow)
            pair.b.run("hallway on")
        wait_for(lambda: carried_by(1), "bytes go into a ring at last", 20 * pair.slow)
    pair.check_counters(delta)
