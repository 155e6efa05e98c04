# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Each call that sends or receives, between two VMs."""

from __future__ import annotations

import pytest
from hallway_tests.guests import AT_ONCE, Delta, Stream, autopsy, connections, jobs_end, wait_listening
from hallway_tests.pair import Pair
from hallway_tests.suite import wait_for

pytestmark = [pytest.mark.xdist_group("e2e-streams"), pytest.mark.xen]

ENOUGH = 500_000  # bytes each way
CALLS = (
    *(("block", "write,read"), ("block", "sendmsg,recvmsg"), ("block", "more,peek")),
    *(("block", "splice-out,splice-in"), ("block", "sendfile,waitall"), ("block", "write,poll")),
    *(
        ("block", "write,trunc"),
        ("level", "write,read"),
        ("edge", "write,read"),
        ("edge", "sendmsg,splice-in"),
    ),
)  # mode of the sockets; call that sends, call that receives


@pytest.mark.slow_on("6.1")
def test_each_call(pair: Pair) -> None:
    """Each call alone moves its bytes through a ring of 4 KiB."""
    pair.load(**AT_ONCE, ring_bytes=4096, ring_bytes_max=4096)
    for mode, calls in CALLS:
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


def test_early_answer(pair: Pair) -> None:
    """A server answers and closes, with bytes unread in a ring: the answer is read, and then the reset."""
    pair.load(**AT_ONCE)
    a, b = pair.both
    hearer = b.spawn("python3 -B /hallway/guest/early.py hear 4906")
    wait_listening(b, 4906, 60 * pair.slow)
    sayer = a.spawn(f"python3 -B /hallway/guest/early.py say 4906 {b.ip4}")
    wait_for(lambda: any(one["tx"]["carrier"] % 2 for one in connections(a)), "it sends by a ring")
    delta = Delta(a, b)
    # What the server sends over TCP comes long after its word about the ring.
    b.run("tc qdisc add dev eth0 root netem delay 100ms")
    try:
        a.run("touch /tmp/send; until [ -e /tmp/sent ]; do sleep 0.01; done", timeout=60 * pair.slow)
        b.run("touch /tmp/answer")
        jobs_end(hearer)
        said = sayer.wait(60 * pair.slow)
    finally:
        b.run("tc qdisc del dev eth0 root; rm -f /tmp/answer")
        a.run("rm -f /tmp/send /tmp/sent")
    assert said.out == "no ECONNRESET\n", f"{said.out}{said.err}"
    assert delta.of(a)["tx_bytes_ring"] >= 20_000, "the request went by TCP"


def _enough(moved: dict[str, int], least: float) -> bool:
    return moved["tx_bytes_ring"] > max(least, moved["tx_bytes_tcp"])
