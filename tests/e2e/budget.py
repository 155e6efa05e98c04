"""Ring memory is a budget: many connections that idle, some that are busy, and little memory."""

from __future__ import annotations

from hallway_tests.guests import Delta, Stream, autopsy, connections
from hallway_tests.suite import check, wait_for

from .lab import Pair
from .streams import nothing_odd, through_rings

HOLD = "/tmp/hold"
RING = 16384 + 4096  # bytes that the smallest ring takes of a slice
MIB = 1 << 20
MOST = 0.8  # of all bytes; a busy machine takes its time to get connections onto rings


def crowd(pair: Pair, idle: int, busy: int, **params: object) -> None:
    """Every connection of a crowd asks for rings; when it idles, busy ones have them, and none breaks.

    The crowd asks for more memory than there is, and goes on at the end: each
    of its bytes is checked.
    """
    patience = 120 * pair.slow
    pair.load(promote_bytes=0, promote_ms=0, idle_ms=3000, **params)
    delta = Delta(*pair.both)
    many = Stream(pair.b, pair.a, conns=idle, both=f"--mode level --biggest 600 --stall 120 --hold {HOLD}")
    with autopsy(*pair.both):
        wait_for(lambda: all(_crowded(delta.of(vm), idle) for vm in pair.both), "memory is short", patience)
    # A member tells by its heartbeat: what the host sees may be from before the crowd.
    wait_for(lambda: all(_channels(pair)), "the host sees that rings are in use", patience)
    for vm in pair.both:
        vm.run(f"touch {HOLD}")
    wait_for(lambda: _channels(pair) == [0, 0], "who idles holds neither memory nor a number", patience)
    begin = Delta(*pair.both)
    some = Stream(pair.b, pair.a, conns=busy, both="--biggest 20000 --stall 60")
    with autopsy(*pair.both):
        wait_for(lambda: _ringing(pair, some) == busy, f"{busy} busy connections are on rings", patience)
    wait_for(lambda: _channels(pair) == [busy, busy], "they alone hold memory", patience)
    for vm in pair.both:
        there = len(connections(vm))
        check(there == idle + busy, f"{vm.name} has {there} connections, not {idle + busy}")
    many.check_running("while it was to idle")
    wait_for(lambda: all(_ringed(begin.of(vm)) for vm in pair.both), "rings carry most bytes", patience)
    some.stop()
    some.finish(patience)
    through_rings(pair, begin, MOST)
    for vm in pair.both:
        vm.run(f"rm {HOLD}")
    many.stop()
    many.finish(patience)
    nothing_odd(pair, delta)


def _crowded(moved: dict[str, int], idle: int) -> bool:
    return moved["attached"] >= idle and moved["tx_promoted"] and moved["rings_refused"]


def _ringed(moved: dict[str, int]) -> bool:
    return moved["tx_bytes_ring"] * (1 - MOST) > moved["tx_bytes_tcp"] * MOST


def _ringing(pair: Pair, stream: Stream) -> int:
    shown = [c for c in connections(pair.a) if c["remote_port"] == stream.port]
    return sum(c["tx"]["carrier"] % 2 and c["rx"]["carrier"] % 2 for c in shown)


def _channels(pair: Pair) -> list[int]:
    """Return how many connections of each VM hold ring memory, or a number, as the host sees it."""
    members = [m for region in pair.site.daemon.status()["regions"] for m in region["members"]]
    return [next(m["channels"] for m in members if m["uuid"] == vm.uuid) for vm in pair.both]


def budget_crowd(pair: Pair) -> None:
    """500 idle connections and 10 busy ones, with memory for 100 small rings."""
    crowd(pair, 500, 10, memory_bytes=100 * RING)


TESTS = (budget_crowd,)
