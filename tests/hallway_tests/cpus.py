# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Two VMs with two CPUs each, of which hallwayd says how many are online."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hallway_lab import topology
from hallway_lab.topology import Daemon, Site, describe_vm
from hallway_lab.vm import VM

from .config import GROUP
from .guests import AT_ONCE, binaries, call, healthy, insmod, loaded, rmmod, wait_members
from .pair import running, sweep
from .suite import wait_for

NUMBERS = (14, 15)
PRESENT = 2
# Other work on this machine must not count: what is busy and idle is the policy's own tests'.
RULES = """
[cpus]
busy = 3
idle = 0
contended = 100
grow = 1
shrink = 3
pause = 1
"""
# The policy changes nothing meanwhile.
STILL = RULES.replace("grow = 1", "grow = 86400").replace("shrink = 3", "shrink = 86400")
LIMITS = """
[vm.cpus]
min = {min}
max = {max}
"""
WEIGHT = LIMITS.format(min=1, max=PRESENT) + 'mechanism = "weight"\n'
# Of the private page: abi/hallway/region.h.
ORDER, REPORT, PAGE = 3952, 3960, 4096
STATUS = ("done", "working", "failed", "refused", "invalid")


@dataclass
class Cpus:
    """Two VMs and their daemon."""

    site: topology.Site
    a: VM
    b: VM
    slow: float  # factor on all timeouts

    @property
    def both(self) -> tuple[VM, VM]:
        """Both VMs."""
        return self.a, self.b

    def healthy(self) -> None:
        """Fail if a guest complained."""
        healthy(*self.both)

    def sweep(self) -> None:
        """End what a failed test has left running in the guests."""
        sweep(*self.both)

    def write(self, rules: str = RULES, limits: str = LIMITS.format(min=1, max=PRESENT)) -> None:
        """Write the configuration."""
        config = self.site.daemon.config
        assert config
        words = [rules, GROUP, *(describe_vm(vm, "both", more=limits) for vm in self.both)]
        config.write_text("".join(words))

    def configure(self, *words: str) -> None:
        """Have hallwayd killed, and started with another configuration."""
        self.site.daemon.kill()
        self.write(*words)
        self.site.daemon.start()

    def say(self, *words: str) -> str:
        """Return what a command of `hallway` says on the host."""
        done = call(binaries() / "hallway", *words, "--run-dir", self.site.daemon.run_dir)
        return done.stdout + done.stderr

    def shown(self, vm: VM) -> dict[str, Any]:
        """Return what `hallway cpus` shows of a VM."""
        return json.loads(self.say("cpus", "--json")).get(vm.name, {})

    def wait_given(self, vm: VM, count: int) -> None:
        """Wait until a VM is to have as many CPUs online, and has them."""

        def given() -> bool:
            shown = self.shown(vm)
            return shown["given"] == count and shown["online"] == count and online(vm) == count

        wait_for(given, f"{vm.name} has {count} CPUs", 60 * self.slow)

    @contextlib.contextmanager
    def loaded(self, **params: object) -> Iterator[None]:
        """Have the module in both guests for the length of the block."""
        self.unload()
        for vm in self.both:
            insmod(vm, **AT_ONCE, **params)
        wait_members(*self.both, timeout=60 * self.slow)
        try:
            yield
        finally:
            self.unload()

    def unload(self) -> None:
        """Unload the module from both guests."""
        for vm in self.both:
            if loaded(vm):
                rmmod(vm, 120 * self.slow)


def _hierarchy() -> tuple[Path, str, str]:
    """Return where cgroups with a weight are, the controller that names them, and the file."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        root = Path(place)
        if kind == "cgroup" and "cpu" in options.split(","):
            return root, "cpu", "cpu.shares"
        if kind == "cgroup2" and "cpu" in (root / "cgroup.subtree_control").read_text().split():
            return root, "", "cpu.weight"
    pytest.skip("no hierarchy of cgroups has the cpu controller here")


@contextlib.contextmanager
def apart(vm: VM) -> Iterator[Path]:
    """Have a VM's QEMU in a cgroup of its own for the length of the block; yield the file with the weight."""
    root, controller, name = _hierarchy()
    lines = [line.split(":", 2) for line in Path(f"/proc/{vm.pid}/cgroup").read_text().splitlines()]
    (home,) = [root / path[1:] for _, names, path in lines if controller in names.split(",")]
    cgroup = Path(tempfile.mkdtemp(prefix="hallway-test-", dir=root))
    try:
        (cgroup / "cgroup.procs").write_text(str(vm.pid))
        yield cgroup / name
    finally:
        (home / "cgroup.procs").write_text(str(vm.pid))
        cgroup.rmdir()


def online(vm: VM) -> int:
    """Return how many CPUs a guest has online, as its programs see it."""
    return int(vm.run("getconf _NPROCESSORS_ONLN", first=True).out)


def obey(vm: VM, does: bool) -> None:
    """Have a guest do what hallwayd says, or not."""
    vm.run(f"echo {'Y' if does else 'N'} >/sys/module/hallway/parameters/cpus", first=True)


@contextlib.contextmanager
def page(vm: VM) -> Iterator[mmap.mmap]:
    """Map the private page of a VM, by the descriptor that its QEMU has."""
    folder = Path(f"/proc/{vm.pid}/fd")
    fd = next(one for one in folder.iterdir() if "memfd:hallway-page" in os.readlink(one))
    with open(fd, "r+b") as file, mmap.mmap(file.fileno(), PAGE) as memory:
        yield memory


def report(vm: VM) -> tuple[int, str, int, int]:
    """Return what a guest says: the order, what came of it, CPUs online, CPUs present."""
    with page(vm) as memory:
        _, order, status, *counts = struct.unpack_from("<5I", memory, REPORT)
    return (order, STATUS[status], *counts)


def order(vm: VM, count: int) -> None:
    """Write an order into a VM's page, in place of hallwayd."""
    with page(vm) as memory:
        struct.pack_into("<I", memory, ORDER, count)


@contextlib.contextmanager
def booted(kernel: str, share: Path, logs: Path, slow: float, *, qemu: str | None = None) -> Iterator[Cpus]:
    """Boot the VMs, with a daemon of their own, for the length of the block."""
    site = Site(Daemon(host="cpus", config=logs / "hallwayd.toml"))
    options = {"share": share, "qemu": qemu, "boot_timeout": 120 * slow, "cpus": PRESENT}
    vms = [site.vm(number, kernel, monitor=Path(f"/run/vm{number}.qmp"), **options) for number in NUMBERS]
    stand = Cpus(site, *vms, slow)
    stand.write()
    with running(site, vms, logs):
        yield stand
