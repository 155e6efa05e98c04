"""libvirt in the lab: a libvirtd of its own, and a VM that it runs.

The daemon finds private folders in place of the machine's, so that neither
knows of the other. libvirt has the VM's machine and its shared memory; the rest
reaches QEMU as in any other VM of the lab, by the command line.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import quoteattr

from . import isolate, paths, provision
from .sh import LabError, run
from .vm import VM

PACKAGES = ("libvirt-daemon", "libvirt-daemon-driver-qemu", "libvirt-clients")
FOLDERS = [Path(f) for f in ("/etc/libvirt", "/var/lib/libvirt", "/var/log/libvirt", "/var/cache/libvirt")]
CONFIGURATION = {
    "qemu.conf": 'user = "root"\ngroup = "root"\nsecurity_driver = "none"\nnamespaces = []\n'
    'stdio_handler = "file"\ncgroup_controllers = []\nremember_owner = 0\n',
    "libvirtd.conf": 'unix_sock_group = "root"\nauth_unix_rw = "none"\n',
}
USER = "libvirt-qemu"  # libvirt looks for it even where it is told another one
PATIENCE = 60  # seconds
# Where the lab's own devices, which QEMU places from below, never come near.
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
    wanted = [name for name in PACKAGES if name not in provision.installed()]
    if wanted:
        provision.install(*wanted)


@contextlib.contextmanager
def running(hook: str) -> Iterator[None]:
    """Run libvirtd, with that script as QEMU's hook, for the length of the block."""
    isolate.need_private()
    for folder in FOLDERS:
        folder.mkdir(parents=True, exist_ok=True)
        run(["mount", "-t", "tmpfs", "tmpfs", folder])
    for name, text in CONFIGURATION.items():
        (FOLDERS[0] / name).write_text(text)
    script = FOLDERS[0] / "hooks/qemu"
    script.parent.mkdir()
    script.write_text(hook)
    script.chmod(0o755)
    for name, line in (("passwd", f"{USER}:x:64055:64055::/:/bin/false"), ("group", f"{USER}:x:64055:")):
        copy = paths.RUN / name
        copy.write_text(Path("/etc", name).read_text() + line + "\n")
        run(["mount", "--bind", copy, f"/etc/{name}"])
    if Path("/dev/kvm").exists():
        run(["mount", "--bind", "/dev/null", "/dev/kvm"])  # libvirt would have each QEMU try it
    log = paths.out("vm", "libvirtd.log")
    with open(log, "wb") as said:
        words = [sys.executable, Path(__file__).with_name("reaper.py"), "libvirtd"]
        daemon = subprocess.Popen(words, stdout=said, stderr=said, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE
        while subprocess.run(_virsh("version"), capture_output=True, check=False).returncode:
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise LabError(f"libvirtd does not answer ({log}):\n{log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield
    finally:
        daemon.kill()
        daemon.wait()


def _virsh(*words: str | Path) -> list[str | Path]:
    return ["virsh", "--quiet", "--connect", "qemu:///system", *words]


def virsh(*words: str | Path) -> str:
    """Have virsh do something; return what it says."""
    return run(_virsh(*words))


class _Qemu:
    """The process that libvirt began, as the lab's VMs want their own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.pid = int(Path(f"/run/libvirt/qemu/{name}.pid").read_text())

    def poll(self) -> int | None:
        """Return nothing while it lives."""
        return None if Path(f"/proc/{self.pid}").exists() else 1

    def kill(self) -> None:
        """Have libvirt end it."""
        if self.poll() is None:
            virsh("destroy", self._name)

    def wait(self) -> None:
        """Return: libvirt has waited."""


def placed(device: str) -> str:
    """Return a device's XML, with a place where no other one is."""
    slot = next(slot for kind, slot in SLOTS.items() if kind in device)
    return device.replace("</shmem>", f"<address type='pci' bus='0' slot='{slot}' function='0'/></shmem>")


class Domain(VM):
    """A VM that libvirt runs. `doorbell` and `words` are what its XML says of Hallway."""

    doorbell: str
    words: str

    def start(self) -> None:
        """Have libvirt start it."""
        self._sockets.mkdir(parents=True, exist_ok=True)
        self.log.write_bytes(b"")
        isolate.add_tap(self._tap)
        path = paths.RUN / f"{self.name}.xml"
        own = "".join(f"<qemu:arg value={quoteattr(word)}/>\n    " for word in self._devices())
        vcpus = self.config.cpus + 1
        text = DOMAIN.format(vm=self, vcpus=vcpus, doorbell=placed(self.doorbell), words=self.words + own)
        path.write_text(text)
        virsh("define", path)
        virsh("start", self.name)
        self._process = _Qemu(self.name)

    def attach(self, device: Path) -> None:
        """Plug in what such a file describes."""
        virsh("attach-device", self.name, device, "--live")

    def detach(self, device: Path) -> None:
        """Plug it out; returns when the guest has let go of it."""
        virsh("detach-device", self.name, device, "--live")
        deadline = time.monotonic() + PATIENCE
        while "ivshmem-plain" in virsh("dumpxml", self.name):
            if time.monotonic() > deadline:
                raise LabError(f"{self.name} does not let go of its memory")
            time.sleep(0.05)

    def save(self, path: Path) -> None:
        """Save it to a file; its QEMU ends."""
        virsh("save", self.name, path)
        for connection in (self._qmp, self._agent):
            if connection:
                connection.close()
        self._qmp = self._agent = None

    def restore(self, path: Path) -> None:
        """Have it go on."""
        virsh("restore", path)
        self._process = _Qemu(self.name)
        self._find_agent(time.monotonic() + PATIENCE)
