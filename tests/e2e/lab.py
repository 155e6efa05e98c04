"""The two VMs of the end-to-end tests."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hallway_lab import topology
from hallway_lab.vm import VM
from hallway_tests.guests import healthy, insmod, loaded, rmmod, settle_in, wait_members
from hallway_tests.suite import Report


@dataclass
class Pair:
    """What a test gets: the site, two VMs with the module in them."""

    site: topology.Site
    a: VM
    b: VM
    report: Report
    kernel: str
    slow: float  # how much longer things may take here
    rng: random.Random
    logs: Path
    share: Path

    @property
    def both(self) -> tuple[VM, VM]:
        """Both VMs."""
        return self.a, self.b

    def unload(self) -> None:
        """Make sure that the module is in neither VM."""
        for vm in self.both:
            if loaded(vm):
                rmmod(vm)

    def load(self, **params: object) -> None:
        """(Re)load the module on both sides and wait until they see each other."""
        self.unload()
        for vm in self.both:
            insmod(vm, **params)
        wait_members(*self.both)

    def third(self, number: int = 3, **options: Any) -> VM:
        """Describe another VM of the site."""
        options |= {"share": self.share, "boot_timeout": 120 * self.slow}
        return named_log(self.site.vm(number, self.kernel, **options), self.logs)

    def sweep(self) -> None:
        """End what a test that failed has left behind: the next one is to judge by itself."""
        for vm in self.both:
            vm.run("rm -f /tmp/hold; pkill -KILL -x 'stream|toggle|python3'", check=False)
            vm.run("pkill -KILL -f /hallway/e2e/; nbd-client -d /dev/nbd0", check=False)

    def healthy(self) -> None:
        """Fail if a guest complained."""
        healthy(*self.site.vms)


def named_log(vm: VM, folder: Path) -> VM:
    """Give the VM a log of its own: several runs may go on side by side."""
    folder.mkdir(parents=True, exist_ok=True)
    vm.log = folder / f"{vm.name}.log"
    vm.qemu_log = folder / f"{vm.name}.qemu.log"
    return vm


TINY = "tiny"  # a region with room for the host and one VM


@contextlib.contextmanager
def booted(
    report: Report, kernel: str, share: Path, logs: Path, slow: float, seed: int, **region: int
) -> Iterator[Pair]:
    """Run a daemon and two VMs for the length of the block."""
    daemon = topology.Daemon(f"--region={TINY}:8M:2", **region)
    logs.mkdir(parents=True, exist_ok=True)
    daemon.log = logs / "hallwayd.log"
    daemon.log.write_bytes(b"")
    site = topology.Site(daemon)
    daemon.start()
    try:
        vms = [named_log(site.vm(n, kernel, share=share, boot_timeout=120 * slow), logs) for n in (1, 2)]
        with site.join(*vms):
            for vm in vms:
                settle_in(vm)
            yield Pair(site, vms[0], vms[1], report, kernel, slow, random.Random(seed), logs, share)
    finally:
        daemon.kill(15)
