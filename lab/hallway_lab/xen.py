# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Xen on one QEMU: the hypervisor, dom0, and the domains that dom0 starts.

dom0 is a VM of the lab like any other: it has the lab's root disk with Xen's
tools, and commands reach it through QEMU. Its domains have root disks of their
own, which QEMU gives dom0 and dom0 gives them as block devices. Each has two
interfaces: one on a bridge of theirs, which is what tests are about, and one by
which the lab reaches the guest agent.

Xen and its tools are Debian's, and run as they are.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shlex
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import emulator, image, isolate, kernels, paths, verdict, wire
from .aptbox import AptBox
from .sh import run, say, step
from .vm import VM, Config, Job, VMError, disk

DOM0 = 9  # the number of the VM that runs Xen
DOM0_KERNEL = "6.1"
DOM0_MIB = 1024
CPUS = 2  # of the machine: for dom0 and all domains together
XEN_MIB = 512  # what Xen itself needs beside dom0 and the domains
AGENT_PORT = 5700
COPY_SECONDS = 300  # at most, for a domain's memory to a file or back
# PVH domains need nested paging. With the faster QEMU they end before their kernel says a word; with more of
# a CPU than this, programs fail at random; and with a second one, domains do by a triple fault.
PVH_WORDS = ["-cpu", "qemu64,+npt"]
PVH_CPUS = 1
MODULES = "domain-modules"  # the disk with those of the domains' kernel
META = "xen-system-amd64"


def hypervisor() -> Path:
    """Return the file that QEMU boots, fetching it if need be."""
    with paths.lock("xen"):
        found = paths.cache("xen", "hypervisor")
        if not found.exists():
            with step("fetching Xen"):
                box = AptBox("stable")
                package = box.depends(META, box.candidate(META), r"xen-hypervisor-\d.*-amd64")[0]
                with paths.workshop(found) as tree:
                    box.unpack(tree, [package])
                    packed = next((tree / "boot").glob("xen-*.gz"))
                    fresh = found.with_suffix(".new")
                    fresh.write_bytes(gzip.decompress(packed.read_bytes()))
                    fresh.rename(found)
        return found


class Xen(VM):
    """Xen and dom0, with domains that boot `kernel`."""

    def __init__(
        self,
        kernel: str,
        domains: int,
        share: Path,
        logs: Path,
        *,
        domain_image: str = "basic",
        mib: int = 512,
        kind: str = "pv",
    ) -> None:
        self.kind = kind
        self.domain_kernel = kernels.kernel(kernel)
        self.domain_image, self.domain_share = domain_image, share
        self.domain_mib = mib
        self.daemon: Job | None = None
        self.domains = [Domain(self, number, kernel) for number in range(1, domains + 1)]
        # A PVH domain can migrate, to this very host.
        memory = DOM0_MIB + XEN_MIB + (domains + (kind == "pvh")) * mib
        # Of this run alone: dom0 starts domains from it.
        dom0_share = Path(os.environ["TMPDIR"], "dom0")
        super().__init__(
            Config(
                number=DOM0,
                kernel=DOM0_KERNEL,
                image="xen",
                cpus=CPUS if kind == "pv" else PVH_CPUS,
                share=dom0_share,
                memory_mib=memory,
                qemu=emulator.FAST if kind == "pv" else "distro",
                boot_timeout=240,
                extra=[] if kind == "pv" else PVH_WORDS,
            )
        )
        self.name = "dom0"
        logs.mkdir(parents=True, exist_ok=True)
        self.log, self.qemu_log = logs / "dom0.log", logs / "dom0.qemu.log"
        for domain in self.domains:
            domain.log = logs / f"{domain.name}.log"

    def start(self) -> None:
        """Start QEMU with what the domains boot in dom0's folder /hallway."""
        folder = self.config.share
        assert folder
        folder.mkdir(exist_ok=True)
        for source, name in (
            (self.domain_kernel.boot, "vmlinux"),
            (image.initramfs(self.domain_kernel, domain=True), "initramfs"),
            (paths.REPO / "host/target/release/hallwayd", "hallwayd"),
            (paths.REPO / "host/target/release/hallway", "hallway"),
        ):
            shutil.copy(source, folder / name)
        super().start()

    def _cmdline(self) -> str:
        return super()._cmdline().replace("console=ttyS0", "console=hvc0")

    def _system(self) -> list[str]:
        words = f"console=com1 com1=115200 dom0_mem={DOM0_MIB}M,max:{DOM0_MIB}M dom0_max_vcpus=1 noreboot"
        # Xen has no PVH entry of Linux' to start dom0 by: it takes the ELF file as a module.
        linux = f"{self.kernel.boot} {self._cmdline()}".replace(",", ",,")
        modules = f"{linux},{image.initramfs(self.kernel)}"
        return ["-kernel", str(hypervisor()), "-append", words, "-initrd", modules]

    def _devices(self) -> list[str]:
        share = Path(os.environ["TMPDIR"], "domain-share.ext4")
        used = sum(path.stat().st_size for path in self.domain_share.rglob("*") if path.is_file())
        image.pack(self.domain_share, share, f"{used * 13 // 10 // (1 << 20) + 24}M")
        words = super()._devices() + disk("share", share, "format=raw,read-only=on")
        words += disk(MODULES, image.modules_image(self.domain_kernel), "format=raw,read-only=on")
        for domain in self.domains:
            words += disk(domain.name, image.root_image(self.domain_image), "format=raw,snapshot=on")
        return words

    def wait_boot(self) -> None:
        """Wait until dom0 can start domains."""
        super().wait_boot()
        self.run("sh -e", stdin=(paths.LAB / "guest/dom0").read_text(), timeout=240)
        run(["ip", "addr", "replace", "10.78.0.254/24", "dev", isolate.BRIDGE])

    def start_daemon(self) -> None:
        """Start hallwayd, and wait until it serves."""
        self.daemon = self.spawn("exec /hallway/hallwayd --xen >>/run/hallwayd.log 2>&1")
        deadline = time.monotonic() + 60
        while self.run("/hallway/hallway status", check=False).code:
            if self.daemon.poll() or time.monotonic() > deadline:
                raise VMError(f"hallwayd does not answer:\n{self.get('/run/hallwayd.log')}")
            time.sleep(0.2)

    def device(self, name: str) -> str:
        """Return the disk of that name as dom0 sees it."""
        found = self.run(f"grep -lx {shlex.quote(name)} /sys/block/*/serial").out
        return f"/dev/{Path(found.strip()).parent.name}"


class Domain(VM):
    """A domain that dom0 starts; used as any other VM, but that QEMU is not its own."""

    network = "xen-netfront and the bridge in dom0"

    def __init__(self, xen: Xen, number: int, kernel: str) -> None:
        config = Config(number=number, kernel=kernel, memory_mib=xen.domain_mib, qemu=emulator.FAST)
        super().__init__(config)
        self.xen = xen
        self.control = f"10.78.0.{number}"
        self._crashed = False

    @property
    def domid(self) -> int:
        """Return the number that Xen gave it."""
        return int(self.xen.run(f"xl domid {self.name}").out)

    @property
    def pid(self) -> int:
        """Return the process of the QEMU that Xen runs on."""
        return self.xen.pid

    def start(self) -> None:
        """Have dom0 start it."""
        disks = [
            f"phy:{self.xen.device(name)},{here}"
            for name, here in ((self.name, "xvda,w"), (MODULES, "xvdb,r"), ("share", "xvdc,r"))
        ]
        vifs = [
            f"mac=00:16:3e:{net:02x}:00:{self.config.number:02x},bridge={bridge}"
            for net, bridge in ((0x77, "test"), (0x78, "control"))
        ]
        lines = {
            "name": self.name,
            "uuid": self.uuid,
            "type": self.xen.kind,
            "kernel": "/hallway/vmlinux",
            "ramdisk": "/hallway/initramfs",
            "memory": self.config.memory_mib,
            "vcpus": self.config.cpus,
            "vif": vifs,
            "disk": disks,
            "extra": self._cmdline(),
            "on_crash": "preserve",
            # QEMU does not tell Xen RDTSCP from RDTSC, which Xen would handle for the domain otherwise.
            "tsc_mode": "native" if self.xen.kind == "pvh" else "default",
        }
        self.xen.put("".join(f"{name} = {value!r}\n" for name, value in lines.items()), self._file("cfg"))
        self.xen.run(f"xl create {self._file('cfg')}", timeout=180)

    def _console(self) -> str:
        return f"/var/log/xen/console/guest-{self.name}.log"

    def _file(self, suffix: str) -> str:
        return f"/root/{self.name}.{suffix}"

    def _cmdline(self) -> str:
        words = super()._cmdline().replace("console=ttyS0", "console=hvc0")
        disks = "lab.root=/dev/xvda lab.modules=/dev/xvdb lab.share=/dev/xvdc"
        if self.kernel.name in kernels.DEBUG:
            words += " page_poison=1"
        return f"{words} {disks} lab.agent={self.control}"

    def wait_boot(self) -> None:
        """Wait until the guest agent answers."""
        self.find_agent(self.config.boot_timeout)

    def find_agent(self, timeout: float = 60) -> None:
        """Connect to the guest agent, also after the domain was somewhere else."""
        deadline = time.monotonic() + timeout
        while not self._try_agent():
            if time.monotonic() > deadline:
                raise VMError(f"{self.name}: the guest agent does not answer\n{self._tail()}")

    def _try_agent(self) -> bool:
        if self._agent:
            self._agent.close()
            self._agent = None
        try:
            agent = wire.Wire((self.control, AGENT_PORT), 5)
        except wire.WireError:
            return False
        self._agent = agent
        try:
            return wire.agent_sync(agent, 5)
        except (wire.WireError, OSError):  # what listens has no agent behind it yet
            return False

    def stop(self) -> None:
        """Leave it to the end of the QEMU that Xen runs on."""
        if self._agent:
            self._agent.close()
        self._agent = None

    def destroy(self) -> None:
        """End it at once."""
        self.stop()
        self.xen.run(f"xl destroy {self.name}", timeout=120)
        if self._crashed:
            # The next one writes there, too, and is not to blame.
            self._fetch_log()
            self.log.rename(self.log.with_suffix(".crashed.log"))
            self.xen.run(f": >{self._console()}")
            self._crashed = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Have it stand still for the length of the block."""
        self.xen.run(f"xl pause {self.name}")
        try:
            yield
        finally:
            self.xen.run(f"xl unpause {self.name}")

    def crash(self) -> None:
        """Have its kernel panic: Xen keeps it until it is destroyed."""
        self.run("sysctl -q kernel.sysrq=1")
        self.stop()
        self._crashed = True
        self.xen.run(f"xl sysrq {self.name} c")

    def save(self) -> None:
        """Save it to a file of dom0."""
        self.xen.run(f"xl save {self.name} {self._file('saved')}", timeout=COPY_SECONDS)

    def checkpoint(self) -> None:
        """Save it to a file of dom0, and have it go on."""
        self.xen.run(f"xl save -c {self.name} {self._file('saved')}", timeout=COPY_SECONDS)
        self.xen.run(f"rm {self._file('saved')}")
        self.find_agent()

    def restore(self) -> None:
        """Have it go on from that file."""
        self.xen.run(f"xl restore {self._file('saved')} && rm {self._file('saved')}", timeout=COPY_SECONDS)
        self.find_agent()

    def _check_alive(self) -> None:
        self.xen._check_alive()

    def _fetch_log(self) -> None:
        said = self.xen.run(f"cat {self._console()}", check=False, first=True).out
        self.log.write_text(said)

    def _tail(self) -> str:
        self._fetch_log()
        return super()._tail()

    def verdict(self) -> verdict.Verdict:
        """Judge what the kernel said so far."""
        self._fetch_log()
        return super().verdict()


@contextlib.contextmanager
def running(kernel: str, share: Path, logs: Path, domains: int = 2, **options: Any) -> Iterator[Xen]:
    """Run Xen, dom0 with hallwayd, and domains that see the folder `share`, for the length of the block.

    More options go to Xen.
    """
    machine = Xen(kernel, domains, share, logs, **options)
    begin = time.monotonic()
    with machine:
        say(f"dom0 up after {time.monotonic() - begin:.1f} s")
        machine.start_daemon()
        for domain in machine.domains:
            domain.start()
        for domain in machine.domains:
            domain.wait_boot()
        say(f"{domains} domains up after {time.monotonic() - begin:.1f} s")
        yield machine


def prepare(kernel: str) -> None:
    """Fetch and build what Xen needs besides what VMs do."""
    hypervisor()
    image.root_image("xen")
    emulator.emulator(emulator.FAST)
    image.initramfs(kernels.kernel(kernel), domain=True)
    image.modules_image(kernels.kernel(kernel))
    image.initramfs(kernels.kernel(DOM0_KERNEL))
    image.modules_image(kernels.kernel(DOM0_KERNEL))
