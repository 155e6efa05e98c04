"""Peers that vanish, and peers that are not who their address says."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from hallway_lab.vm import VM
from hallway_tests.doomed import Doomed, last_words_heard, prepare_last_words, stopped_qemu
from hallway_tests.guests import (
    Delta,
    Stream,
    autopsy,
    connections,
    insmod,
    members,
    odd,
    rmmod,
    wait_members,
)
from hallway_tests.pair import Pair, count_on_rings
from hallway_tests.streams import CALM, one_way
from hallway_tests.suite import check, wait_for

# Seconds after a death in which TCP_USER_TIMEOUT ends a connection with bytes unread.
HASTY, HASTY_ENDS = 2.5, 3.5
NEVER = 2**31 - 1  # bytes, and milliseconds, that no connection here reaches


def peer_killed(pair: Pair) -> None:
    """A member's QEMU is killed: what it sent is read, its connections end as TCP's do, others go on."""
    pair.load(promote_bytes=0, promote_ms=0)
    delta = Delta(*pair.both)
    bystander = Stream(pair.b, pair.a, conns=3, both=CALM)
    third = pair.third()
    with pair.site.join(third):
        insmod(third, promote_bytes=0, promote_ms=0)
        wait_members(*pair.both, third)
        pair.wait_on_rings(3)
        doomed = Doomed(pair, third)
        doomed.dies()
        third.stop()
        doomed.missed()
        doomed.ended()
        doomed.forgotten()
        gone = pair.member(third)
        check(gone["liveness"] == "absent" and not gone["addresses"], f"the daemon says: {gone}")
    check(bystander.running(), "the stream between the others ended")
    bystander.stop()
    bystander.finish(60 * pair.slow)
    found = odd(delta.of(pair.a))
    check(not found, ", ".join(found))
    check(not delta.of(pair.b)["resets"], "the bystander was reset")
    # With ring memory or a context left behind this would not return.
    for vm in pair.both:
        rmmod(vm)


def peer_killed_in_fault(pair: Pair) -> None:
    """A peer is killed while a call that sends to it is in a page fault: who comes and goes is known."""
    pair.load(promote_bytes=0, promote_ms=0)
    a, b = pair.both
    third = pair.third()
    with pair.site.join(third):
        insmod(third, promote_bytes=0, promote_ms=0)
        wait_members(a, b, third)
        third.spawn("python3 -B /hallway/guest/fault.py hear 4901")
        wait_for(lambda: third.run("ss -Hltn sport = :4901").out, "somebody hears", 60 * pair.slow)
        before = pair.member(a)["channels"]
        sender = a.spawn(f"python3 -B /hallway/guest/fault.py say 4901 {third.ip4}")
        wait_for(lambda: count_on_rings(a, third) == 1, "it is on rings", 20 * pair.slow)
        a.run("touch /tmp/fault")
        wait_for(
            lambda: "handle_userfault" in a.run("cat /proc/$(pgrep -nf '[f]ault.py say')/wchan").out,
            "the sender is in a fault",
        )
        third.stop()
        wait_for(lambda: third.ip4 not in members(a), "the dead one is missed")
        rmmod(b)
        wait_for(lambda: b.ip4 not in members(a), "who leaves is missed", 20)
        insmod(b, promote_bytes=0, promote_ms=0)
        wait_members(a, b)
        check(pair.member(a)["channels"] == before + 1, "the sender's connection is gone")
        sender.kill(9)
        wait_for(lambda: pair.member(a)["channels"] == before, "nothing is held for the dead one")
    a.run("rm /tmp/fault")
    stream = Stream(a, b, conns=3)
    pair.wait_on_rings(3)
    stream.stop()
    stream.finish(60 * pair.slow)


def peer_silent(pair: Pair) -> None:
    """A peer's machine stands still for a while: its streams go back to TCP, and to rings afterwards."""
    pair.load(promote_bytes=0, promote_ms=0)
    delta = Delta(*pair.both)
    stream = Stream(pair.b, pair.a, conns=6)
    pair.wait_on_rings(6)
    with stopped_qemu(pair, pair.b):
        check(delta.of(pair.a)["tx_demoted"] >= 6, "streams were still on rings")
    stream.check_running("with its peer stopped")
    wait_members(*pair.both)
    pair.wait_on_rings(6)
    stream.stop()
    stream.finish(60 * pair.slow)
    pair.check_counters(delta, stopped=True)


def peer_silent_too_early(pair: Pair) -> None:
    """A peer stops before TCP has brought what comes ahead of its ring: all of it comes once it goes on."""
    pair.load(promote_bytes=NEVER, promote_ms=NEVER)
    delta = Delta(*pair.both)

    def written(ring: int) -> bool:
        shown = connections(pair.b)
        return len(shown) == 1 and shown[0]["tx"]["ring_bytes" if ring else "tcp_bytes"] > 0

    # The writer may not block: it would hear of no ring.
    with autopsy(*pair.both), one_way(pair.b, pair.a, 20 * pair.slow, most=200, pause=0.001):
        wait_for(lambda: written(0), "bytes go over TCP", 20 * pair.slow)
        with strayed(pair.b, pair.a):
            for name in ("bytes", "ms"):
                pair.b.put("0", f"/sys/module/hallway/parameters/promote_{name}")
            wait_for(lambda: written(1), "bytes go into a ring, behind TCP's", 20 * pair.slow)
            with stopped_qemu(pair, pair.b):
                check(not delta.of(pair.a)["rx_bytes_ring"], "bytes of the ring were read")
        wait_members(*pair.both)
        pair.wait_read_from_rings(1)
    pair.check_counters(delta, stopped=True)


def peer_silent_for_ever(pair: Pair) -> None:
    """A peer's machine dies without a word: its last bytes are read, and what it did not read times out."""
    pair.load(promote_bytes=0, promote_ms=0)
    heard, said = prepare_last_words(pair)
    pair.a.run("sysctl -q net.ipv4.tcp_retries2=3; touch /tmp/dying")
    with stopped_qemu(pair, pair.b):
        pair.a.run("touch /tmp/killed")
        ends = last_words_heard(pair, heard)
    check(ends["first"], f"TCP_USER_TIMEOUT did not end its connection first: {ends}")
    # The clock runs from the death, not from when it is noticed.
    hasty = ends["after"]["hasty"]
    check(HASTY <= hasty < HASTY_ENDS + 0.5 * pair.slow, f"TCP_USER_TIMEOUT took {hasty} s")
    said.kill(9)
    pair.a.run("sysctl -q net.ipv4.tcp_retries2=15; rm /tmp/killed /tmp/dying")
    pair.b.run("rm /tmp/say /tmp/said")
    # With ring memory or a context left behind this would not return.
    for vm in pair.both:
        rmmod(vm)


def unplugged_from_silent(pair: Pair) -> None:
    """A region goes whose peer stands still: the VM gives it time to read, and its own heart beats on."""
    pair.load(promote_bytes=0, promote_ms=0)
    region = pair.site.daemon.region
    heard, said = prepare_last_words(pair)
    os.kill(pair.b.pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(1) as pool:
            unplug = pool.submit(pair.a.unplug, region.id, 60 * pair.slow)
            began, alive = time.monotonic(), 0.0
            while (member := pair.member(pair.a))["liveness"] != "absent":
                alive = time.monotonic() - began
                check(member["liveness"] != "silent", f"after {alive} s: {member}")
            unplug.result()
        check(alive > 4, f"nothing was waited for: {alive} s")
    finally:
        os.kill(pair.b.pid, signal.SIGCONT)
    for job in (heard, said):
        job.kill(9)
    pair.b.run("rm /tmp/say /tmp/said")
    pair.a.plug(region)
    wait_members(*pair.both)


@contextlib.contextmanager
def strayed(sender: VM, receiver: VM) -> Iterator[None]:
    """Packets from one VM to another get lost; rings and messages need none."""
    nobody = "02:00:00:00:00:01"
    sender.run(f"ip neigh replace {receiver.ip4} lladdr {nobody} dev eth0 nud permanent")
    try:
        yield
    finally:
        sender.run(f"ip neigh del {receiver.ip4} dev eth0")


def nat(pair: Pair) -> None:
    """Connections through NAT stay on TCP with NO_MATCH, also where another socket claims their address."""
    pair.load(promote_bytes=0, promote_ms=0)
    a, b = pair.both
    other = {vm.name: f"10.77.0.10{vm.config.number}" for vm in pair.both}
    for vm in pair.both:
        vm.run(f"ip addr add {other[vm.name]}/24 dev eth0; tc qdisc add dev eth0 clsact")
    try:
        wait_for(lambda: other["vm1"] in members(b) and other["vm2"] in members(a), "all is served")
        # a is called by its other address, and turns that into the first.
        port = Stream.port + 1
        _translate(a, "ingress", f"dst_ip {other['vm1']} dst_port {port}", other["vm1"], a.ip4)
        _translate(a, "egress", f"src_ip {a.ip4} src_port {port}", a.ip4, other["vm1"])
        with _stays_tcp(pair, other["vm1"]):
            _forged(pair, other["vm1"], port)
        # b calls from its first address, and turns that into the other one.
        port = Stream.port + 1
        _translate(b, "egress", f"src_ip {b.ip4} dst_port {port}", b.ip4, other["vm2"])
        _translate(b, "ingress", f"dst_ip {other['vm2']} src_port {port}", other["vm2"], b.ip4)
        with _stays_tcp(pair, a.ip4):
            pass
        # It was the translation, not the addresses.
        delta = Delta(*pair.both)
        Stream(a, b, to=other["vm1"], conns=2, seconds=1, both=CALM).finish(60 * pair.slow)
        pair.check_counters(delta)
        pair.check_through_rings(delta, 0.5)
    finally:
        for vm in pair.both:
            vm.run(f"ip addr del {other[vm.name]}/24 dev eth0; tc qdisc del dev eth0 clsact")


def _translate(vm: VM, way: str, match: str, old: str, new: str) -> None:
    vm.run(
        f"tc filter add dev eth0 {way} protocol ip flower ip_proto tcp {match}"
        f" action nat {way} {old}/32 {new}"
    )


@contextlib.contextmanager
def _stays_tcp(pair: Pair, to: str) -> Iterator[None]:
    """Run a stream from b to that address of a; it goes by TCP alone, and both ends know why."""
    delta = Delta(*pair.both)
    stream = Stream(pair.a, pair.b, to=to, conns=3, both=CALM)
    for vm in pair.both:
        wait_for(
            lambda: sum(c["reason_name"] == "NO_MATCH" for c in connections(vm)) == 3,  # noqa: B023
            f"{vm.name} says NO_MATCH",
            20 * pair.slow,
        )
        shown = vm.run("hallway connections").out
        check("3 NO_MATCH: the peer has no such connection (NAT or a proxy between?)" in shown, shown)
    yield
    stream.stop()
    stream.finish(60 * pair.slow)
    pair.check_counters(delta)
    for vm in pair.both:
        moved = delta.of(vm)
        check(not moved["tx_promoted"] and moved["tx_bytes_tcp"], f"{vm.name}: not by TCP alone: {moved}")


def _forged(pair: Pair, address: str, port: int) -> None:
    """Where b's offers now find a socket, its name is another: they are declined all the same."""
    a, b = pair.both
    called = next(c["local_port"] for c in connections(b) if c["remote_port"] == port)
    forger = a.spawn(f"python3 -B /hallway/guest/forge.py {address} {port} {b.ip4} {called}")
    wait_for(lambda: a.run(f"ss -Htn src {address} sport = :{port}").out, "the socket is forged")
    # It left in repair mode; connections that exist are looked for on this occasion.
    a.run("hallway off; hallway on")
    wait_for(lambda: any(c["local"] == address for c in connections(a)), "the forged socket is attached")
    # Offers grow rare after each that was declined: begin anew.
    b.run("hallway off; hallway on")
    delta = Delta(b)
    wait_for(lambda: delta.of(b)["offers_declined"] >= 9, "b went on offering", 30 * pair.slow)
    forger.kill()


TESTS = (
    peer_killed,
    peer_killed_in_fault,
    peer_silent,
    peer_silent_too_early,
    peer_silent_for_ever,
    unplugged_from_silent,
    nat,
)
