"""Users of sockets in the guests' kernels."""

from __future__ import annotations

import pytest
from hallway_tests.guests import AT_ONCE, Delta, connections, counters, insmod, rmmod, wait_members
from hallway_tests.nfs import nfs_mount
from hallway_tests.pair import Pair, on_rings
from hallway_tests.suite import wait_for

pytestmark = pytest.mark.xdist_group("e2e-streams")

MEGABYTE = 1 << 20
WRITE = """
dd if=/dev/urandom of=/tmp/written bs=1M count=16 status=none
cp /tmp/written /mnt/file && sync /mnt/file
"""
COMPARE = "echo 3 > /proc/sys/vm/drop_caches && cmp /tmp/written /mnt/file"


@pytest.mark.not_on("debug", "the kernel has no NFS")
def test_nfs(pair: Pair) -> None:
    """NFS's client and server are promoted; files survive off, on, and unloading under a live mount."""
    pair.load(**AT_ONCE)
    delta = Delta(*pair.both)

    def copy() -> None:
        """Write a file to the server and read it back."""
        pair.a.run(WRITE, timeout=60)
        pair.a.run(COMPARE, timeout=60)

    def ringing() -> bool:
        pair.a.run("ls -l /mnt")
        return any(on_rings(c) for c in connections(pair.a))

    with nfs_mount(pair.b, pair.a):
        wait_for(ringing, "the mount is on rings both ways")
        for vm in pair.both:
            before = [counters(other)["tx_bytes_ring"] for other in pair.both]
            copy()
            for other, ringed in zip(pair.both, before, strict=True):
                moved = counters(other)["tx_bytes_ring"] - ringed
                assert moved >= 16 * MEGABYTE, f"{other.name} sent less than the file by ring"
            vm.run("hallway off")
            copy()
            vm.run("hallway on")
            wait_for(ringing, f"the mount is on rings again after off on {vm.name}")
        pair.check_counters(delta)
        for vm in pair.both:
            rmmod(vm)
            pair.a.run(COMPARE, timeout=60)
            insmod(vm, **AT_ONCE)
        wait_members(*pair.both)
        wait_for(ringing, "the mount is on rings with the module back")
        copy()
    pair.a.run("rm /tmp/written")
