# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A host as its users have it, in a VM: libvirt and QEMU under their own users, and AppArmor."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hallway_lab import image, kernels, paths, verdict
from hallway_lab.virthost import ANOTHER, NUMBER, VirtHost
from hallway_lab.vm import VMError

from . import hello
from .guests import healthy
from .packages import DEBS, ROLE
from .pair import name_logs
from .suite import GuestLost, wait_for

NAMES = ("web1", "web2")  # of domains whose CPUs are stopped
GUESTS = ("app1", "app2")  # of domains that run
PATIENCE = 120  # seconds
# As virt-install makes them.
INSTALL = (
    *("virt-install", "--print-xml", "--import", "--osinfo", "debian11", "--virt-type", "qemu"),
    *("--memory", "192", "--vcpus", "1,maxvcpus=2", "--graphics", "vnc"),
)
BRIDGE = "lan"
# libvirtd then takes guests of any host: none but those of this test are in the network.
ANY = 'auth_tcp = "none"'
LISTEN = (
    f"sed -i '$ a {ANY}' /etc/libvirt/libvirtd.conf"
    "; systemctl stop libvirtd; systemctl start libvirtd-tcp.socket libvirtd"
)
LISTEN_NO_MORE = (
    f"sed -i '/^{ANY}$/d' /etc/libvirt/libvirtd.conf"
    "; systemctl stop libvirtd libvirtd-tcp.socket; systemctl start libvirtd"
)
IMAGES = "/var/lib/libvirt/images"
# What a guest needs to reach the other one.
MODULES = ["virtio_pci", "virtio_net"]
INIT = Path(__file__).with_name("guest") / "confined-init"
SITE = "/etc/apparmor.d/local/abstractions/libvirt-qemu"


def _serial_log(name: str) -> str:
    return f"/var/log/libvirt/qemu/{name}-serial.log"


@dataclass
class Confined:
    """The host, with what tests do to it and ask of it."""

    host: VirtHost
    defined: dict[str, str] = field(default_factory=dict)  # their XML before Hallway changed it

    def define_stopped(self, name: str) -> None:
        """Have libvirt know a domain with an empty disk."""
        disk = f"{IMAGES}/{name}.img"
        self.host.call("truncate", "--size=16M", disk)
        self._define(name, "--disk", disk, "--network", "none")
        self.defined[name] = self.xml(name)

    def define_guest(self, name: str, own: str, peer: str) -> None:
        """Have libvirt know a domain that sends to a peer, by these addresses."""
        self._lay_out(name)
        boot = f"kernel={IMAGES}/vmlinuz,initrd={IMAGES}/guest.cpio"
        words = f"console=ttyS0 net.ifnames=0 no_timer_check own={own} peer={peer}"
        serial = f"file,path={_serial_log(name)}"
        self._define(
            name,
            *("--boot", f"{boot},kernel_args='{words}'", "--serial", serial),
            # libvirt makes no snapshot of a VM without a disk of its own.
            *("--disk", f"{IMAGES}/{name}.qcow2,size=0.02,format=qcow2,bus=virtio"),
            *("--network", f"bridge={BRIDGE},model=virtio"),
        )

    def _lay_out(self, name: str) -> None:
        """Have what a guest boots, and its disk."""
        self.host.run(f"cp /hallway/vmlinuz /hallway/guest.cpio {IMAGES}")
        self.host.call("qemu-img", "create", "-q", "-f", "qcow2", f"{IMAGES}/{name}.qcow2", "16M")

    @contextlib.contextmanager
    def bridged(self) -> Iterator[None]:
        """Have the guests' network for the length of the block; another host is in it, too."""
        self.host.run(
            f"modprobe -a bridge tun; ip link add {BRIDGE} type bridge; ip link set {BRIDGE} up; "
            f"ip link set eth0 up master {BRIDGE}; ip addr add {self._address}/24 dev {BRIDGE}"
        )
        try:
            yield
        finally:
            self.host.run(f"ip link del {BRIDGE}")

    def judge_guest(self, name: str) -> None:
        """Fail if a guest's kernel complained."""
        said = self.console(name)
        health = verdict.scan(said)
        if not (said.strip() and health.ok):
            raise GuestLost(f"{name}'s kernel complained, or said nothing: {health}")

    def console(self, name: str) -> str:
        """Return what a guest's kernel has said in the QEMU that runs it here, or was the last to."""
        return self.host.get(_serial_log(name))

    def _define(self, name: str, *words: str) -> None:
        self.define(name, self.host.call(*INSTALL, "--name", name, *words))

    def define(self, name: str, xml: str) -> None:
        """Define a domain."""
        self.host.put(xml, f"/root/{name}.xml")
        self.host.virsh("define", f"/root/{name}.xml")

    @property
    def _address(self) -> str:
        return f"10.9.0.{100 + self.host.config.number}"

    def await_guest(self, name: str, xml: str) -> None:
        """Prepare for a guest that migrates here, as docs/migration.md says."""
        self._lay_out(name)
        self.define(name, xml)
        self.host.call("hallway", "enable", name)

    def migrate(self, name: str, to: Confined) -> None:
        """Migrate a guest that runs here to another host, by libvirt's own command.

        It stands still meanwhile: docs/migration.md says why.
        """
        words = ("--persistent", "--unsafe", "--migrateuri", f"tcp://{to._address}")
        there = f"qemu+tcp://{to._address}/system"
        self.host.call("hallway", "release", name, "--", "virsh", "migrate", *words, name, there)

    def forwarded(self) -> int:
        """Return the bytes that guests have sent by their network devices, of those that run here."""
        said = self.host.run("cat /sys/class/net/vnet*/statistics/rx_bytes").out
        return sum(int(line) for line in said.split())

    def xml(self, name: str) -> str:
        """Return what libvirt has of a domain for its next start."""
        return self.host.virsh("dumpxml", "--inactive", name)

    def uuid(self, name: str) -> str:
        """Return the UUID of a domain."""
        return self.host.virsh("domuuid", name).strip()

    def state(self, name: str) -> str:
        """Return libvirt's word for what a domain does."""
        return self.host.virsh("domstate", name).strip()

    def qemu(self, name: str) -> int:
        """Return the process of a domain that runs."""
        return int(self.host.get(f"/run/libvirt/qemu/{name}.pid"))

    def label(self, pid: int) -> str:
        """Return AppArmor's profile of a process, and its mode."""
        return self.host.get(f"/proc/{pid}/attr/apparmor/current").strip()

    def user(self, pid: int) -> str:
        """Return the user of a process."""
        return self.host.call("stat", "-c", "%U", f"/proc/{pid}").strip()

    def begin(self, name: str) -> None:
        """Start a domain with stopped CPUs."""
        self.host.virsh("start", "--paused", name)

    def join(self, name: str) -> None:
        """Do what the module in a domain does when it starts, and wait for its ring memory."""
        pid = self.qemu(name)
        self.host.call("python3", "/hallway/hello.py", pid, self.uuid(name))
        wait_for(lambda: self._has_memory(name), f"{name} has ring memory", PATIENCE)
        assert "ivshmem-plain" in self.monitor(name, "info qtree"), f"{name}: no device"

    def _has_memory(self, name: str) -> bool:
        return any(plug["plugged"] for plug in self.machine(name)["plugs"])

    def monitor(self, name: str, command: str) -> str:
        """Have QEMU's monitor do something; return what it says."""
        return self.host.virsh("qemu-monitor-command", name, "--hmp", command)

    def machine(self, name: str) -> dict[str, Any]:
        """Return what hallwayd says of a domain."""
        machines = json.loads(self.host.call("hallway", "status", "--json"))["machines"]
        return next(machine for machine in machines if machine["name"] == name)

    def carried(self) -> list[tuple[int, int]]:
        """Return what each guest sent and received through rings, in bytes."""
        regions = json.loads(self.host.call("hallway", "status", "--json"))["regions"]
        members = [member for region in regions for member in region["members"]]
        alive = [one for one in members if not one["host"] and one["liveness"] == "alive"]
        return [(member["tx_bytes"], member["rx_bytes"]) for member in alive]

    def denials(self) -> list[str]:
        """Return what AppArmor has denied to QEMUs, and to Hallway, since the boot."""
        said = self.host.call("journalctl", "--boot", "--dmesg", "--output=cat", "--no-pager")
        lines = [line for line in said.splitlines() if 'apparmor="DENIED"' in line]
        return [line for line in lines if re.search(r'"libvirt-[0-9a-f]|hallway', line)]

    def doctor(self) -> str:
        """Return what the doctor says."""
        return self.host.run("hallway doctor", timeout=PATIENCE, check=False).out

    def healthy(self) -> None:
        """Fail if the host's kernel complained."""
        healthy(self.host)

    def sweep(self) -> None:
        """Have all domains stopped and disabled, and those of guests gone."""
        for name in (*NAMES, *GUESTS):
            for words in (["virsh", "destroy", name], ["hallway", "disable", name]):
                with contextlib.suppress(VMError):
                    self.host.call(*words)
        for name in GUESTS:
            with contextlib.suppress(VMError):
                self.host.virsh("undefine", "--snapshots-metadata", name)


def lay_out(number: int, kernel: str, module: Path) -> Path:
    """Lay out what a host sees: the package, a guest's request, and what a guest boots."""
    folder = paths.out("confined", kernel, str(number), "x").parent
    shutil.rmtree(folder)
    folder.mkdir()
    (package,) = DEBS.glob("hallway-host_*.deb")
    for source in (package, Path(hello.__file__)):
        shutil.copy(source, folder)
    shutil.copytree(ROLE, folder / ROLE.name)
    chosen = kernels.kernel(kernel)
    shutil.copy(chosen.vmlinuz, folder / "vmlinuz")
    modules = [*kernels.module_order(chosen, MODULES), module]
    image.build_initramfs(folder / "guest.cpio", [INIT], modules)
    return folder


@contextlib.contextmanager
def booted(kernel: str, share: Path, logs: Path) -> Iterator[Confined]:
    """Boot the host; libvirt knows two domains."""
    with _installed(NUMBER, kernel, share, logs) as confined:
        for name in NAMES:
            confined.define_stopped(name)
        yield confined


@contextlib.contextmanager
def _installed(number: int, kernel: str, share: Path, logs: Path) -> Iterator[Confined]:
    """Boot a host, and install the package."""
    host = VirtHost(kernel, lay_out(number, kernel, share / "hallway.ko"), number)
    name_logs(host, logs)
    with host:
        host.run("apt-get install -y --no-install-recommends /hallway/hallway-host_*.deb", timeout=300)
        yield Confined(host)


@contextlib.contextmanager
def two_hosts(here: Confined, kernel: str, share: Path) -> Iterator[Confined]:
    """Boot another host for the block; guests can migrate between the two."""
    with _installed(ANOTHER, kernel, share, here.host.log.parent) as there, there.bridged():
        for host in (here.host, there.host):
            host.run(LISTEN, timeout=PATIENCE)
        try:
            yield there
        finally:
            here.host.run(LISTEN_NO_MORE, timeout=PATIENCE)
