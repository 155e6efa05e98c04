"""A peer dies: its own connections end as TCP's do, others continue, and nothing is held for it."""

from __future__ import annotations

import pytest
from hallway_tests.doomed import Doomed, last_words_heard, prepare_last_words, stopped_qemu
from hallway_tests.guests import AT_ONCE, Delta, Stream, insmod, members, odd, rmmod, wait_members
from hallway_tests.pair import Pair, count_on_rings
from hallway_tests.streams import CALM
from hallway_tests.suite import wait_for

pytestmark = pytest.mark.xdist_group("e2e-peers")

# Seconds after a death in which TCP_USER_TIMEOUT (2.5) ends a connection with unread bytes.
HASTY, HASTY_ENDS = 2.5, 3.5


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


def test_peer_killed_in_fault(pair: Pair) -> None:
    """A peer is killed while a call that sends to it is in a page fault: others still arrive and depart."""
    pair.load(**AT_ONCE)
    a, b = pair.both
    third = pair.third()
    with pair.site.join(third):
        insmod(third, **AT_ONCE)
        wait_members(a, b, third)
        third.spawn("python3 -B /hallway/guest/fault.py hear 4901")
        wait_for(lambda: third.run("ss -Hltn sport = :4901").out, "port 4901 is open", 60 * pair.slow)
        before = pair.member(a)["channels"]
        sender = a.spawn(f"python3 -B /hallway/guest/fault.py say 4901 {third.ip4}")
        wait_for(lambda: count_on_rings(a, third) == 1, "it is on rings", 20 * pair.slow)
        a.run("touch /tmp/fault")
        wait_for(
            lambda: "handle_userfault" in a.run("cat /proc/$(pgrep -nf '[f]ault.py say')/wchan").out,
            "the sender is in a fault",
        )
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


def test_peer_never_responds(pair: Pair) -> None:
    """A peer's machine dies inside a living QEMU: its last bytes are read, what it did not read times out."""
    pair.load(**AT_ONCE)
    heard, said = prepare_last_words(pair)
    pair.a.run("sysctl -q net.ipv4.tcp_retries2=3; touch /tmp/dying")
    with stopped_qemu(pair, pair.b):
        pair.a.run("touch /tmp/killed")
        ends = last_words_heard(pair, heard)
    assert ends["first"], "TCP_USER_TIMEOUT did not end its connection first"
    # The clock runs from the death, not from when it is noticed.
    assert HASTY <= ends["after"]["hasty"] < HASTY_ENDS + 0.5 * pair.slow
    said.kill(9)
    pair.a.run("sysctl -q net.ipv4.tcp_retries2=15; rm /tmp/killed /tmp/dying")
    pair.b.run("rm /tmp/say /tmp/said")
    # With ring memory or a context left behind this would not return.
    for vm in pair.both:
        rmmod(vm)
