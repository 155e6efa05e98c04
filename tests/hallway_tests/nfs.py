# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A folder that one guest's kernel serves and another's mounts, by NFS 4.2."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from hallway_lab.vm import VM

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


@contextlib.contextmanager
def nfs_mount(server: VM, client: VM) -> Iterator[None]:
    """Mount a folder of the server's on the client's /mnt."""
    try:
        server.run(SERVE)
        client.run(f"mount -t nfs4 -o vers=4.2,soft,timeo=100,retrans=1 {server.ip4}:/ /mnt")
        try:
            yield
        finally:
            client.run("umount -f -l /mnt")
    finally:
        server.run(SERVE_NO_MORE, check=False)
