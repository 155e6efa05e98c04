# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Peers that die or stop, and how the connections with them end."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from hallway_lab.vm import VM, Job, Result

from .guests import Stream, autopsy, connections, members, wait_listening
from .pair import Pair, connections_with, count_on_rings
from .streams import TELLING
from .suite import check, wait_for

# TCP's errors for a peer that is gone; which one depends on the call that notices first.
TCP_ENDS = (
    *("Connection timed out", "Connection reset by peer", "No route to host"),
    *("Broken pipe", "endpoint is not connected"),
)
LAST_WORDS = 100_000  # bytes that the victim sends and the survivor does not read before the death
# Seconds after a death within which keep-alive ends an idle connection, and TCP_USER_TIMEOUT one with
# unread bytes: 3 and 2.5, and what a busy machine adds. A member is unresponsive after 2 to 3.
IN_TIME = 15


class Doomed:
    """Streams between the first VM of a pair and a victim that is about to die, all on rings.

    Among them are a connection with bytes that are not read yet (the last words),
    and an idle one.
    """

    def __init__(self, pair: Pair, victim: VM) -> None:
        self.pair, self.victim = pair, victim
        self._before = {vm.name: pair.member(vm)["channels"] for vm in pair.both}
        self._heard = pair.a.spawn("python3 -B /hallway/guest/last_words.py hear 4900")
        wait_listening(pair.a, 4900, 60 * pair.slow)
        self._streams = Stream(victim, pair.a, conns=6, both=TELLING)
        victim.spawn(f"python3 -B /hallway/guest/last_words.py say 4900 {pair.a.ip4} {LAST_WORDS}")
        with autopsy(pair.a, victim):
            wait_for(lambda: count_on_rings(pair.a, victim) == 9, "all are on rings", 20 * pair.slow)
        say_last_words(victim, pair.slow)
        said = [c for c in connections(victim) if c["remote_port"] == 4900]
        check(
            any(c["tx"]["ring_bytes"] > LAST_WORDS for c in said),
            f"the last words are not in a ring: {said}",
        )
        # A peer that does not answer times out sooner than after 15 minutes.
        pair.a.run("sysctl -q net.ipv4.tcp_retries2=3")

    def dies(self) -> None:
        """Mark the moment right before the victim's death."""
        self.pair.a.run("touch /tmp/dying")

    def missed(self) -> None:
        """Wait until neither VM of the pair serves the victim."""
        for vm in self.pair.both:
            wait_for(lambda: self.victim.ip4 not in members(vm), f"{vm.name} misses it", longest=0.01)  # noqa: B023
        self.pair.a.run("touch /tmp/killed")

    def ended(self, *ends: str) -> dict[str, float]:
        """Wait until all connections have ended as TCP's do, the last words' with one of `ends`.

        Return the seconds after which keep-alive ("idle") and TCP_USER_TIMEOUT ("hasty") ended theirs.
        """
        pair = self.pair
        ended(self._streams, 40 * pair.slow)
        said = last_words_heard(pair, self._heard, ends or ("ETIMEDOUT",))
        pair.a.run("sysctl -q net.ipv4.tcp_retries2=15; rm /tmp/killed /tmp/dying")
        left = connections_with(pair.a, self.victim)
        check(not left, f"still attached: {left}")
        return said["after"]

    def forgotten(self) -> None:
        """Wait until nothing is held for the victim, which has departed or returned."""
        for vm in self.pair.both:
            wait_for(
                lambda: self.pair.member(vm)["channels"] == self._before[vm.name],  # noqa: B023
                f"{vm.name} has its {self._before[vm.name]} channels of before",
            )


def ended(streams: Stream, patience: float) -> None:
    """Wait until every connection of the client has ended with an error of TCP's."""
    ended_as_tcp(streams, streams.client.wait(patience))


def ended_as_tcp(streams: Stream, result: Result, *, least: int | None = None) -> None:
    """Fail unless each connection, or at least `least`, reports that its peer is gone; EOF does not count."""
    client = json.loads(result.out)
    noticed = {report.split()[1] for report in client["reports"]}
    check(
        len(noticed) >= (least or streams.conns),
        f"{noticed} of {streams.conns} connections noticed: {client}",
    )
    for report in client["reports"]:
        check(report.endswith(TCP_ENDS), f"not an error of TCP's: {report}")


def prepare_last_words(pair: Pair) -> tuple[Job, Job]:
    """Have the second VM send last words that the first one does not read yet; all are on rings.

    Return the reader and the writer.
    """
    heard = pair.a.spawn("python3 -B /hallway/guest/last_words.py hear 4900")
    wait_listening(pair.a, 4900, 20 * pair.slow)
    said = pair.b.spawn(f"python3 -B /hallway/guest/last_words.py say 4900 {pair.a.ip4} {LAST_WORDS}")
    pair.wait_on_rings(3)
    say_last_words(pair.b, pair.slow)
    return heard, said


def say_last_words(victim: VM, slow: float) -> None:
    """Have the victim send its last words."""
    victim.run("touch /tmp/say; until [ -e /tmp/said ]; do sleep 0.01; done", timeout=20 * slow)


def last_words_heard(pair: Pair, heard: Job, ends: tuple[str, ...] = ("ETIMEDOUT",)) -> dict[str, Any]:
    """Wait for the reader of last words: all must have arrived, and each connection ended in time."""
    said = json.loads(heard.wait(120 * pair.slow).out)
    check(said["right"] and said["got"] == LAST_WORDS, f"the last words: {said}")
    check(said["end"] in ends, f"the end after the last words: {said}")
    check(said["idle"] in (*ends, "EHOSTUNREACH"), f"the end of the idle connection: {said}")
    check(said["hasty"] in ends, f"the end of the connection with TCP_USER_TIMEOUT: {said}")
    check(max(said["after"].values()) < IN_TIME * pair.slow, f"a connection ended late: {said}")
    return said


@contextlib.contextmanager
def paused_peer(pair: Pair, peer: VM) -> Iterator[None]:
    """Have a member stand still; the block runs once the first VM has noticed."""
    with peer.paused():
        wait_for(lambda: not members(pair.a) & {peer.ip4, peer.ip6}, "it is unresponsive", 20)
        wait_for(lambda: not connections_with(pair.a, peer), "its streams are TCP's", 20 * pair.slow)
        yield
