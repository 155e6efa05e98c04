# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Two hosts, a VM that stays on the first of them, and one that migrates."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from hallway_lab import hosts
from hallway_lab.hosts import Host, Move
from hallway_lab.vm import VM, boot_all

from .guests import (
    AT_ONCE,
    Delta,
    autopsy,
    binaries,
    call,
    connections,
    healthy,
    insmod,
    members,
    odd,
    settle_in,
    wait_members,
)
from .pair import name_logs, on_rings, sweep
from .suite import check, wait_for

DRIVEN, BY_HAND = 2, 1  # numbers of the VM that hallwayd migrates, and of the one that it only serves
MEMORY = 384  # MiB: little to carry over
ENOUGH = 300_000  # bytes that show that a carrier is in use
SLOWLY = 20 << 20  # bytes a second: a migration that takes long enough to be interrupted


@dataclass
class Hosts:
    """Two hosts, a VM that stays on the first of them, and one that `hallway migrate` moves."""

    here: Host
    there: Host
    stays: VM
    moves: VM
    slow: float  # factor on all timeouts

    @property
    def both(self) -> tuple[VM, VM]:
        """Both VMs."""
        return self.stays, self.moves

    def healthy(self) -> None:
        """Fail if a guest is gone or its kernel complained."""
        healthy(*self.both)

    def sweep(self) -> None:
        """End what a failed test has left running in the guests."""
        sweep(*self.both)

    def by_hand(self) -> Hosts:
        """Return the same with the roles of the VMs swapped: the one that migrates does so by QMP."""
        return replace(self, stays=self.moves, moves=self.stays)

    def hallway(self, *words: str) -> list[str]:
        """Return a `hallway` command for the host on which the VM that migrates is."""
        at = next(host for host in (self.here, self.there) if host.name == self.moves.config.host)
        return [str(w) for w in (binaries() / "hallway", *words, "--run-dir", at.daemon.run_dir)]

    def migrate(self, to: Host, *options: str) -> Move:
        """Migrate by `hallway migrate`."""
        hosts.hurry(self.moves)
        with hosts.arriving(self.moves, to) as destination:
            begin = time.monotonic()
            words = ("migrate", self.moves.name, hosts.address(destination), *options)
            done = call(*self.hallway(*words))
            took = time.monotonic() - begin
            check(done.returncode == 0, f"does not migrate: {done}")
            check("it stood still" in done.stdout, f"does not print the downtime: {done}")
            reply = self.moves.qmp.command("query-migrate")
        migrated = reply["total-time"] / 1000
        return Move(took - migrated, migrated, reply["downtime"] / 1000)

    def interrupt_migration(self, why: str) -> None:
        """Begin a migration and end it on its way, as `why` says; the VM stays where it is."""
        hosts.hurry(self.moves, SLOWLY)
        destination = hosts.arrival(self.moves, self.there)
        try:
            words = self.hallway("migrate", self.moves.name, hosts.address(destination))
            process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            wait_for(self._transferred, "the migration is on its way", 60 * self.slow)
            if why == "cancelled":
                done = call(*self.hallway("migrate", self.moves.name, "--cancel"))
                check(done.returncode == 0, f"not cancelled: {done}")
            else:
                destination.stop()
            said = process.communicate(timeout=60 * self.slow)
            check_stays(subprocess.CompletedProcess(words, process.returncode, *said), why)
        finally:
            destination.stop()

    def _transferred(self) -> int:
        """Return how many bytes a running migration has transferred."""
        reply = self.moves.qmp.command("query-migrate")
        return reply["ram"]["transferred"] if reply.get("status") == "active" else 0

    def wait_on_rings(self, count: int) -> None:
        """Wait until `count` connections are on rings both ways, and rings carry bytes each way."""
        with autopsy(*self.both):
            wait_members(*self.both)
            wait_for(
                lambda: sum(on_rings(c) for c in connections(self.stays)) >= count,
                f"{count} connections are on rings both ways",
                30 * self.slow,
            )
            ringed = Delta(*self.both)
            wait_for(
                lambda: min(ringed.of(vm)["tx_bytes_ring"] for vm in self.both) > ENOUGH,
                "rings carry bytes",
                30 * self.slow,
            )
        for vm in self.both:
            found = odd(ringed.of(vm))
            check(not found, f"{vm.name}, where doorbells must work: {', '.join(found)}")

    def check_on_tcp(self) -> None:
        """Fail unless TCP alone carries bytes, and neither VM serves the other."""
        ringed = Delta(*self.both)
        for vm, other in (self.both, self.both[::-1]):
            check(not members(vm) & {other.ip4, other.ip6}, f"{vm.name} takes {other.name} for co-resident")
            check(not connections(vm), f"still attached: {connections(vm)}")
        self.wait_on_wire()
        for vm in self.both:
            check(not ringed.of(vm)["tx_bytes_ring"], f"{vm.name} sent bytes through rings")

    def wait_on_wire(self) -> None:
        """Wait until the VM that migrates has sent bytes by its network device."""
        before = self._sent()
        with autopsy(*self.both):
            wait_for(lambda: self._sent() > before + ENOUGH, "the wire carries bytes", 30 * self.slow)

    def _sent(self) -> int:
        return int(self.moves.get("/sys/class/net/eth0/statistics/tx_bytes"))

    def wait_carried(self, to: Host, count: int) -> None:
        """Wait until `count` connections have the right carrier for a VM that has moved to this host."""
        if to is self.here:
            self.wait_on_rings(count)
        else:
            wait_for(
                lambda: self._a_member(to), f"{self.moves.name} is a member on {to.name}", 30 * self.slow
            )
            self.check_on_tcp()

    def _a_member(self, host: Host) -> bool:
        shown = host.daemon.status()["regions"]
        return any(
            m["uuid"] == self.moves.uuid and m["liveness"] == "alive" and m["addresses"]
            for region in shown
            for m in region["members"]
        )

    def check_counters(self, delta: Delta) -> None:
        """Fail on corruption, a reset, or an unhealthy guest.

        The watchdog may wake sleepers: their peer stood still.
        """
        for vm in self.both:
            moved = delta.of(vm)
            found = odd(moved, watchdog=False)
            check(not found, f"{vm.name}: {', '.join(found)}")
            check(not moved["resets"], f"{vm.name}: resets is {moved['resets']}")
        self.healthy()


def check_stays(done: subprocess.CompletedProcess[str], why: str) -> None:
    """Fail unless `hallway migrate` says that the VM stays, and why."""
    check(done.returncode == 1 and f"stays here: {why}" in done.stderr, f"not because {why}: {done}")


@contextlib.contextmanager
def booted(kernel: str, share: Path, logs: Path, slow: float, more: str = "") -> Iterator[Hosts]:
    """Run both hosts, and both VMs on the first of them, for the length of the block.

    `more` belongs to the entry of the one that `hallway migrate` moves: see hosts().
    """
    options = {"share": share, "memory_mib": MEMORY, "boot_timeout": 120 * slow}
    both = hosts.hosts("here", "there", driven=[DRIVEN], by_hand=[BY_HAND], more=more)
    with both as (here, there):
        stays, moves = (name_logs(here.vm(n, kernel, **options), logs) for n in (BY_HAND, DRIVEN))
        with boot_all(stays, moves):
            for vm in (stays, moves):
                here.plug(vm)
                settle_in(vm)
                # A guest with the shared folder mounted cannot migrate.
                vm.run("cp -r /hallway/guest /hallway/hallway.ko /hallway/hallway_vsock.ko /root")
                insmod(vm, **AT_ONCE)
                vm.run("umount /hallway")
            wait_members(stays, moves)
            yield Hosts(here, there, stays, moves, slow)
