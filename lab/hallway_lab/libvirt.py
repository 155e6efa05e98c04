# SPDX-License-Identifier: Apache-2.0 OR MIT
"""libvirt in the lab: libvirtds of its own, each of which is a host's, and a VM that they run.

A daemon finds private folders in place of the machine's, and a name of its own,
so that neither knows of the machine's or of another one, but by the socket that a
migration is given. libvirt has the VM's machine and its shared memory; the rest
reaches QEMU as in any other VM of the lab, by the command line.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from xml.sax.saxutils import quoteattr

from . import isolate, paths, provision
from .sh import LabError, run
from .vm import VM

PACKAGES = ("libvirt-daemon", "libvirt-daemon-driver-qemu", "libvirt-clients", "virtinst")
FOLDERS = {
    "etc": "/etc/libvirt",
    "lib": "/var/lib/libvirt",
    "log": "/var/log/libvirt",
    "cache": "/var/cache/libvirt",
    "run": "/run/libvirt",
}
CONFIGURATION = {
    "qemu.conf": 'user = "root"\ngroup = "root"\nsecurity_driver = "none"\nnamespaces = []\n'
    'stdio_handler = "file"\ncgroup_controllers = []\nremember_owner = 0\n',
    "libvirtd.conf": 'unix_sock_group = "root"\nauth_unix_rw = "none"\nhost_uuid = "{uuid}"\n',
}
PID_FILE = "/run/libvirt/libvirtd.pid"  # by default it is outside of all folders
NAMESPACE = "http://libvirt.org/schemas/domain/qemu/1.0"
USER = "libvirt-qemu"  # libvirt looks for it even where another one is configured
PATIENCE = 60  # seconds
URI_VARIABLE = "LIBVIRT_DEFAULT_URI"
# Where the lab's own devices, which QEMU places from below, never come near.
FIRST_SLOT = 0x10
SLOTS = {"ivshmem-doorbell": "0x1c", "ivshmem-plain": "0x1d"}
DOMAIN = """
<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>{vm.name}</name>
  <uuid>{vm.uuid}</uuid>
  <memory unit='MiB'>{vm.config.memory_mib}</memory>
  <vcpu current='{vm.config.cpus}'>{vcpus}</vcpu>
  <os><type arch='x86_64' machine='pc'>hvm</type></os>
  <features><acpi/></features>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
    {doorbell}
  </devices>
  <qemu:commandline>
    {words}
  </qemu:commandline>
</domain>
"""


def prepare() -> None:
    """Install what is missing, while there is a network."""
    provision.need(*PACKAGES)


@dataclass(frozen=True)
class Libvirt:
    """A libvirtd that runs. It sees what is in its folder at libvirt's places."""

    name: str

    @property
    def folder(self) -> Path:
        """Where all of it is."""
        return paths.RUN / f"libvirt-{self.name}"

    @property
    def uri(self) -> str:
        """By which another one, and virsh, find it."""
        return f"qemu+unix:///system?socket={self.folder}/run/libvirt-sock"

    def virsh(self, *words: str | Path, check: bool = True) -> str:
        """Have virsh do something; return what it says."""
        return run(self.command(*words), check=check)

    def enter(self) -> list[str | Path]:
        """Return the words before those of a program that is to find this one, and its QEMUs."""
        own, place = self.folder / "run/qemu", Path(FOLDERS["run"], "qemu")
        for path in (own, place):
            path.mkdir(parents=True, exist_ok=True)
        then = f'{shlex.join(["mount", "--bind", str(own), str(place)])}; exec "$@"'
        return ["env", f"{URI_VARIABLE}={self.uri}", "unshare", "--mount", "sh", "-ec", then, "enter"]

    def answers(self) -> bool:
        """Tell whether it does."""
        return subprocess.run(self.command("version"), capture_output=True, check=False).returncode == 0

    def command(self, *words: str | Path) -> list[str | Path]:
        """Return the words by which virsh does something."""
        return ["virsh", "--quiet", "--connect", self.uri, *words]


@contextlib.contextmanager
def running(name: str, hooks: Mapping[str, str] = MappingProxyType({})) -> Iterator[Libvirt]:
    """Run a libvirtd, with scripts of these names as QEMU's hooks, for the length of the block."""
    isolate.need_private()
    made = Libvirt(name)
    mounts = {made.folder / own: place for own, place in FOLDERS.items()}
    for own, place in mounts.items():
        own.mkdir(parents=True)
        Path(place).mkdir(parents=True, exist_ok=True)
    etc = made.folder / "etc"
    for file, text in CONFIGURATION.items():
        (etc / file).write_text(text.replace("{uuid}", str(uuid.uuid4())))
    folder = etc / "hooks/qemu.d"
    folder.mkdir(parents=True)
    for hook, text in hooks.items():
        (folder / hook).write_text(text)
        (folder / hook).chmod(0o755)
    for file, line in (("passwd", f"{USER}:x:64055:64055::/:/bin/false"), ("group", f"{USER}:x:64055:")):
        copy = made.folder / file
        copy.write_text(Path("/etc", file).read_text() + line + "\n")
        mounts[copy] = f"/etc/{file}"
    if Path("/dev/kvm").exists():
        mounts[Path("/dev/null")] = "/dev/kvm"  # libvirt would have each QEMU try it
    steps = [f"hostname {name}", *(f"mount --bind {own} {place}" for own, place in mounts.items())]
    reaper = Path(__file__).with_name("reaper.py")
    steps.append(f"exec {shlex.join([sys.executable, str(reaper), 'libvirtd', '--pid-file', PID_FILE])}")
    log = paths.out("vm", f"libvirtd-{name}.log")
    with open(log, "wb") as said:
        words = ["unshare", "--mount", "--uts", "sh", "-ec", "\n".join(steps)]
        daemon = subprocess.Popen(words, stdout=said, stderr=said, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE
        while not made.answers():
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise LabError(f"libvirtd does not answer ({log}):\n{log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield made
    finally:
        daemon.kill()
        daemon.wait()
        shutil.rmtree(made.folder, ignore_errors=True)


class _Qemu:
    """The process that libvirt began, as the lab's VMs want their own."""

    def __init__(self, libvirt: Libvirt, name: str) -> None:
        self._libvirt, self._name = libvirt, name
        self.pid = int((libvirt.folder / f"run/qemu/{name}.pid").read_text())

    def poll(self) -> int | None:
        """Return nothing while it lives."""
        return None if Path(f"/proc/{self.pid}").exists() else 1

    def kill(self) -> None:
        """Have libvirt end it, or end it where that libvirt has ended."""
        if self.poll() is None:
            self._libvirt.virsh("destroy", self._name, check=self._libvirt.answers())
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Return: libvirt has waited."""


def placed(device: str) -> str:
    """Return a device's XML, with a place where no other one is."""
    slot = next(slot for kind, slot in SLOTS.items() if kind in device)
    return device.replace("</shmem>", f"<address type='pci' bus='0' slot='{slot}' function='0'/></shmem>")


class Domain(VM):
    """A VM that a libvirt runs. `doorbell` and `words` are what its XML says of Hallway."""

    libvirt: Libvirt
    doorbell: str
    words: str

    def start(self) -> None:
        """Have libvirt start it."""
        self.define()
        self.begin()

    def define(self) -> None:
        """Have libvirt know it."""
        path = paths.RUN / f"{self.name}.xml"
        path.write_text(self._definition())
        self.libvirt.virsh("define", path)

    def begin(self) -> None:
        """Have libvirt start it as it is defined."""
        self.log.write_bytes(b"")
        self._make_room()
        self.libvirt.virsh("start", self.name)
        self._process = _Qemu(self.libvirt, self.name)

    def _definition(self) -> str:
        vcpus = self.config.cpus + 1
        words = self.words + self._words()
        return DOMAIN.format(vm=self, vcpus=vcpus, doorbell=placed(self.doorbell), words=words)

    def _words(self) -> str:
        """What QEMU gets from the lab, without libvirt knowing."""
        return "".join(f"<qemu:arg value={quoteattr(word)}/>\n    " for word in self._devices())

    def _make_room(self) -> None:
        self._sockets.mkdir(parents=True, exist_ok=True)
        isolate.add_tap(self._tap)

    def attach(self, device: Path) -> None:
        """Plug in what such a file describes."""
        self.libvirt.virsh("attach-device", self.name, device, "--live")

    def detach(self, device: Path) -> None:
        """Plug it out; returns when the guest has let go of it."""
        self.libvirt.virsh("detach-device", self.name, device, "--live")
        deadline = time.monotonic() + PATIENCE
        while "ivshmem-plain" in self.libvirt.virsh("dumpxml", self.name):
            if time.monotonic() > deadline:
                raise LabError(f"{self.name} does not let go of its memory")
            time.sleep(0.05)

    def save(self, path: Path) -> None:
        """Save it to a file; its QEMU ends."""
        self.libvirt.virsh("save", self.name, path)
        self._hang_up()

    def restore(self, path: Path) -> None:
        """Have it go on."""
        self.libvirt.virsh("restore", path)
        self._go_on()

    def revert(self, snapshot: str) -> None:
        """Have it go on from a snapshot, in another QEMU."""
        self._hang_up()
        self.libvirt.virsh("snapshot-revert", self.name, snapshot)
        self._go_on()

    def _hang_up(self) -> None:
        for connection in (self._qmp, self._agent):
            if connection:
                connection.close()
        self._qmp = self._agent = None

    def _go_on(self) -> None:
        self._process = _Qemu(self.libvirt, self.name)
        self._find_agent(time.monotonic() + PATIENCE)

    def migrate(
        self,
        to: Libvirt,
        *,
        release: Sequence[str | Path] = (),
        renamed: Mapping[str, str] = MappingProxyType({}),
        persistent: bool = False,
    ) -> None:
        """Migrate the domain to another libvirt, without `--live`: see hosts.QEMU.

        `release`: words before those of virsh. `renamed`: what has another name there.
        """
        there = self.double()
        there._make_room()
        # What the lab gives QEMU by itself has other names there.
        names = {f"{self._sockets}/": f"{there._sockets}/", f"={self._tap},": f"={there._tap},", **renamed}

        def described(kind: str, *options: str) -> Path:
            text = self.libvirt.virsh("dumpxml", *options, self.name)
            for mine, its in names.items():
                text = text.replace(mine, its)
            path = paths.RUN / f"{there._tap}-{kind}.xml"
            path.write_text(text)
            return path

        words: list[str | Path] = ["--xml", described("live", "--migratable"), "--desturi", to.uri]
        words += ["--migrateuri", f"unix://{paths.RUN}/{there._tap}.migration"]
        if persistent:
            words += ["--persistent", "--persistent-xml"]
            words.append(described("persistent", "--inactive", "--security-info"))
        run([*release, *self.libvirt.command("migrate", self.name, *words)])
        there._process = _Qemu(to, self.name)
        self.become(there)
        self.libvirt = to


class Installed(Domain):
    """A VM as virt-install defines it, on its default machine: there is nothing of Hallway."""

    def _bridges(self) -> list[str]:
        return []

    def _devices(self) -> list[str]:
        # QEMU places devices that are given by words alone before those of libvirt.
        words: list[str] = []
        slots = iter(range(FIRST_SLOT, 0x1E))
        for word in super()._devices():
            if words and words[-1] == "-virtfs":
                rest, tag = word.replace("local,", "local,id=share,").split(",mount_tag=hallway")
                words[-1:] = ["-fsdev", rest + tag]
                words += ["-device", f"virtio-9p-pci,fsdev=share,mount_tag=hallway,addr={next(slots):#x}"]
            elif words and words[-1] == "-device" and "-pci" in word:
                words.append(f"{word},addr={next(slots):#x}")
            else:
                words.append(word)
        return words

    def _definition(self) -> str:
        words = ["virt-install", "--connect", self.libvirt.uri, "--print-xml", "--import"]
        words += ["--name", self.name, "--uuid", self.uuid, "--osinfo", "linux2020", "--virt-type", "qemu"]
        words += ["--memory", str(self.config.memory_mib)]
        words += ["--vcpus", f"{self.config.cpus},maxvcpus={self.config.cpus + 1}"]
        # The lab has its own, which a person would name here.
        for kind in ("disk", "network", "graphics", "console"):
            words += [f"--{kind}", "none"]
        text = re.sub(r"<channel .*?</channel>", "", run(words), flags=re.S)
        own = f"<qemu:commandline>\n    {self._words()}</qemu:commandline>\n</domain>"
        text = text.replace("<domain ", f"<domain xmlns:qemu='{NAMESPACE}' ", 1)
        return text.replace("</domain>", own)
