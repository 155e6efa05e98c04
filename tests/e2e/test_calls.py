"""Each call that sends or receives, between two VMs."""

from __future__ import annotations

import pytest
from hallway_tests.guests import AT_ONCE, Delta, Stream, autopsy
from hallway_tests.pair import Pair
from hallway_tests.suite import wait_for

pytestmark = pytest.mark.xdist_group("e2e-streams")

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


def _enough(moved: dict[str, int], least: float) -> bool:
    return moved["tx_bytes_ring"] > max(least, moved["tx_bytes_tcp"])
