# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Many idle connections and some busy ones share too little ring memory."""

from __future__ import annotations

from .guests import AT_ONCE, Delta, Stream, autopsy, connections
from .pair import Pair, most_by_rings
from .suite import check, wait_for

HOLD = "/tmp/hold"


def crowd(pair: Pair, idle: int, busy: int, **params: object) -> None:
    """Have a crowd of connections ask for rings and then idle: busy ones get the memory, none breaks.

    The crowd asks for more memory than there is. It goes on at the end, and each
    of its bytes is checked.
    """
    patience = 120 * pair.slow
    # A slow guest, or one on a busy host, sends less often: it does not pause.
    pauses = {"idle_ms": int(6000 * pair.slow), "pause_ms": int(3000 * pair.slow)}
    pair.load(**AT_ONCE, **pauses, **params)
    delta = Delta(*pair.both)
    many = Stream(pair.b, pair.a, conns=idle, both=f"--mode level --biggest 600 --stall 120 --hold {HOLD}")
    with autopsy(*pair.both):
        wait_for(lambda: all(_crowded(delta.of(vm), idle) for vm in pair.both), "memory is short", patience)
    # The heartbeat carries the number of channels: what the host has may be from before the crowd.
    wait_for(lambda: all(pair.channels()), "the host sees that rings are in use", patience)
    for vm in pair.both:
        vm.run(f"touch {HOLD}")
    wait_for(lambda: pair.channels() == [0, 0], "idle connections hold no memory and no channel", patience)
    begin = Delta(*pair.both)
    some = Stream(pair.b, pair.a, conns=busy, both="--biggest 20000 --stall 60")
    with autopsy(*pair.both):
        wait_for(
            lambda: _count_on_rings(delta.of(pair.a)) == busy, f"{busy} busy ones are on rings", patience
        )
    wait_for(lambda: pair.channels() == [busy, busy], "only the busy ones hold memory", patience)
    for vm in pair.both:
        there = len(connections(vm))
        check(there == idle + busy, f"{vm.name} has {there} connections, not {idle + busy}")
    many.check_running("while it was to idle")
    with autopsy(*pair.both):
        wait_for(
            lambda: all(most_by_rings(begin.of(vm)) for vm in pair.both), "rings carry most bytes", patience
        )
    some.stop()
    some.finish(patience)
    pair.check_through_rings(begin, 0)
    for vm in pair.both:
        vm.run(f"rm {HOLD}")
    many.stop()
    many.finish(patience)
    pair.check_counters(delta)


def _crowded(moved: dict[str, int], idle: int) -> bool:
    return moved["attached"] >= idle and moved["tx_promoted"] and moved["rings_refused"]


def _count_on_rings(moved: dict[str, int]) -> int:
    """Count connections with both ways on rings, by counters: a list of thousands takes the guest seconds."""
    return min(moved[f"{way}_promoted"] - moved[f"{way}_demoted"] for way in ("tx", "rx"))
