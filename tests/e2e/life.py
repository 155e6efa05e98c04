"""Module, daemon and peers come and go while streams run."""

from __future__ import annotations

from hallway_tests.guests import (
    Delta,
    Stream,
    autopsy,
    connections,
    counters,
    insmod,
    members,
    rmmod,
    status,
    wait_members,
)
from hallway_tests.pair import Pair
from hallway_tests.streams import CALM, one_way
from hallway_tests.suite import check, wait_for


def status_names_all(pair: Pair) -> None:
    """Each guest's status lists the host, itself and the other, as hallwayd knows them."""
    pair.load()
    region = pair.site.daemon.status()["regions"][0]
    told = {m["slot"]: (m["name"], m["uuid"], m["generation"], m["host"]) for m in region["members"]}
    for vm in pair.both:
        shown = status(vm)["members"]
        seen = {m["slot"]: (m["name"], m["uuid"], m["generation"], m["host"]) for m in shown}
        check(
            len(shown) == 3 and seen == {slot: told[slot] for slot in seen}, f"{vm.name}: {seen}, not {told}"
        )
        own = [m for m in shown if m["self"]]
        check([m["uuid"] for m in own] == [vm.uuid], f"{vm.name} takes itself for {own}")
        check({vm.ip4, vm.ip6} <= set(own[0]["addresses"]), f"{vm.name}'s own addresses: {own}")


def unload(pair: Pair) -> None:
    """The module goes, and comes back, on either side while streams run; no byte is harmed."""
    pair.load(promote_bytes=0, promote_ms=0, ring_bytes=16384)
    stream = Stream(pair.b, pair.a, conns=6)
    for _ in range(4):
        for vm in pair.rng.sample(pair.both, 2):
            pair.wait_on_rings()
            with autopsy(vm):
                rmmod(vm, 60 * pair.slow)
            stream.check_running(f"when {vm.name}'s module went")
            insmod(vm, promote_bytes=0, promote_ms=0, ring_bytes=16384)
            wait_members(*pair.both)
    stream.stop()
    stream.finish(60 * pair.slow)


def joins_later(pair: Pair) -> None:
    """Connections older than the module, on either side, are promoted once both have it."""
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
    check(counters(pair.a)["tx_promoted"] >= 6, "fewer directions were promoted than are on rings")


def address_moves(pair: Pair) -> None:
    """An address comes, goes from under a stream, comes back, and moves: rings for whoever has it."""
    pair.load(promote_bytes=0, promote_ms=0)
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


def daemon_restart(pair: Pair) -> None:
    """hallwayd is killed and restarted: streams go on, and a VM that boots then is promoted with both."""
    pair.load(promote_bytes=0, promote_ms=0)
    delta = Delta(*pair.both)
    stream = Stream(pair.b, pair.a, conns=4)
    pair.wait_on_rings(4)
    pair.site.daemon.kill(9)
    moved = counters(pair.a)["tx_bytes_ring"]
    wait_for(
        lambda: counters(pair.a)["tx_bytes_ring"] > moved + 1000000, "rings carry bytes without a daemon"
    )
    check(stream.running(), "the stream ended with the daemon")
    pair.site.daemon.start()
    third = pair.third()
    with pair.site.join(third):
        insmod(third, promote_bytes=0, promote_ms=0)
        wait_members(*pair.both, third)
        for other in pair.both:
            before = Delta(third, other)
            Stream(other, third, conns=2, seconds=pair.slow).finish(60 * pair.slow)
            for vm in (third, other):
                check(
                    before.of(vm)["tx_promoted"] >= 2,
                    f"{vm.name} promoted nothing with {other.name} and {third.name}",
                )
        pair.healthy()
    check(stream.running(), "the stream ended when the third VM went")
    stream.stop()
    stream.finish(60 * pair.slow)
    pair.check_counters(delta)


def reader_returns(pair: Pair) -> None:
    """Of a stream that goes one way, the reader's side leaves and comes back: the ring does, too."""
    pair.load(promote_bytes=0, promote_ms=0)
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


TESTS = (status_names_all, unload, joins_later, address_moves, daemon_restart, reader_returns)
