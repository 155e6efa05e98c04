# SPDX-License-Identifier: Apache-2.0 OR MIT
"""VMs that a libvirt has, on hosts on which `hallway enable` was called for them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hallway_lab import image, libvirt, topology
from hallway_lab.libvirt import Installed, Libvirt
from hallway_lab.sh import run
from hallway_lab.vm import Config

from .guests import AT_ONCE, Stream, healthy, insmod, settle_in
from .pair import Pair, name_logs, sweep
from .streams import CALM
from .suite import GuestLost

NUMBERS = (5, 6)


@dataclass
class EnabledHost:
    """A libvirt, a hallwayd that finds it, and the folder of what `hallway enable` writes."""

    libvirt: Libvirt
    daemon: topology.Daemon
    folder: Path

    def hallway(self, *words: str) -> str:
        """Run `hallway` on the host, with its own configuration."""
        return self.ask(*words, "--config-dir", self.folder)

    def ask(self, *words: str | Path) -> str:
        """Run `hallway` on the host, with its hallwayd."""
        return run(self.command(*words))

    def command(self, *words: str | Path) -> list[str | Path]:
        """Return the words by which `hallway` does so."""
        command, *rest = words
        binary = self.daemon.binaries / "hallway"
        return [*self.libvirt.enter(), binary, command, "--run-dir", self.daemon.run_dir, *rest]


@contextlib.contextmanager
def running(name: str, logs: Path) -> Iterator[EnabledHost]:
    """Run libvirt and hallwayd for the length of the block. The host of that name is the lab's own."""
    config = Path(os.environ["TMPDIR"]) / f"{name}.toml"
    config.write_text("")
    with libvirt.running(name) as virt:
        daemon = topology.Daemon(host="" if name == "host" else name, config=config, enter=virt.enter())
        daemon.log = logs / f"hallwayd-{name}.log"
        daemon.start()
        try:
            yield EnabledHost(virt, daemon, config.with_suffix(".d"))
        finally:
            daemon.kill(15)


@dataclass
class Domains:
    """Two VMs that a libvirt has, and the host's programs."""

    pair: Pair
    host: EnabledHost

    @property
    def vms(self) -> list[Installed]:
        """Both VMs."""
        return [vm for vm in (self.pair.a, self.pair.b) if isinstance(vm, Installed)]

    def release(self, vm: Installed) -> None:
        """Have a VM release its ring memory."""
        assert f"{vm.name}: its ring memory is out" in self.host.ask("release", vm.name)
        machine = self.host.daemon.machine(vm)
        assert machine["released"] and not machine["plugs"], machine

    @contextlib.contextmanager
    def streaming(self, vm: Installed) -> Iterator[Stream]:
        """Stream between the VMs, on rings before the block, and again at its end."""
        stays = next(other for other in self.vms if other is not vm)
        stream = Stream(stays, vm, both=f"{CALM} --stall 90")
        self.pair.wait_on_rings()
        yield stream
        self.pair.wait_on_rings()
        stream.stop()
        stream.finish(60)

    def start(self) -> None:
        """Start both VMs, with the module in them."""
        for vm in self.vms:
            vm.begin()
        for vm in self.vms:
            vm.wait_boot()
            settle_in(vm)
            insmod(vm, **AT_ONCE)

    def check_streams(self) -> None:
        """Run a stream between the VMs; rings must carry most of its bytes."""
        self.pair.stream_on_rings(self.pair.b, self.pair.a, conns=3, enough=300_000, both=CALM)

    def healthy(self) -> None:
        """Fail if a guest complained, or a failed test has left one on another host."""
        healthy(*self.vms)
        for vm in self.vms:
            if vm.libvirt is not self.host.libvirt:
                raise GuestLost(f"{vm.name} is at {vm.libvirt.name}")

    def sweep(self) -> None:
        """End what a failed test has left running in the guests."""
        sweep(*self.vms)


@contextlib.contextmanager
def booted(kernel: str, share: Path, logs: Path, slow: float) -> Iterator[Domains]:
    """Enable both VMs, and start them, for the length of the block."""
    with running("host", logs) as host:
        vms = [
            Installed(Config(number=number, kernel=kernel, share=share, disk=_make_root(number)))
            for number in NUMBERS
        ]
        with contextlib.ExitStack() as stack:
            for vm in vms:
                vm.libvirt = host.libvirt
                name_logs(vm, logs)
                vm.define()
            site = topology.Site(host.daemon, list(vms))
            domains = Domains(Pair(site, *vms, kernel, slow, logs, share), host)
            said = host.hallway("enable", *(vm.name for vm in vms))
            for vm in vms:
                assert f"{vm.name}: enabled in group default; ready for its next start" in said, said
            for vm in vms:
                stack.callback(vm.stop)
            domains.start()
            yield domains


def _make_root(number: int) -> Path:
    """Make the disk of a VM that migrates: both QEMUs open it."""
    path = Path(os.environ["TMPDIR"]) / f"root{number}.qcow2"
    make_disk(path, image.root_image(Config().image))
    return path


def make_disk(path: Path, base: Path | None = None) -> None:
    """Make a disk, over another one or empty."""
    over = ["-F", "raw", "-b", base] if base else []
    run(["qemu-img", "create", "-q", "-f", "qcow2", *over, path, *([] if base else ["1M"])])
