"""Module, daemon and peers come and go while streams run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from hallway_lab.vm import VM
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
from hallway_tests.suite import check, wait_for

from .lab import Pair
from .streams import CALM, nothing_odd, through_rings


def on_rings(pair: Pair, count: int = 1) -> None:
    """Wait until this many connections have both directions on rings."""

    def promoted() -> bool:
        shown = connections(pair.a)
        return sum(c["tx"]["carrier"] % 2 and c["rx"]["carrier"] % 2 for c in shown) >= count

    with autopsy(*pair.both):
        wait_for(promoted, f"{count} connections are on rings both ways", 20 * pair.slow)


def read_from_rings(pair: Pair, count: int) -> None:
    """Wait until the first VM reads so many connections from rings: what TCP carried before is there."""

    def read() -> bool:
        return sum(c["rx"]["carrier"] % 2 and c["rx"]["ring_bytes"] > 0 for c in connections(pair.a)) == count

    with autopsy(*pair.both):
        wait_for(read, f"{count} connections are read from rings", 20 * pair.slow)


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
            on_rings(pair)
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
    on_rings(pair, 6)
    stream.stop()
    stream.finish(60 * pair.slow)
    nothing_odd(pair, delta)
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
        on_rings(pair, 3)
        owner.run(f"ip addr del {address}/24 dev eth0")
        wait_for(lambda: address not in members(other), f"{other.name} misses it")  # noqa: B023
        stream.check_running("without its address")
        owner.run(f"ip addr add {address}/24 dev eth0")
        wait_for(lambda: address in members(other), f"{other.name} serves it again")  # noqa: B023
        on_rings(pair, 3)
        stream.stop()
        stream.finish(60 * pair.slow)
        owner.run(f"ip addr del {address}/24 dev eth0")
        wait_for(lambda: address not in members(other), f"{other.name} misses it at last")  # noqa: B023
        nothing_odd(pair, delta)
        through_rings(pair, delta, 0.5)


def daemon_restart(pair: Pair) -> None:
    """hallwayd is killed and restarted: streams go on, and a VM that boots then is promoted with both."""
    pair.load(promote_bytes=0, promote_ms=0)
    delta = Delta(*pair.both)
    stream = Stream(pair.b, pair.a, conns=4)
    on_rings(pair, 4)
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
    nothing_odd(pair, delta)


SINK = """
import hashlib, socket
digest, sock = hashlib.sha256(), socket.create_server(("", 4999)).accept()[0]
while data := sock.recv(65536):
    digest.update(data)
print(digest.hexdigest())
"""
SOURCE = """
import hashlib, random, signal, socket, sys, time
digest, ends = hashlib.sha256(), []
signal.signal(signal.SIGTERM, lambda *_: ends.append(1))
for _ in range(100):
    try:
        sock = socket.create_connection((sys.argv[1], 4999))
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
while not ends:
    data = random.randbytes(random.randrange(1, int(sys.argv[2])))
    digest.update(data)
    sock.sendall(data)
    time.sleep(float(sys.argv[3]))
sock.close()
print(digest.hexdigest())
"""


@contextlib.contextmanager
def one_way(source: VM, sink: VM, patience: float, *, most: int = 20000, pause: float = 0) -> Iterator[None]:
    """In the block bytes go from one VM to another on one connection; at its end, all have come.

    Each write has less than `most` bytes, and after it comes a pause, in seconds.
    """
    sink.put(SINK, "/tmp/sink.py")
    source.put(SOURCE, "/tmp/source.py")
    into = sink.spawn("python3 -B /tmp/sink.py")
    out = source.spawn(f"exec python3 -B /tmp/source.py {sink.ip4} {most} {pause}")
    yield
    out.kill()
    said = [job.wait(patience) for job in (out, into)]
    check(said[0].out and said[0].out == said[1].out, f"other bytes came than were sent: {said}")


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
    nothing_odd(pair, delta)


TESTS = (status_names_all, unload, joins_later, address_moves, daemon_restart, reader_returns)
