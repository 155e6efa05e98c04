# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A peer dies: its own connections end as TCP's do, others continue, and nothing is held for it."""

from __future__ import annotations

import json

import pytest
from hallway_lab.vm import VM, Job, Plain
from hallway_tests.doomed import (
    Doomed,
    last_words_heard,
    paused_peer,
    prepare_last_words,
    say_last_words,
)
from hallway_tests.guests import (
    AT_ONCE,
    Delta,
    Stream,
    insmod,
    members,
    odd,
    rmmod,
    wait_listening,
    wait_members,
)
from hallway_tests.pair import TINY, Pair, connections_with, count_on_rings
from hallway_tests.streams import CALM
from hallway_tests.suite import wait_for
from hallway_tests.table import overwrite_place, overwriting_generations

pytestmark = pytest.mark.xdist_group("e2e-peers")

# Seconds after a death in which TCP_USER_TIMEOUT (2.5) ends a connection with unread bytes. Its clock runs
# from the last sign of life, which may be older on a busy machine.
HASTY, HASTY_ENDS, BEAT = 2.5, 3.5, 0.5
TRIES = 3  # on a busy machine a VM may stand still meanwhile
MIB = 1 << 20
# More than TCP counts in advance on each CPU, so that its limit is felt.
UNREAD = 3 * MIB


@pytest.mark.slow_on("6.12")
def test_peer_killed(pair: Pair) -> None:
    """A member's QEMU is killed: what it sent is read, its connections end as TCP's do, others continue."""
    pair.load(**AT_ONCE)
    delta = Delta(*pair.both)
    bystander = Stream(pair.b, pair.a, conns=3, both=CALM)
    third = pair.third()
    with pair.site.join(third):
        insmod(third, **AT_ONCE)
        wait_members(*pair.both, third)
        pair.wait_on_rings(3)
        doomed = Doomed(pair, third)
        doomed.dies()
        third.stop()
        doomed.missed()
        doomed.ended()
        doomed.forgotten()
        gone = pair.member(third)
        assert gone["liveness"] == "absent"
        assert not gone["addresses"]
    bystander.check_running("when a third VM died")
    bystander.stop()
    bystander.finish(60 * pair.slow)
    assert not odd(delta.of(pair.a))
    assert not delta.of(pair.b)["resets"], "the bystander was reset"
    # With ring memory or a context left behind this would not return.
    for vm in pair.both:
        rmmod(vm)


@pytest.mark.slow
def test_peer_killed_without_memory(pair: Pair) -> None:
    """A peer is killed while TCP has no memory for what it sent: it is read when there is some."""
    rings = {"ring_bytes": 4 * MIB, "ring_bytes_max": 4 * MIB}
    pair.load(**AT_ONCE, **rings)
    a, third = pair.a, pair.third()
    hearer = a.spawn("python3 -B /hallway/guest/unread.py hear 4902")
    wait_listening(a, 4902, 60 * pair.slow)
    limits = a.run("cat /proc/sys/net/ipv4/tcp_mem").out.strip()
    with pair.site.join(third):
        insmod(third, **AT_ONCE, **rings)
        wait_members(*pair.both, third)
        third.spawn(f"python3 -B /hallway/guest/unread.py say 4902 {a.ip4} {UNREAD}")
        wait_for(lambda: count_on_rings(a, third) == 1, "it is on rings", 20 * pair.slow)
        say_last_words(third, pair.slow)
        delta = Delta(a)
        a.run("dmesg -C; sysctl -q net.ipv4.tcp_mem='1 1 1'")
        third.stop()
        wait_for(lambda: f"({third.name}) left" in a.run("dmesg").out, "the dead peer has departed")
        assert connections_with(a, third), "its bytes are given up at once"
        a.run(f"sysctl -q net.ipv4.tcp_mem='{limits}'")
        wait_for(lambda: not connections_with(a, third), "it is detached")
    a.run("touch /tmp/killed")
    heard = json.loads(hearer.wait(20 * pair.slow).out)
    a.run("rm /tmp/killed")
    assert heard == {"got": UNREAD, "right": True}, f"what it sent: {heard}"
    moved = delta.of(a)
    assert not moved["resets"], "it was reset"
    assert moved["rx_bytes_requeued"] >= UNREAD, f"{moved['rx_bytes_requeued']} bytes were requeued"


@pytest.mark.slow
def test_peer_killed_in_fault(pair: Pair) -> None:
    """A peer is killed while a call that sends to it is in a page fault: others still arrive and depart."""
    pair.load(**AT_ONCE)
    a, b = pair.both
    third = pair.third()
    with pair.site.join(third):
        insmod(third, **AT_ONCE)
        wait_members(a, b, third)
        before = pair.member(a)["channels"]
        sender, _ = _send_in_fault(pair, third)
        third.stop()
        wait_for(lambda: third.ip4 not in members(a), "the dead peer is missed")
        rmmod(b)
        wait_for(lambda: b.ip4 not in members(a), "the peer that leaves is missed", 20)
        insmod(b, **AT_ONCE)
        wait_members(a, b)
        assert pair.member(a)["channels"] == before + 1, "the sender's connection is gone"
        sender.kill(9)
        wait_for(lambda: pair.member(a)["channels"] == before, "nothing is held for the dead peer")
    a.run("rm /tmp/fault")
    stream = Stream(a, b, conns=3)
    pair.wait_on_rings(3)
    stream.stop()
    stream.finish(60 * pair.slow)


@pytest.mark.slow_on("6.1")
def test_place_lost_in_fault(pair: Pair) -> None:
    """A peer overwrites a VM's place while a call of the VM is in a page fault: other regions are joined."""
    pair.load(**AT_ONCE)
    a, b = pair.both
    tiny = Plain(pair.site.daemon.region.path.with_name(TINY), 8 * MIB, TINY)
    sender, hearer = _send_in_fault(pair, b)

    def lost() -> bool:
        # hallwayd writes it again.
        overwrite_place(pair.site.daemon.region.path, a)
        return "no longer a member" in a.run("dmesg").out

    a.run("dmesg -C")
    wait_for(lost, "it has lost its place", 20 * pair.slow)
    a.plug(tiny)
    wait_for(lambda: _is_alive(pair, a, TINY), "it joins another region", 20 * pair.slow)
    a.run("hallway off && hallway on", timeout=30 * pair.slow)
    a.unplug(TINY, 20 * pair.slow)
    sender.kill(9)
    wait_members(a, b)
    hearer.kill(9)
    a.run("rm /tmp/fault")


@pytest.mark.slow_on("6.1")
def test_place_overwritten(pair: Pair) -> None:
    """A member overwrites a VM's place while that VM joins: it joins once the member stops."""
    pair.load(**AT_ONCE)
    a, b = pair.both
    region = pair.site.daemon.region.path
    rmmod(a)
    a.run("dmesg -C")
    with overwriting_generations(region):
        insmod(a, **AT_ONCE)
        wait_for(lambda: "impossible slot" in a.run("dmesg").out, "its place is impossible", 20 * pair.slow)
    wait_members(a, b)


def _send_in_fault(pair: Pair, peer: VM) -> tuple[Job, Job]:
    """Have the first VM send to a peer, by rings, from memory that stays paged out; return both programs."""
    hearer = peer.spawn("python3 -B /hallway/guest/fault.py hear 4901")
    wait_listening(peer, 4901, 60 * pair.slow)
    sender = pair.a.spawn(f"python3 -B /hallway/guest/fault.py say 4901 {peer.ip4}")
    wait_for(lambda: count_on_rings(pair.a, peer) == 1, "it is on rings", 20 * pair.slow)
    pair.a.run("touch /tmp/fault")
    wait_for(
        lambda: "handle_userfault" in pair.a.run("cat /proc/$(pgrep -nf '[f]ault.py say')/wchan").out,
        "the sender is in a fault",
    )
    return sender, hearer


def _is_alive(pair: Pair, vm: VM, region: str) -> bool:
    regions = pair.site.daemon.status()["regions"]
    shown = next(one["members"] for one in regions if one["name"] == region)
    return any(member["uuid"] == vm.uuid and member["liveness"] == "alive" for member in shown)


@pytest.mark.xen
@pytest.mark.slow_on("6.12")
def test_peer_never_responds(pair: Pair) -> None:
    """A peer's machine dies inside a living QEMU: its last bytes are read, what it did not read times out."""
    # The clock runs from the death, not from when it is noticed.
    earliest, latest = HASTY - BEAT, HASTY_ENDS + 2 * pair.slow
    took: list[float] = []
    while not (took and earliest <= took[-1] < latest):
        assert len(took) < TRIES, f"TCP_USER_TIMEOUT ended its connection after {took} s"
        took.append(_end_by_timeout(pair))


def _end_by_timeout(pair: Pair) -> float:
    """Have a peer's machine die; return the seconds until TCP_USER_TIMEOUT ends a connection with it."""
    pair.load(**AT_ONCE)
    heard, said = prepare_last_words(pair)
    pair.a.run("sysctl -q net.ipv4.tcp_retries2=3; touch /tmp/dying")
    with paused_peer(pair, pair.b):
        pair.a.run("touch /tmp/killed")
        ends = last_words_heard(pair, heard)
    assert ends["first"], "TCP_USER_TIMEOUT did not end its connection first"
    said.kill(9)
    pair.a.run("sysctl -q net.ipv4.tcp_retries2=15; rm /tmp/killed /tmp/dying")
    pair.b.run("rm /tmp/say /tmp/said")
    # With ring memory or a context left behind this would not return.
    for vm in pair.both:
        rmmod(vm)
    return ends["after"]["hasty"]
