"""Users of sockets that live in the guests' kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from hallway_lab.vm import VM
from hallway_tests.guests import Delta, connections, counters, insmod, rmmod, wait_members
from hallway_tests.suite import check, wait_for

from .lab import Pair
from .streams import nothing_odd

MEGABYTE = 1 << 20
SERVE = """
set -e
mkdir -p /srv/nfs && mount -t tmpfs -o size=64m tmpfs /srv/nfs
modprobe nfsd && mount -t nfsd nfsd /proc/fs/nfsd
mkdir -p /var/lib/nfs/rpc_pipefs /var/lib/nfs/v4recovery
mount -t rpc_pipefs rpc_pipefs /var/lib/nfs/rpc_pipefs
echo '/srv/nfs *(rw,no_root_squash,fsid=0,no_subtree_check)' > /etc/exports
rpc.mountd -N 2 -N 3
exportfs -ra
rpc.nfsd -N 3 2
"""
SERVE_NO_MORE = """
rpc.nfsd 0; exportfs -ua; pkill -x rpc.mountd
umount /var/lib/nfs/rpc_pipefs; umount /proc/fs/nfsd; umount /srv/nfs
"""
CHANGE = """
dd if=/dev/urandom of=/tmp/written bs=1M count=16 status=none
cp /tmp/written /mnt/file && sync /mnt/file
"""
COMPARE = "echo 3 > /proc/sys/vm/drop_caches && cmp /tmp/written /mnt/file"


@contextlib.contextmanager
def nfs_mount(server: VM, client: VM) -> Iterator[None]:
    """Mount a folder of the server's on the client's /mnt."""
    try:
        server.run(SERVE)
        client.run(f"mount -t nfs4 -o vers=4.2,soft,timeo=100,retrans=1 {server.ip4}:/ /mnt")
        try:
            yield
        finally:
            client.run("umount -f -l /mnt; rm -f /tmp/written")
    finally:
        server.run(SERVE_NO_MORE, check=False)


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
        nothing_odd(pair, delta)
        for vm in pair.both:
            rmmod(vm)
            pair.a.run(COMPARE, timeout=60)
            insmod(vm, promote_bytes=0, promote_ms=0)
        wait_members(*pair.both)
        wait_for(ringing, "the mount is on rings with the module back")
        move()


TESTS = (nfs,)
