"""A VM migrates between two hosts while streams go on with one that stays."""

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
from hallway_tests.guests import (
    Delta,
    Stream,
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
from hallway_tests.suite import check, wait_for

from .lab import named_log

AT_ONCE = {"promote_bytes": 0, "promote_ms": 0}
DRIVEN, BY_HAND = 2, 1  # VMs that hallwayd migrates, and serves at all; and one that it does not
MEMORY = 384  # MiB: less to carry over
STREAMS = 4
ENOUGH = 300_000  # bytes that show that a carrier is at work
SLOWLY = 20 << 20  # bytes a second: a migration that lasts


@dataclass
class Hosts:
    """Two hosts, a VM that stays on the first of them, and one that migrates, by `hallway migrate`."""

    here: Host
    there: Host
    stays: VM
    moves: VM
    slow: float

    @property
    def both(self) -> tuple[VM, VM]:
        """Both VMs."""
        return self.stays, self.moves

    def by_hand(self) -> Hosts:
        """The same with other roles: the one that migrates does so by hand."""
        return replace(self, stays=self.moves, moves=self.stays)

    def hallway(self, *words: str) -> list[str]:
        """Return the words of a command about the VM that migrates, on the host where it is."""
        at = next(host for host in (self.here, self.there) if host.name == self.moves.config.host)
        return [str(w) for w in (binaries() / "hallway", *words, "--run-dir", at.daemon.run_dir)]

    def migrate(self, to: Host) -> Move:
        """Have it migrate by command."""
        hosts.hurry(self.moves)
        with hosts.arriving(self.moves, to) as destination:
            begin = time.monotonic()
            done = call(*self.hallway("migrate", self.moves.name, hosts.address(destination)))
            took = time.monotonic() - begin
            check(done.returncode == 0, f"does not migrate: {done}")
            check("it stood still" in done.stdout, f"does not tell: {done}")
            told = self.moves.qmp.command("query-migrate")
        migrated = told["total-time"] / 1000
        return Move(took - migrated, migrated, told["downtime"] / 1000)

    def on_rings(self, count: int) -> None:
        """Wait until both know each other, and so many connections have both directions on rings."""

        def promoted() -> bool:
            shown = connections(self.stays)
            return sum(c["tx"]["carrier"] % 2 and c["rx"]["carrier"] % 2 for c in shown) >= count

        with autopsy(*self.both):
            wait_members(*self.both)
            wait_for(promoted, f"{count} connections are on rings both ways", 30 * self.slow)
            ringed = Delta(*self.both)
            wait_for(
                lambda: min(ringed.of(vm)["tx_bytes_ring"] for vm in self.both) > ENOUGH,
                "rings carry bytes",
                30 * self.slow,
            )
        for vm in self.both:
            found = odd(ringed.of(vm))
            check(not found, f"{vm.name}, where doorbells are to ring: {', '.join(found)}")

    def on_tcp(self) -> None:
        """Streams go on without a ring between the two, who no longer know each other."""
        ringed = Delta(*self.both)
        for vm, other in (self.both, self.both[::-1]):
            check(
                not members(vm) & {other.ip4, other.ip6},
                f"{vm.name} takes {other.name} for co-resident",
            )
            check(not connections(vm), f"attached still: {connections(vm)}")
        self.wire_carries()
        for vm in self.both:
            check(
                not ringed.of(vm)["tx_bytes_ring"],
                f"{vm.name} sent bytes through rings",
            )

    def wire_carries(self) -> None:
        """Wait until bytes go over the wire."""
        before = _sent(self.moves)
        with autopsy(*self.both):
            wait_for(
                lambda: _sent(self.moves) > before + ENOUGH,
                "the wire carries bytes",
                30 * self.slow,
            )

    def settled(self, to: Host, count: int) -> None:
        """So many connections are carried as they should be once the VM is on that host."""
        if to is self.here:
            self.on_rings(count)
        else:
            wait_for(
                lambda: self._a_member(to), f"{self.moves.name} is a member on {to.name}", 30 * self.slow
            )
            self.on_tcp()

    def _a_member(self, host: Host) -> bool:
        shown = host.daemon.status()["regions"]
        return any(
            m["uuid"] == self.moves.uuid and m["liveness"] == "alive" and m["addresses"]
            for region in shown
            for m in region["members"]
        )


def _sent(vm: VM) -> int:
    return int(vm.get("/sys/class/net/eth0/statistics/tx_bytes"))


@contextlib.contextmanager
def booted(kernel: str, share: Path, logs: Path, slow: float) -> Iterator[Hosts]:
    """Run the hosts, and both VMs on the first of them, for the length of the block."""
    options = {"share": share, "memory_mib": MEMORY, "boot_timeout": 120 * slow}
    with hosts.hosts("here", "there", driven=[DRIVEN], by_hand=[BY_HAND]) as (here, there):
        stays, moves = (named_log(here.vm(n, kernel, **options), logs) for n in (BY_HAND, DRIVEN))
        with boot_all(stays, moves):
            for vm in (stays, moves):
                here.plug(vm)
                settle_in(vm)
                vm.run("cp -r /hallway/e2e /hallway/hallway.ko /root")
                insmod(vm, **AT_ONCE)
                vm.run("umount /hallway")
            wait_members(stays, moves)
            yield Hosts(here, there, stays, moves, slow)


def migrates(stage: Hosts) -> None:
    """`hallway migrate` has a VM leave its host and come back: streams go on, on rings if they can."""
    with _streaming(stage) as stream:
        for to in (stage.there, stage.here):
            move = stage.migrate(to)
            stream.check_running(f"when its VM moved to {to.name} ({move})")
            stage.settled(to, STREAMS)


def migrates_by_hand(stage: Hosts) -> None:
    """A VM changes its QEMU on its host, by QMP: streams go on, on rings again."""
    stage = stage.by_hand()
    with _streaming(stage) as stream:
        move = hosts.migrate(stage.moves, stage.here)
        stream.check_running(f"when its VM moved ({move})")
        stage.settled(stage.here, STREAMS)


def migration_fails(stage: Hosts) -> None:
    """One that is cancelled, or whose destination is not there or dies, leaves all as it was, on rings."""
    with _streaming(stage) as stream:
        nowhere = call(*stage.hallway("migrate", stage.moves.name, "unix:/run/nowhere"))
        _stays(nowhere, "QEMU failed to migrate")
        for why in ("cancelled", "QEMU failed to migrate"):
            stream.check_running(f"before it was {why}")
            stage.on_rings(STREAMS)
            fail(stage, why)
        stage.on_rings(STREAMS)


def fail(stage: Hosts, why: str) -> None:
    """A migration begins, and is cancelled or fails on its way; the VM stays where it is."""
    hosts.hurry(stage.moves, SLOWLY)
    destination = hosts.arrival(stage.moves, stage.there)
    try:
        words = stage.hallway("migrate", stage.moves.name, hosts.address(destination))
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_for(lambda: _transferred(stage.moves), "the migration is on its way", 60 * stage.slow)
        if why == "cancelled":
            done = call(*stage.hallway("migrate", stage.moves.name, "--cancel"))
            check(done.returncode == 0, f"not cancelled: {done}")
        else:
            destination.stop()
        said = process.communicate(timeout=60 * stage.slow)
        _stays(subprocess.CompletedProcess(words, process.returncode, *said), why)
    finally:
        destination.stop()


def _stays(done: subprocess.CompletedProcess[str], why: str) -> None:
    check(done.returncode == 1 and f"stays here: {why}" in done.stderr, f"not because {why}: {done}")


@contextlib.contextmanager
def _streaming(stage: Hosts) -> Iterator[Stream]:
    """Run a stream throughout the block, on rings as it begins, and to its end."""
    delta = Delta(*stage.both)
    stream = Stream(stage.stays, stage.moves, conns=STREAMS, stall=60)
    stage.on_rings(STREAMS)
    yield stream
    stream.stop()
    stream.finish(60 * stage.slow)
    nothing_odd(stage, delta)


def _transferred(vm: VM) -> int:
    told = vm.qmp.command("query-migrate")
    return told["ram"]["transferred"] if told.get("status") == "active" else 0


def nothing_odd(stage: Hosts, delta: Delta) -> None:
    """No corruption, and no reset. A sleeper may owe its waking to the watchdog: its peer stood still."""
    for vm in stage.both:
        moved = delta.of(vm)
        found = odd(moved, watchdog=False)
        check(not found, f"{vm.name}: {', '.join(found)}")
        check(not moved["resets"], f"{vm.name}: resets is {moved['resets']}")
    healthy(*stage.both)


TESTS = (migrates, migrates_by_hand, migration_fails)
