# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What every program finds: two VMs, files that the other side wants, servers for a while.

The folder /data is a tmpfs in both VMs. It has random bytes of each VM's own
in `large` and `small`, and a folder `incoming` that everyone may write to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from hallway_lab import programs
from hallway_lab.sh import LabError
from hallway_lab.vm import VM

IMAGE, MEMORY_MIB = "programs", 2048  # of the VMs
MIB = 1 << 20
SIZES = {"large": 32 * MIB, "small": MIB}
LARGE, SMALL = SIZES["large"], SIZES["small"]


class Vms:
    """Two VMs: the client calls, the server answers.

    Each has an address at which the other reaches it: its own, or that of a host that publishes its ports.
    """

    def __init__(self, client: VM, server: VM, host: str = "") -> None:
        self.client, self.server = client, server
        self.client_address, self.server_address = host or client.ip4, host or server.ip4
        self._digests: dict[tuple[VM, str], str] = {}
        for vm in (client, server):
            vm.run("mkdir -p /data && mount -t tmpfs -o mode=755 tmpfs /data && mkdir -m 1777 /data/incoming")
            for name, size in SIZES.items():
                vm.run(f"head -c {size} /dev/urandom > /data/{name}")
                self._digests[vm, name] = _digest(vm, f"/data/{name}")

    def close(self) -> None:
        """Leave nothing in the VMs."""
        for vm in (self.client, self.server):
            vm.run("umount /data")

    def fetched(self, path: str, name: str = "large") -> None:
        """Check that the client has the server's file at `path`, and remove it there."""
        self._check_arrived(self.client, path, self._digests[self.server, name])

    def stored(self, path: str) -> None:
        """Check that the server has the client's large file at `path`, and remove it there."""
        self._check_arrived(self.server, path, self._digests[self.client, "large"])

    def returned(self, path: str) -> None:
        """Check that the client has its own large file again at `path`, and remove it there."""
        self._check_arrived(self.client, path, self._digests[self.client, "large"])

    def _check_arrived(self, vm: VM, path: str, wanted: str) -> None:
        came, size = (
            vm.run(f"sha256sum < {path} && stat -c %s {path} && rm {path}").out.replace("-", "").split()
        )
        if came != wanted:
            raise LabError(f"{vm.name}:{path} is not what was sent: SHA-256 {came}, {size} bytes")

    def call(self, command: str, timeout: float = 120) -> str:
        """Run a command on the client and return what it printed."""
        return self.client.run(command, timeout=timeout).out

    @contextlib.contextmanager
    def serving(self, command: str, port: int, vm: VM | None = None, timeout: float = 60) -> Iterator[None]:
        """Run a server for the length of the block, by default in the server's VM."""
        where = vm or self.server
        with grouped(where, f"port-{port}") as joined:
            programs.serve(where, f"{joined}; {command}", port, timeout)
            yield


@contextlib.contextmanager
def grouped(vm: VM, name: str) -> Iterator[str]:
    """Give a shell command that joins a cgroup; its processes are killed at the end of the block."""
    group = f"/sys/fs/cgroup/{name}"
    vm.run(f"mkdir {group}")
    try:
        yield f"echo $$ > {group}/cgroup.procs"
    finally:
        emptied = f"until grep -q 'populated 0' {group}/cgroup.events; do sleep 0.05; done"
        vm.run(f"echo 1 > {group}/cgroup.kill; {emptied}; rmdir {group}")


@dataclass(frozen=True)
class Payload:
    """Bytes that a use of a program is known to move each way, at the least."""

    up: int = 0  # client to server
    down: int = 0


@dataclass(frozen=True)
class Program:
    """A program, how its server is started, how it is used and checked."""

    key: str
    title: str
    done: str  # what is done, in the table's words
    use: Callable[[Vms], Payload]
    serve: Callable[[Vms], AbstractContextManager[object]] = contextlib.nullcontext
    xway: str = ""  # its name in the paper's table
    pause_ms: int = 100  # the longest between two switches


def _digest(vm: VM, path: str) -> str:
    return vm.run(f"sha256sum {path}", timeout=120).out.split()[0]
