"""Several hosts, and VMs that migrate between them.

A host is a network namespace with its own bridge and its own hallwayd; wires
join the bridges, so that a VM keeps its addresses wherever it is. All hosts see
one file system: a VM's disk, a layer of its own over the root image, is there
for the QEMU that it leaves and the one that it comes to, as on shared storage.

QEMU does not let a guest go that has one of the host's folders mounted: what
such a VM needs of /hallway has to be on its own disk by then.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import emulator, image, isolate, paths, topology
from .sh import LabError, run
from .topology import Daemon
from .vm import VM, Config

# Before 9.0 QEMU's emulation of CPUs loses writes of a guest that migrates.
QEMU = "backports"
BANDWIDTH = 4 << 30  # bytes a second: both QEMUs are on one machine
GROUP = """
[[group]]
name = "default"
isolation = "shared"
size = "256M"
"""
MACHINE = """
[[vm]]
name = "{vm.name}"
uuid = "{vm.uuid}"
monitor = "{monitor}"
groups = ["default"]
"""


class NotMoved(LabError):
    """A migration failed or was cancelled; the VM runs on where it was."""


@dataclass
class Host:
    """A host: its network namespace goes by its name."""

    name: str
    daemon: Daemon

    def monitor(self, number: int) -> Path | None:
        """Return where a VM's QEMU on this host is to listen for hallwayd."""
        return _monitor(self.name, number) if self.daemon.configured else None

    def vm(self, number: int, kernel: str, **options: Any) -> VM:
        """Describe a VM that begins its life on this host."""
        options |= {"host": self.name, "doorbell": self.daemon.socket, "qemu": QEMU}
        options |= {"monitor": self.monitor(number)}
        config = Config(number=number, kernel=kernel, **options)
        folder = Path(os.environ["TMPDIR"])
        config.disk = folder / f"vm{number}.qcow2"
        base = image.root_image(config.image)
        run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", base, config.disk])
        return VM(config)


@dataclass(frozen=True)
class Move:
    """How a migration went: what QEMU says of it, and when the parts of it ended."""

    unplugged: float  # seconds until the region was out of the guest
    migrated: float  # seconds until the guest ran at the destination
    downtime: float  # seconds for which it stood still, as its QEMU counts


def prepare(kernel_name: str) -> None:
    """Fetch and build all that VMs need that migrate, before the network is cut off."""
    topology.prepare(kernel_name)
    emulator.emulator(QEMU)


def _monitor(host: str, number: int) -> Path:
    return paths.RUN / f"{host}-vm{number}.qmp"


def _configuration(host: str, numbers: Sequence[int]) -> Path:
    machines = [MACHINE.format(vm=VM(number=n), monitor=_monitor(host, n)) for n in numbers]
    path = paths.RUN / f"{host}.toml"
    path.write_text(GROUP + "".join(machines))
    return path


@contextlib.contextmanager
def hosts(*names: str, configured: Sequence[int] = ()) -> Iterator[list[Host]]:
    """Run so many hosts, each with a daemon of its own, for the length of the block.

    If VMs are named by their numbers, the daemons plug in their regions by configuration.
    """
    made: list[Host] = []
    try:
        for name in names:
            isolate.add_host(name)
            config = _configuration(name, configured) if configured else None
            made.append(Host(name, Daemon(host=name, config=config)))
            made[-1].daemon.start()
        yield made
    finally:
        for host in made:
            host.daemon.kill(15)
            isolate.drop_host(host.name)


def migrate(vm: VM, to: Host, plugged: bool = True) -> Move:
    """Have a VM's guest go on in a QEMU on another host, or a second one on its own."""
    started = time.monotonic()
    if plugged:
        vm.unplug("ring0")
    unplugged = time.monotonic()
    destination = arrival(vm, to)
    try:
        begin(vm, destination)
        told = end(vm, destination)
        vm.become(destination)
    except BaseException:
        destination.stop()
        raise
    migrated = time.monotonic()
    if plugged:
        vm.plug(to.daemon.region)
    return Move(unplugged - started, migrated - unplugged, told["downtime"] / 1000)


def arrival(vm: VM, to: Host) -> VM:
    """Start the QEMU that a VM's guest is to go on in."""
    monitor = to.monitor(vm.config.number)
    destination = vm.double(host=to.name, doorbell=to.daemon.socket, monitor=monitor)
    destination.start()
    try:
        destination.qmp.command("migrate-incoming", uri=address(destination))
    except BaseException:
        destination.stop()
        raise
    return destination


def address(destination: VM) -> str:
    """Return where a QEMU awaits its guest."""
    return f"unix:{paths.RUN / destination.name}.{destination.config.moves}.migration"


def begin(vm: VM, destination: VM, bandwidth: int = BANDWIDTH) -> None:
    """Begin to migrate."""
    vm.qmp.command("migrate-set-parameters", max_bandwidth=bandwidth)
    vm.qmp.command("migrate", uri=address(destination))


def end(vm: VM, destination: VM, timeout: float = 120) -> dict[str, Any]:
    """Wait for the end of a migration; returns what QEMU says of it."""
    deadline = time.monotonic() + timeout
    told = _wait_completed(vm, deadline)
    _wait_running(destination, deadline)
    return told


def _wait_completed(vm: VM, deadline: float) -> dict[str, Any]:
    while (told := vm.qmp.command("query-migrate"))["status"] != "completed":
        if told["status"] in ("failed", "cancelled"):
            raise NotMoved(f"{vm.name}: migration {told['status']}: {told.get('error-desc', '')}")
        if time.monotonic() > deadline:
            vm.qmp.command("migrate_cancel")
            raise NotMoved(f"{vm.name}: not migrated in time: {told}")
        time.sleep(0.05)
    return told


def _wait_running(destination: VM, deadline: float) -> None:
    while destination.qmp.command("query-status")["status"] != "running":
        if time.monotonic() > deadline:
            raise LabError(f"{destination.name} does not go on at its destination")
        time.sleep(0.01)
