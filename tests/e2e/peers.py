"""Peers that vanish, and peers that are not who their address says."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hallway_lab.vm import VM, Job, Result
from hallway_tests.guests import (
    TELLING,
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
from hallway_tests.suite import check, wait_for

from .lab import Pair
from .life import on_rings, one_way, read_from_rings
from .streams import CALM, nothing_odd, through_rings

# What TCP says of a peer that is gone; it depends on who notices first.
TCP_ENDS = (
    *("Connection timed out", "Connection reset by peer", "No route to host"),
    *("Broken pipe", "endpoint is not connected"),
)
LAST_WORDS = 100_000
# Seconds after a death in which its keep-alive ends an idle connection, and TCP_USER_TIMEOUT one with
# bytes unread: 3 and 2.5, and what this machine takes. A member is taken for silent after 2 to 3.
IN_TIME = 8
HASTY, HASTY_ENDS = 2.5, 3.5
NEVER = 2**31 - 1  # bytes, and milliseconds, that no connection here reaches


class Doomed:
    """Streams between the first VM of a pair and another VM that is about to die, all on rings.

    Among them are last words, sent and not read yet, and a connection on which
    nobody says anything more.
    """

    def __init__(self, pair: Pair, victim: VM) -> None:
        self.pair, self.victim = pair, victim
        self._before = {vm.name: seen_by_daemon(pair, vm)["channels"] for vm in pair.both}
        self._heard = pair.a.spawn("python3 -B /hallway/e2e/last_words.py hear 4900")
        wait_for(lambda: pair.a.run("ss -Hltn sport = :4900").out, "somebody hears", 60 * pair.slow)
        self._streams = Stream(victim, pair.a, conns=6, both=TELLING)
        victim.spawn(f"python3 -B /hallway/e2e/last_words.py say 4900 {pair.a.ip4} {LAST_WORDS}")
        with autopsy(pair.a, victim):
            wait_for(lambda: on_rings_with(pair.a, victim) == 9, "all are on rings", 20 * pair.slow)
        victim.run("touch /tmp/say; until [ -e /tmp/said ]; do sleep 0.01; done", timeout=20 * pair.slow)
        said = next(c for c in connections(victim) if c["remote_port"] == 4900 and c["tx"]["ring_bytes"])
        check(said["tx"]["ring_bytes"] > LAST_WORDS, f"the last words went elsewhere: {said}")
        # A peer that does not answer is given up sooner than in 15 minutes.
        pair.a.run("sysctl -q net.ipv4.tcp_retries2=3")

    def dies(self) -> None:
        """Say that the victim is about to."""
        self.pair.a.run("touch /tmp/dying")

    def missed(self) -> None:
        """Wait until both VMs of the pair serve the victim no more."""
        for vm in self.pair.both:
            wait_for(lambda: self.victim.ip4 not in members(vm), f"{vm.name} misses it", longest=0.01)  # noqa: B023
        self.pair.a.run("touch /tmp/killed")

    def ended(self, *ends: str) -> dict[str, float]:
        """Wait until all has ended as TCP ends it; the talker in one of these ways.

        Return after how many seconds keep-alive and TCP_USER_TIMEOUT ended theirs.
        """
        pair = self.pair
        ended(self._streams, 40 * pair.slow)
        said = _last_words_heard(pair, self._heard, ends or ("ETIMEDOUT",))
        pair.a.run("sysctl -q net.ipv4.tcp_retries2=15; rm /tmp/killed /tmp/dying")
        check(not _with(pair.a, self.victim), f"still attached: {_with(pair.a, self.victim)}")
        return said["after"]

    def forgotten(self) -> None:
        """Wait until nothing is held for the victim, which has departed or come back."""
        for vm in self.pair.both:
            wait_for(
                lambda: seen_by_daemon(self.pair, vm)["channels"] == self._before[vm.name],  # noqa: B023
                f"{vm.name} has its {self._before[vm.name]} channels of before",
            )


def ended(streams: Stream, patience: float) -> None:
    """Wait until those who stream to a VM that is gone were told so, as TCP tells it."""
    ended_as_tcp(streams, streams.client.wait(patience))


def ended_as_tcp(streams: Stream, result: Result, *, least: int | None = None) -> None:
    """Fail unless each connection, or so many, says that its peer is gone: an end of the stream is none."""
    client = json.loads(result.out)
    told = {report.split()[1] for report in client["reports"]}
    check(len(told) >= (least or streams.conns), f"connections {told} of {streams.conns} noticed: {client}")
    for report in client["reports"]:
        check(report.endswith(TCP_ENDS), f"not an end as TCP's: {report}")


def peer_killed(pair: Pair) -> None:
    """A member's QEMU is killed: what it sent is read, its connections end as TCP's do, others go on."""
    pair.load(promote_bytes=0, promote_ms=0)
    delta = Delta(*pair.both)
    bystander = Stream(pair.b, pair.a, conns=3, both=CALM)
    third = pair.third()
    with pair.site.join(third):
        insmod(third, promote_bytes=0, promote_ms=0)
        wait_members(*pair.both, third)
        on_rings(pair, 3)
        doomed = Doomed(pair, third)
        doomed.dies()
        third.stop()
        doomed.missed()
        doomed.ended()
        doomed.forgotten()
        gone = seen_by_daemon(pair, third)
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
        third.spawn("python3 -B /hallway/e2e/fault.py hear 4901")
        wait_for(lambda: third.run("ss -Hltn sport = :4901").out, "somebody hears", 60 * pair.slow)
        before = seen_by_daemon(pair, a)["channels"]
        sender = a.spawn(f"python3 -B /hallway/e2e/fault.py say 4901 {third.ip4}")
        wait_for(lambda: on_rings_with(a, third) == 1, "it is on rings", 20 * pair.slow)
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
        check(seen_by_daemon(pair, a)["channels"] == before + 1, "the sender's connection is gone")
        sender.kill(9)
        wait_for(lambda: seen_by_daemon(pair, a)["channels"] == before, "nothing is held for the dead one")
    a.run("rm /tmp/fault")
    stream = Stream(a, b, conns=3)
    on_rings(pair, 3)
    stream.stop()
    stream.finish(60 * pair.slow)


def peer_silent(pair: Pair) -> None:
    """A peer's machine stands still for a while: its streams go back to TCP, and to rings afterwards."""
    pair.load(promote_bytes=0, promote_ms=0)
    delta = Delta(*pair.both)
    stream = Stream(pair.b, pair.a, conns=6)
    on_rings(pair, 6)
    with standing_still(pair, pair.b):
        check(delta.of(pair.a)["tx_demoted"] >= 6, "streams were still on rings")
    stream.check_running("with its peer stopped")
    wait_members(*pair.both)
    on_rings(pair, 6)
    stream.stop()
    stream.finish(60 * pair.slow)
    nothing_odd(pair, delta, stopped=True)


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
            with standing_still(pair, pair.b):
                check(not delta.of(pair.a)["rx_bytes_ring"], "bytes of the ring were read")
        wait_members(*pair.both)
        read_from_rings(pair, 1)
    nothing_odd(pair, delta, stopped=True)


def peer_silent_for_ever(pair: Pair) -> None:
    """A peer's machine dies without a word: its last bytes are read, and what it did not read times out."""
    pair.load(promote_bytes=0, promote_ms=0)
    heard, said = _last_words(pair)
    pair.a.run("sysctl -q net.ipv4.tcp_retries2=3; touch /tmp/dying")
    with standing_still(pair, pair.b):
        pair.a.run("touch /tmp/killed")
        ends = _last_words_heard(pair, heard)
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
    heard, said = _last_words(pair)
    os.kill(pair.b.pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(1) as pool:
            unplug = pool.submit(pair.a.unplug, region.id, 60 * pair.slow)
            began, alive = time.monotonic(), 0.0
            while (member := seen_by_daemon(pair, pair.a))["liveness"] != "absent":
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


def _last_words(pair: Pair) -> tuple[Job, Job]:
    """Have the first VM hear what the second one says, all on rings, and the last words not be read yet."""
    heard = pair.a.spawn("python3 -B /hallway/e2e/last_words.py hear 4900")
    wait_for(lambda: pair.a.run("ss -Hltn sport = :4900").out, "somebody hears", 20 * pair.slow)
    said = pair.b.spawn(f"python3 -B /hallway/e2e/last_words.py say 4900 {pair.a.ip4} {LAST_WORDS}")
    on_rings(pair, 3)
    pair.b.run("touch /tmp/say; until [ -e /tmp/said ]; do sleep 0.01; done", timeout=20 * pair.slow)
    return heard, said


@contextlib.contextmanager
def standing_still(pair: Pair, peer: VM) -> Iterator[None]:
    """A member's QEMU is stopped, and the first VM has noticed."""
    os.kill(peer.pid, signal.SIGSTOP)
    try:
        wait_for(lambda: not members(pair.a) & {peer.ip4, peer.ip6}, "the silence is noticed", 20)
        wait_for(lambda: not _with(pair.a, peer), "its streams are TCP's", 20 * pair.slow)
        yield
    finally:
        os.kill(peer.pid, signal.SIGCONT)


@contextlib.contextmanager
def strayed(sender: VM, receiver: VM) -> Iterator[None]:
    """Packets from one VM to another get lost; rings and messages need none."""
    nobody = "02:00:00:00:00:01"
    sender.run(f"ip neigh replace {receiver.ip4} lladdr {nobody} dev eth0 nud permanent")
    try:
        yield
    finally:
        sender.run(f"ip neigh del {receiver.ip4} dev eth0")


def seen_by_daemon(pair: Pair, vm: VM) -> dict[str, Any]:
    """Return what the daemon tells of a member."""
    shown = pair.site.daemon.status()["regions"][0]["members"]
    return next(member for member in shown if member["uuid"] == vm.uuid)


def _with(vm: VM, peer: VM) -> list[dict[str, Any]]:
    return [c for c in connections(vm) if c["remote"] in (peer.ip4, peer.ip6)]


def on_rings_with(vm: VM, peer: VM) -> int:
    """Count the connections with a peer that have both directions on rings."""
    return sum(c["tx"]["carrier"] % 2 and c["rx"]["carrier"] % 2 for c in _with(vm, peer))


def _last_words_heard(pair: Pair, heard: Job, ends: tuple[str, ...] = ("ETIMEDOUT",)) -> dict[str, Any]:
    said = json.loads(heard.wait(40 * pair.slow).out)
    check(said["right"] and said["got"] == LAST_WORDS, f"the last words: {said}")
    check(said["end"] in ends, f"the end after the last words: {said}")
    check(said["idle"] in (*ends, "EHOSTUNREACH"), f"the end of the idle connection: {said}")
    check(said["hasty"] in ends, f"the end of the connection with TCP_USER_TIMEOUT: {said}")
    check(max(said["after"].values()) < IN_TIME * pair.slow, f"an end that took its time: {said}")
    return said


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
        nothing_odd(pair, delta)
        through_rings(pair, delta, 0.5)
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
    nothing_odd(pair, delta)
    for vm in pair.both:
        moved = delta.of(vm)
        check(not moved["tx_promoted"] and moved["tx_bytes_tcp"], f"{vm.name}: not by TCP alone: {moved}")


def _forged(pair: Pair, address: str, port: int) -> None:
    """Where b's offers now find a socket, its name is another: they are declined all the same."""
    a, b = pair.both
    called = next(c["local_port"] for c in connections(b) if c["remote_port"] == port)
    forger = a.spawn(f"python3 -B /hallway/e2e/forge.py {address} {port} {b.ip4} {called}")
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
