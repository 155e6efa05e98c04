# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A pair of VMs: a daemon with one region, and two guests with the module."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hallway_lab import topology
from hallway_lab.kernels import DEBUG
from hallway_lab.measure import direction
from hallway_lab.vm import VM

from .guests import (
    Delta,
    Stream,
    autopsy,
    connections,
    healthy,
    insmod,
    loaded,
    odd,
    rmmod,
    settle_in,
    wait_members,
)
from .suite import check, wait_for

TINY = "tiny"  # a second region, with slots for the host and one VM


@dataclass
class Pair:
    """Two VMs of a site, with what tests do to them and ask of them."""

    site: topology.Site
    a: VM
    b: VM
    kernel: str
    slow: float  # factor on all timeouts
    logs: Path
    share: Path

    @property
    def both(self) -> tuple[VM, VM]:
        """Both VMs."""
        return self.a, self.b

    def unload(self) -> None:
        """Unload the module from both VMs."""
        for vm in self.both:
            if loaded(vm):
                rmmod(vm, 60 * self.slow)

    def load(self, **params: object) -> None:
        """(Re)load the module in both VMs and wait until each serves the other."""
        self.unload()
        for vm in self.both:
            insmod(vm, **params)
        wait_members(*self.both)

    def third(self, number: int = 3, **options: Any) -> VM:
        """Describe another VM of the site; `site.join` boots it."""
        options |= {"share": self.share, "qemu": self.a.config.qemu, "boot_timeout": 120 * self.slow}
        return name_logs(self.site.vm(number, self.kernel, **options), self.logs)

    def sweep(self) -> None:
        """End what a failed test has left running in the guests."""
        sweep(*self.both)

    def healthy(self) -> None:
        """Fail if a guest of the site is gone or its kernel complained."""
        healthy(*self.site.vms)

    def member(self, vm: VM) -> dict[str, Any]:
        """Return a member of the first region as hallwayd describes it."""
        shown = self.site.daemon.status()["regions"][0]["members"]
        return next(member for member in shown if member["uuid"] == vm.uuid)

    def channels(self) -> list[int]:
        """Return how many channels each VM has, as the host sees it."""
        members = [m for region in self.site.daemon.status()["regions"] for m in region["members"]]
        return [next(m["channels"] for m in members if m["uuid"] == vm.uuid) for vm in self.both]

    def wait_on_rings(self, count: int = 1) -> None:
        """Wait until at least `count` connections have both directions on rings, as both VMs see it."""
        with autopsy(*self.both):
            wait_for(
                lambda: all(sum(on_rings(c) for c in connections(vm)) >= count for vm in self.both),
                f"{count} connections are on rings both ways",
                60 * self.slow,
            )

    def wait_read_from_rings(self, count: int) -> None:
        """Wait until the first VM has read from the rings of just `count` connections.

        Their bytes that TCP carried before have then been read.
        """

        def read() -> bool:
            ways = [c["rx"] for c in connections(self.a)]
            return sum(way["carrier"] % 2 and way["ring_bytes"] > 0 for way in ways) == count

        with autopsy(*self.both):
            wait_for(read, f"{count} connections are read from rings", 20 * self.slow)

    def check_counters(self, delta: Delta, *, stopped: bool = False) -> None:
        """Fail on corruption, a reset, or a sleeper that only the watchdog woke.

        Where a VM was `stopped` between a step and its doorbell, the watchdog may wake.
        """
        for vm in self.both:
            moved = delta.of(vm)
            found = odd(moved, watchdog=self.kernel not in DEBUG and not stopped)
            check(not found, f"{vm.name}: {', '.join(found)}")
            check(not moved["resets"], f"{vm.name}: resets is {moved['resets']}")

    def stream_on_rings(
        self, server: VM, client: VM, *, conns: int, enough: int = 10_000_000, **options: Any
    ) -> None:
        """Run a stream until rings have carried `enough` bytes: nearly all while it is on them."""
        begin = Delta(*self.both)
        stream = Stream(server, client, conns=conns, **options)
        self.wait_on_rings(conns)
        promoted = Delta(*self.both)

        def carried() -> list[dict[str, int]] | None:
            nonlocal promoted
            moved = [promoted.of(vm) for vm in self.both]
            # A ring grew, or a VM stood still for a while on a busy machine.
            if any(one["tx_demoted"] for one in moved):
                self.wait_on_rings(conns)
                promoted = Delta(*self.both)
                return None
            return moved if all(one["tx_bytes_ring"] >= enough for one in moved) else None

        with autopsy(*self.both):
            moved = wait_for(carried, f"rings carry {enough} bytes", 60 * self.slow)
        stream.stop()
        stream.finish(60 * self.slow)
        self.check_counters(begin)
        self.check_through_rings(begin, 0)
        for vm, one in zip(self.both, moved, strict=True):
            ring, tcp = one["tx_bytes_ring"], one["tx_bytes_tcp"]
            check(ring >= 0.9 * (ring + tcp), f"{vm.name}: {tcp} bytes went over TCP, {ring} through rings")

    def check_through_rings(self, delta: Delta, share: float) -> None:
        """Fail unless rings carried this share of the bytes each way, and both ends counted the same."""
        a, b = delta.of(self.a), delta.of(self.b)
        for mine, theirs, name in ((a, b, "a to b"), (b, a, "b to a")):
            way = direction(mine, theirs)
            sent, received = way.sent_ring, way.received_ring
            check(sent == received, f"{name}: {sent} bytes went into rings, {received} came out")
            check(sent >= share * way.sent, f"{name}: only {sent} of {way.sent} bytes went through rings")


def most_by_rings(moved: dict[str, int]) -> bool:
    """Tell whether rings carried most of what a VM has sent.

    Wait for this while a stream runs: on a busy machine connections need time to get onto rings,
    and one that pauses leaves them again.
    """
    return moved["tx_bytes_ring"] > 4 * moved["tx_bytes_tcp"]


def on_rings(connection: dict[str, Any]) -> bool:
    """Tell whether both directions of a connection are on rings."""
    return bool(connection["tx"]["carrier"] % 2 and connection["rx"]["carrier"] % 2)


def connections_with(vm: VM, peer: VM) -> list[dict[str, Any]]:
    """Return a VM's attached connections with a peer."""
    return [c for c in connections(vm) if c["remote"] in (peer.ip4, peer.ip6)]


def count_on_rings(vm: VM, peer: VM) -> int:
    """Count a VM's connections with a peer that have both directions on rings."""
    return sum(on_rings(c) for c in connections_with(vm, peer))


def sweep(*vms: VM) -> None:
    """End what a failed test has left running in guests, and undo its settings."""
    for vm in vms:
        vm.run("rm -f /tmp/hold; pkill -KILL -x 'stream|toggle|python3'", check=False)
        vm.run("pkill -KILL -f /hallway/guest/; nbd-client -d /dev/nbd0", check=False)
        vm.run("rm -f /tmp/say /tmp/said /tmp/dying /tmp/killed /tmp/fault", check=False)
        vm.run("sysctl -q net.ipv4.tcp_retries2=15", check=False)


def name_logs(vm: VM, folder: Path) -> VM:
    """Have a VM write its logs to this folder: runs side by side have each their own."""
    folder.mkdir(parents=True, exist_ok=True)
    vm.log = folder / f"{vm.name}.log"
    vm.qemu_log = folder / f"{vm.name}.qemu.log"
    return vm


@contextlib.contextmanager
def running(site: topology.Site, vms: list[VM], logs: Path) -> Iterator[None]:
    """Run a site's daemon and these VMs, with their logs in a folder, for the length of the block."""
    logs.mkdir(parents=True, exist_ok=True)
    site.daemon.log = logs / "hallwayd.log"
    site.daemon.log.write_bytes(b"")
    site.daemon.start()
    try:
        with site.join(*(name_logs(vm, logs) for vm in vms)):
            for vm in vms:
                settle_in(vm)
            yield
    finally:
        site.daemon.kill(15)


@contextlib.contextmanager
def booted(
    kernel: str,
    share: Path,
    logs: Path,
    slow: float,
    *,
    qemu: str | None = None,
    binaries: Path | None = None,
    kmemleak: bool = False,
    **region: int,
) -> Iterator[Pair]:
    """Run a daemon and two VMs, on the kernel's own QEMU or on that one, for the length of the block."""
    daemon = topology.Daemon(f"--region={TINY}:8M:2", **region)
    daemon.binaries = binaries or daemon.binaries
    site = topology.Site(daemon)
    daemon.region.path.unlink(missing_ok=True)  # that of another site may have another size
    options = {"share": share, "qemu": qemu, "boot_timeout": 120 * slow, "kmemleak": kmemleak}
    vms = [site.vm(n, kernel, **options) for n in (1, 2)]
    with running(site, vms, logs):
        yield Pair(site, vms[0], vms[1], kernel, slow, logs, share)
