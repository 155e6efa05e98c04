# SPDX-License-Identifier: Apache-2.0 OR MIT
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

from . import image, isolate, paths
from .sh import LabError, run
from .topology import Daemon, describe_vm
from .vm import VM, Config

# Before 9.0 QEMU's emulation of CPUs loses writes of a guest that migrates.
QEMU = "backports"
BANDWIDTH = 4 << 30  # bytes a second: both QEMUs are on one machine
PATIENCE = 120  # seconds that a guest may take from one QEMU to the other
GROUP = """
[[group]]
name = "default"
isolation = "shared"
size = "256M"
"""


@dataclass
class Host:
    """A host: its network namespace goes by its name. Its hallwayd drives some of its VMs."""

    name: str
    daemon: Daemon
    driven: Sequence[int]

    def monitor(self, number: int) -> Path | None:
        """Return where a VM's QEMU on this host is to listen for hallwayd."""
        return _monitor(self.name, number) if number in self.driven else None

    def plug(self, vm: VM) -> None:
        """Plug the region in, if hallwayd does not."""
        if vm.config.number not in self.driven:
            vm.plug(self.daemon.region)

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


def _monitor(host: str, number: int) -> Path:
    return paths.RUN / f"{host}-vm{number}.qmp"


def _configuration(host: str, driven: Sequence[int], by_hand: Sequence[int], more: str) -> Path:
    words = GROUP
    for number in driven:
        vm = VM(number=number, monitor=_monitor(host, number))
        words += describe_vm(vm, "default", more=more.format(host=host))
    for number in by_hand:
        words += describe_vm(VM(number=number), "default")
    path = paths.RUN / f"{host}.toml"
    path.write_text(words)
    return path


@contextlib.contextmanager
def hosts(*names: str, driven: Sequence[int], by_hand: Sequence[int], more: str = "") -> Iterator[list[Host]]:
    """Run hosts of these names, each with a daemon of its own, for the length of the block.

    VMs are named by their numbers. The daemons plug regions into the driven
    VMs and migrate them; the tests do so for the others. `more` belongs to the entry of each
    driven VM, where `{host}` stands for the name of the host.
    """
    made: list[Host] = []
    try:
        for name in names:
            isolate.add_host(name)
            daemon = Daemon(host=name, config=_configuration(name, driven, by_hand, more))
            made.append(Host(name, daemon, driven))
            daemon.start()
        yield made
    finally:
        for host in made:
            host.daemon.kill(15)
            isolate.drop_host(host.name)


def migrate(vm: VM, to: Host, plugged: bool = True) -> Move:
    """By hand, have a VM's guest go on in a QEMU on another host, or a second one on its own."""
    started = time.monotonic()
    if plugged:
        vm.unplug("ring0")
    unplugged = time.monotonic()
    with arriving(vm, to) as destination:
        hurry(vm)
        vm.qmp.command("migrate", uri=address(destination))
        state = _wait_completed(vm)
    migrated = time.monotonic()
    if plugged:
        to.plug(vm)
    return Move(unplugged - started, migrated - unplugged, state["downtime"] / 1000)


def save(vm: VM, path: Path) -> None:
    """Save a guest to a file; its QEMU stands still from then on."""
    vm.unplug("ring0")
    hurry(vm)
    vm.qmp.command("migrate", uri=f"file:{path}")
    _wait_completed(vm)


def restore(vm: VM, to: Host, path: Path, after: float) -> None:
    """Have a guest that was saved go on, after a while."""
    time.sleep(after)  # that it is away is the point
    with arriving(vm, to, f"file:{path}"):
        pass
    to.plug(vm)


@contextlib.contextmanager
def arriving(vm: VM, to: Host, uri: str = "") -> Iterator[VM]:
    """Start the QEMU that a VM's guest goes on in after the block; one that fails ends it."""
    destination = arrival(vm, to, uri)
    try:
        yield destination
        _wait_running(destination)
        vm.become(destination)
    except BaseException:
        destination.stop()
        raise


def arrival(vm: VM, to: Host, uri: str = "") -> VM:
    """Start the QEMU that a VM's guest is to go on in; without a URI it comes from the one where it is."""
    monitor = to.monitor(vm.config.number)
    destination = vm.double(host=to.name, doorbell=to.daemon.socket, monitor=monitor)
    destination.start()
    try:
        destination.qmp.command("migrate-incoming", uri=uri or address(destination))
    except BaseException:
        destination.stop()
        raise
    return destination


def address(destination: VM) -> str:
    """Return where a QEMU awaits its guest."""
    return f"unix:{paths.RUN / destination.name}.{destination.config.moves}.migration"


def hurry(vm: VM, bandwidth: int = BANDWIDTH) -> None:
    """Set the bandwidth of a VM's next migrations, in bytes a second."""
    vm.qmp.command("migrate-set-parameters", max_bandwidth=bandwidth)


def _wait_completed(vm: VM) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE
    while (state := vm.qmp.command("query-migrate"))["status"] != "completed":
        if state["status"] in ("failed", "cancelled"):
            raise LabError(f"{vm.name}: migration {state['status']}: {state.get('error-desc', '')}")
        if time.monotonic() > deadline:
            vm.qmp.command("migrate_cancel")
            raise LabError(f"{vm.name}: not migrated in time: {state}")
        time.sleep(0.05)
    return state


def _wait_running(destination: VM) -> None:
    deadline = time.monotonic() + PATIENCE
    while destination.qmp.command("query-status")["status"] != "running":
        if time.monotonic() > deadline:
            raise LabError(f"{destination.name} does not go on at its destination")
        time.sleep(0.01)
