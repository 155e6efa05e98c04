# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A peer's machine stands still for a while."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hallway_lab.vm import VM
from hallway_tests.doomed import paused_peer, prepare_last_words
from hallway_tests.guests import AT_ONCE, Delta, Stream, autopsy, connections, wait_members
from hallway_tests.pair import Pair
from hallway_tests.streams import one_way
from hallway_tests.suite import wait_for

pytestmark = pytest.mark.xdist_group("e2e-peers")

NEVER = 2**31 - 1  # bytes, and milliseconds, that no connection here reaches


@pytest.mark.xen
@pytest.mark.slow_on("6.12")
def test_peer_unresponsive(pair: Pair) -> None:
    """Streams with an unresponsive peer are demoted to TCP, and promoted again once it responds."""
    pair.load(**AT_ONCE)
    delta = Delta(*pair.both)
    stream = Stream(pair.b, pair.a, conns=6)
    pair.wait_on_rings(6)
    with paused_peer(pair, pair.b):
        assert delta.of(pair.a)["tx_demoted"] >= 6
    stream.check_running("with its peer stopped")
    wait_members(*pair.both)
    pair.wait_on_rings(6)
    stream.stop()
    stream.finish(60 * pair.slow)
    pair.check_counters(delta, stopped=True)


@pytest.mark.xen
@pytest.mark.slow_on("6.12")
def test_peer_unresponsive_before_tcp(pair: Pair) -> None:
    """A peer stops before TCP has delivered the bytes below its ring's start mark: later all bytes arrive."""
    pair.load(promote_bytes=NEVER, promote_ms=NEVER)
    delta = Delta(*pair.both)

    def written(ring: int) -> bool:
        shown = connections(pair.b)
        return len(shown) == 1 and shown[0]["tx"]["ring_bytes" if ring else "tcp_bytes"] > 0

    # The writer must not block: it would not learn of the ring.
    with autopsy(*pair.both), one_way(pair.b, pair.a, 20 * pair.slow, most=200, pause=0.001):
        wait_for(lambda: written(0), "bytes go over TCP", 20 * pair.slow)
        with _losing_packets(pair.b, pair.a):
            for name in ("bytes", "ms"):
                pair.b.put("0", f"/sys/module/hallway/parameters/promote_{name}")
            wait_for(lambda: written(1), "bytes go into a ring, behind TCP's", 20 * pair.slow)
            with paused_peer(pair, pair.b):
                assert not delta.of(pair.a)["rx_bytes_ring"]
        wait_members(*pair.both)
        pair.wait_read_from_rings(1)
    pair.check_counters(delta, stopped=True)


@contextlib.contextmanager
def _losing_packets(sender: VM, receiver: VM) -> Iterator[None]:
    """Have packets from one VM to another lost; rings and messages need none."""
    nowhere = "02:00:00:00:00:01"
    sender.run(f"ip neigh replace {receiver.ip4} lladdr {nowhere} dev eth0 nud permanent")
    try:
        yield
    finally:
        sender.run(f"ip neigh del {receiver.ip4} dev eth0")


@pytest.mark.slow_on("6.1")
def test_unplug_from_unresponsive(pair: Pair) -> None:
    """A region whose peer stands still is unplugged: the VM gives it time to read, and stays alive itself."""
    pair.load(**AT_ONCE)
    region = pair.site.daemon.region
    heard, said = prepare_last_words(pair)
    with pair.b.paused():
        with ThreadPoolExecutor(1) as pool:
            unplug = pool.submit(pair.a.unplug, region.id, 60 * pair.slow)
            began = time.monotonic()
            looks = []
            while (member := pair.member(pair.a))["liveness"] != "absent":
                looks.append(member["liveness"])
            lived = time.monotonic() - began
            unplug.result()
        assert lived > 4, "the peer got no time to read"
        # On a busy machine it may stand still for a moment.
        assert looks[-1] in ("alive", "joining"), looks
        assert looks.count("silent") < len(looks) / 4, looks
    for job in (heard, said):
        job.kill(9)
    pair.b.run("rm /tmp/say /tmp/said")
    pair.a.plug(region)
    wait_members(*pair.both)
