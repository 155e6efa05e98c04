"""Users of sockets that live in the guests' kernels."""

from __future__ import annotations

from hallway_tests.guests import Delta, connections, counters, insmod, rmmod, wait_members
from hallway_tests.nfs import nfs_mount
from hallway_tests.pair import Pair
from hallway_tests.suite import check, wait_for

MEGABYTE = 1 << 20
CHANGE = """
dd if=/dev/urandom of=/tmp/written bs=1M count=16 status=none
cp /tmp/written /mnt/file && sync /mnt/file
"""
COMPARE = "echo 3 > /proc/sys/vm/drop_caches && cmp /tmp/written /mnt/file"


def nfs(pair: Pair) -> None:
    """NFS's client and server are promoted; files survive off, on, and the module's leaving a live mount."""
    pair.load(promote_bytes=0, promote_ms=0)
    delta = Delta(*pair.both)

    def move() -> None:
        """A file goes there and comes back."""
        pair.a.run(CHANGE, timeout=60)
        pair.a.run(COMPARE, timeout=60)

    def ringing() -> bool:
        pair.a.run("ls -l /mnt")
        return any(c["tx"]["carrier"] % 2 and c["rx"]["carrier"] % 2 for c in connections(pair.a))

    with nfs_mount(pair.b, pair.a):
        wait_for(ringing, "the mount is on rings both ways")
        for vm in pair.both:
            ringed = counters(pair.a)["tx_bytes_ring"], counters(pair.b)["tx_bytes_ring"]
            move()
            for other, before in zip(pair.both, ringed, strict=True):
                moved = counters(other)["tx_bytes_ring"] - before
                check(moved >= 16 * MEGABYTE, f"of 16 MiB, {other.name} sent {moved} bytes by ring")
            vm.run("hallway off")
            move()
            vm.run("hallway on")
            wait_for(ringing, f"the mount is on rings again after off on {vm.name}")
        pair.check_counters(delta)
        for vm in pair.both:
            rmmod(vm)
            pair.a.run(COMPARE, timeout=60)
            insmod(vm, promote_bytes=0, promote_ms=0)
        wait_members(*pair.both)
        wait_for(ringing, "the mount is on rings with the module back")
        move()
    pair.a.run("rm /tmp/written")


TESTS = (nfs,)
