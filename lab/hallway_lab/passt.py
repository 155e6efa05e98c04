# SPDX-License-Identifier: Apache-2.0 OR MIT
"""passt: a NIC of a VM whose packets a process of the host turns into calls of its own sockets.

It is another way out of a VM without a bridge, to be compared with.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping

from . import paths, provision
from .sh import LabError, run
from .vm import VM

SOCKET = paths.RUN / "passt/socket"
GUEST, GATEWAY = "10.79.0.2", "10.79.0.1"
USER = "nobody"  # passt's without root
MTU = 65520  # passt's own
# What QEMU needs for the NIC: it is the guest's second one.
NIC = [
    *("-netdev", f"stream,id=passt,server=off,addr.type=unix,addr.path={SOCKET}"),
    *("-device", "virtio-net-pci,netdev=passt,mac=52:54:00:79:00:01,romfile="),
]


def prepare() -> None:
    """Install it if it is missing, while there is a network."""
    provision.need("passt")


@contextlib.contextmanager
def running(interface: str, ports: Mapping[int, int]) -> Iterator[None]:
    """Run it in the block; `ports` of the host are those of the guest. QEMU starts within."""
    log = paths.out("vm", "passt.log")
    words = ["passt", "--foreground", "--stderr", "-4", "-i", interface, "-s", SOCKET]
    words += ["-a", GUEST, "-n", "24", "-g", GATEWAY]
    words += ["-t", ",".join(f"{host}:{guest}" for host, guest in ports.items())]
    SOCKET.parent.mkdir(parents=True, exist_ok=True)
    shutil.chown(SOCKET.parent, USER)
    with (
        open(log, "wb") as said,
        subprocess.Popen(list(map(str, words)), stdout=said, stderr=said) as process,
    ):
        try:
            deadline = time.monotonic() + 10
            while not _listens():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise LabError(f"passt does not listen:\n{log.read_text()[-2000:]}")
                time.sleep(0.05)
            yield
        finally:
            process.kill()


def _listens() -> bool:
    return str(SOCKET) in run(["ss", "-Hlx"])


def set_up(vm: VM) -> None:
    """Give the guest's second NIC its address."""
    vm.run(f"ip link set eth1 mtu {MTU} up && ip addr add {GUEST}/24 dev eth1")


@contextlib.contextmanager
def routed(vm: VM, address: str) -> Iterator[None]:
    """Have the guest reach that address by its second NIC in the block."""
    vm.run(f"ip route add {address} via {GATEWAY} dev eth1")
    try:
        yield
    finally:
        vm.run(f"ip route del {address} via {GATEWAY} dev eth1")
