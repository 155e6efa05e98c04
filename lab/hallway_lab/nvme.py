# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A disk that one guest's kernel serves and another's uses, by NVMe over TCP."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .vm import VM

DISK = "/dev/nvme0n1"
PORT = 4420
_NQN = "nqn.2024-01.test:disk"
_SUBSYSTEM = f"/sys/kernel/config/nvmet/subsystems/{_NQN}"
_NAMESPACE = f"{_SUBSYSTEM}/namespaces/1"
_PORT = "/sys/kernel/config/nvmet/ports/1"
_SERVE = f"""
set -e
modprobe -a nvmet nvmet_tcp
mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
truncate -s 32M /tmp/disk
mkdir {_SUBSYSTEM}
echo 1 > {_SUBSYSTEM}/attr_allow_any_host
mkdir {_NAMESPACE}
echo -n /tmp/disk > {_NAMESPACE}/device_path
echo 1 > {_NAMESPACE}/buffered_io
echo 1 > {_NAMESPACE}/enable
mkdir {_PORT}
echo tcp > {_PORT}/addr_trtype
echo ipv4 > {_PORT}/addr_adrfam
echo %s > {_PORT}/addr_traddr
echo {PORT} > {_PORT}/addr_trsvcid
ln -s {_SUBSYSTEM} {_PORT}/subsystems/{_NQN}
"""
_SERVE_NO_MORE = f"""
rm -f {_PORT}/subsystems/{_NQN}
rmdir {_PORT}
echo 0 > {_NAMESPACE}/enable
rmdir {_NAMESPACE} {_SUBSYSTEM}
modprobe -r nvmet_tcp nvmet; rm -f /tmp/disk
"""
_CONNECT = f"""
set -e
modprobe nvme-tcp
echo transport=tcp,traddr=%s,trsvcid={PORT},nqn={_NQN},nr_io_queues=1 > /dev/nvme-fabrics
until [ -b {DISK} ]; do sleep 0.1; done
"""
_DISCONNECT = "echo 1 > /sys/class/nvme/nvme0/delete_controller; modprobe -r nvme-tcp"


@contextlib.contextmanager
def disk(server: VM, client: VM) -> Iterator[str]:
    """Give the client a disk of 32 MiB of the server's memory; its path."""
    try:
        server.run(_SERVE % server.ip4)
        try:
            client.run(_CONNECT % server.ip4, timeout=60)
            yield DISK
        finally:
            client.run(_DISCONNECT, check=False)
    finally:
        server.run(_SERVE_NO_MORE, check=False)
