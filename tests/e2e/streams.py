"""Streams between two VMs: promotion mid-stream, switching under load, many at once."""

from __future__ import annotations

import json

from hallway_tests.guests import Delta, Stream, autopsy, connections
from hallway_tests.pair import Pair
from hallway_tests.streams import small_buffers
from hallway_tests.suite import check, wait_for

ENOUGH = 500_000  # bytes that show how a call does
HIT = (
    "ring_full",
    "ring_empty",
    "ring_wraps",
    "switch_in_tcp",
    "switch_in_ring",
    "switch_reader",
    "switch_writer",
)


def promotion(pair: Pair) -> None:
    """With the default policy a stream starts on TCP and goes on in a ring, both ways."""
    pair.load()
    delta = Delta(*pair.both)
    stream = Stream(pair.b, pair.a, conns=6, seconds=3)
    stream.finish(60 * pair.slow)
    pair.check_counters(delta)
    pair.check_through_rings(delta, 0.9)
    for vm in pair.both:
        moved = delta.of(vm)
        check(moved["tx_promoted"] >= 6, f"{vm.name} promoted only {moved['tx_promoted']} directions")
        check(moved["tx_bytes_tcp"] > 0, f"{vm.name}: no byte went over TCP before the mark")


def promotion_v6(pair: Pair) -> None:
    """The same over IPv6, the other way round."""
    pair.load()
    delta = Delta(*pair.both)
    Stream(pair.a, pair.b, to=pair.a.ip6, conns=3, seconds=2).finish(60 * pair.slow)
    pair.check_counters(delta)
    pair.check_through_rings(delta, 0.9)


def each_call(pair: Pair) -> None:
    """Every way to send and to receive, each on its own, through a small ring."""
    pair.load(ring_bytes=4096, promote_bytes=0, promote_ms=0)
    pairs = (
        ("block", "write,read"), ("block", "sendmsg,recvmsg"), ("block", "more,peek"),
        ("block", "splice-out,splice-in"),
        ("block", "sendfile,waitall"), ("block", "write,poll"), ("block", "write,trunc"),
        ("level", "write,read"), ("edge", "write,read"), ("edge", "sendmsg,splice-in"),
    )  # fmt: skip
    for mode, calls in pairs:
        delta = Delta(*pair.both)
        stream = Stream(pair.b, pair.a, both=f"--mode {mode} --calls {calls}", conns=2)
        with autopsy(*pair.both):
            wait_for(
                lambda: all(_enough(delta.of(vm), ENOUGH / pair.slow) for vm in pair.both),  # noqa: B023
                f"most bytes go through rings each way: {mode} {calls}",
                60 * pair.slow,
            )
        stream.stop()
        stream.finish(60 * pair.slow)
        pair.check_counters(delta)
        pair.check_through_rings(delta, 0.5)


def _enough(moved: dict[str, int], least: float) -> bool:
    return moved["tx_bytes_ring"] > max(least, moved["tx_bytes_tcp"])


def switching(pair: Pair, **params: object) -> Delta:
    """Switch on either VM at random under load; every byte is checked by stream."""
    times = 200 // pair.slow
    pair.load(**params)
    delta = Delta(*pair.both)
    stream = Stream(pair.b, pair.a, conns=6)
    seeds = [pair.rng.randrange(1 << 30) for _ in pair.both]
    toggles = [
        vm.spawn(f"toggle {seed} 700 hallway off on") for vm, seed in zip(pair.both, seeds, strict=True)
    ]

    def enough() -> bool:
        check(stream.running(), f"the stream ended early: {stream.client.poll()} {stream.server.poll()}")
        return all(
            m["tx_promoted"] + m["tx_demoted"] >= times and m["rx_promoted"] + m["rx_demoted"] >= times
            for m in (delta.of(vm) for vm in pair.both)
        )

    try:
        wait_for(enough, f"{times} switches", 60 * pair.slow)
    except AssertionError as error:
        said = [delta.of(vm) for vm in pair.both]
        said += [j.poll() for j in (stream.client, stream.server, *toggles)]
        raise AssertionError(f"{error} {said}") from error
    finally:
        for vm in pair.both:
            vm.run("pkill -TERM -x toggle", check=False, first=True)
    for toggle in toggles:
        done = toggle.wait(60 * pair.slow)
        check(done.code == 0, f"toggle: {done}")
    stream.stop()
    try:
        stream.finish(60 * pair.slow)
    except AssertionError as error:
        moved = "".join(f"\n{vm.name}: {json.dumps(delta.of(vm))}" for vm in pair.both)
        raise AssertionError(f"{error}{moved}") from error
    pair.check_counters(delta)
    return delta


def switching_small_ring(pair: Pair) -> None:
    """200 switches each way with rings of 4 KiB: they fill, run dry and wrap all the time."""
    with small_buffers(*pair.both):
        delta = switching(pair, ring_bytes=4096, promote_bytes=0, promote_ms=0)
    hit_all(pair, delta)


def switching_big_ring(pair: Pair) -> None:
    """The same with rings of 256 KiB, which hold much at each switch."""
    with small_buffers(*pair.both):
        delta = switching(pair, promote_bytes=0, promote_ms=0)
    # A writer hardly ever waits for so large a ring: 50 switches need not meet one.
    if pair.slow == 1:
        hit_all(pair, delta)


def hit_all(pair: Pair, delta: Delta) -> None:
    """Every situation that the counters know of came up."""
    for vm in pair.both:
        moved = delta.of(vm)
        missed = [name for name in HIT if not moved[name]]
        check(not missed, f"{vm.name}: never hit: {missed}: {json.dumps(moved)}")


def many(pair: Pair) -> None:
    """200 connections at once (50 on the debug kernel), and each gets its ring."""
    count = int(200 / pair.slow)
    pair.load(ring_bytes=16384)
    delta = Delta(*pair.both)
    stream = Stream(pair.b, pair.a, conns=count, stall=60)
    seen = wait_for(
        lambda: (c := connections(pair.a)) and len(c) >= count and len(c),
        f"{count} connections are shown",
        60 * pair.slow,
    )
    check(seen == count, f"the CLI shows {seen} connections, not {count}")
    wait_for(
        lambda: _many_on_rings(delta.of(pair.a), count),
        "each has its ring, and sends by it",
        90 * pair.slow,
    )
    stream.stop()
    stream.finish(150 * pair.slow)
    pair.check_counters(delta)
    pair.check_through_rings(delta, 0.4)


def _many_on_rings(moved: dict[str, int], count: int) -> bool:
    return moved["tx_promoted"] >= count and moved["tx_bytes_ring"] > moved["tx_bytes_tcp"]


TESTS = (promotion, promotion_v6, each_call, switching_small_ring, switching_big_ring, many)
