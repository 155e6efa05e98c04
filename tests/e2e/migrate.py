"""A VM migrates between two hosts while streams go on with one that stays."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hallway_lab import hosts
from hallway_lab.hosts import Host, NotMoved
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
MEMORY = 384  # MiB: less to carry over
ENOUGH = 300_000  # bytes that show that a carrier is at work
SLOWLY = 20 << 20  # bytes a second: a migration that lasts


@dataclass
class Hosts:
    """Two hosts, a VM that stays on the first of them, and one that migrates."""

    here: Host
    there: Host
    stays: VM
    moves: VM
    slow: float

    @property
    def both(self) -> tuple[VM, VM]:
        """Both VMs."""
        return self.stays, self.moves

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

    def on_tcp(self) -> None:
        """Streams go on without a ring between the two, who no longer know each other."""
        ringed = Delta(*self.both)
        for vm, other in (self.both, self.both[::-1]):
            check(
                not members(vm) & {other.ip4, other.ip6},
                f"{vm.name} takes {other.name} for co-resident",
            )
            check(not connections(vm), f"attached still: {connections(vm)}")
        before = _sent(self.moves)
        with autopsy(*self.both):
            wait_for(
                lambda: _sent(self.moves) > before + ENOUGH,
                "the wire carries bytes",
                30 * self.slow,
            )
        for vm in self.both:
            check(
                not ringed.of(vm)["tx_bytes_ring"],
                f"{vm.name} sent bytes through rings",
            )

    def settled(self, to: Host, count: int) -> None:
        """So many connections are carried as they should be once the VM is on that host."""
        if to is self.here:
            self.on_rings(count)
        else:
            self.on_tcp()


def _sent(vm: VM) -> int:
    return int(vm.get("/sys/class/net/eth0/statistics/tx_bytes"))


@contextlib.contextmanager
def booted(
    kernel: str, share: Path, logs: Path, slow: float, configured: Sequence[int] = ()
) -> Iterator[Hosts]:
    """Run the hosts, and both VMs on the first of them, for the length of the block."""
    options = {"share": share, "memory_mib": MEMORY, "boot_timeout": 120 * slow}
    with hosts.hosts("here", "there", configured=configured) as (here, there):
        vms = [named_log(here.vm(number, kernel, **options), logs) for number in (1, 2)]
        with boot_all(*vms):
            for vm in vms:
                if not configured:
                    vm.plug(here.daemon.region)
                settle_in(vm)
                vm.run("cp -r /hallway/e2e /hallway/hallway.ko /root")
                insmod(vm, **AT_ONCE)
                vm.run("umount /hallway")
            stage = Hosts(here, there, *vms, slow)
            wait_members(*vms)
            yield stage


def migrates(stage: Hosts) -> None:
    """A VM leaves its host, comes back, and changes its QEMU there: streams go on, on rings if they can."""
    delta = Delta(*stage.both)
    stream = Stream(stage.stays, stage.moves, conns=4, stall=60)
    stage.on_rings(4)
    for to in (stage.there, stage.here, stage.here):
        move = hosts.migrate(stage.moves, to)
        stream.check_running(f"when its VM moved to {to.name} ({move})")
        stage.settled(to, 4)
    stream.stop()
    stream.finish(60 * stage.slow)
    nothing_odd(stage, delta)


def migration_fails(stage: Hosts) -> None:
    """A migration that is cancelled, or whose destination dies, leaves all as it was, on rings again."""
    delta = Delta(*stage.both)
    stream = Stream(stage.stays, stage.moves, conns=4, stall=60)
    for how in ("cancelled", "failed"):
        stage.on_rings(4)
        stage.moves.unplug("ring0")
        destination = hosts.arrival(stage.moves, stage.there)
        try:
            hosts.begin(stage.moves, destination, SLOWLY)
            wait_for(lambda: _transferred(stage.moves), "the migration is on its way")
            if how == "failed":
                destination.stop()
            else:
                stage.moves.qmp.command("migrate_cancel")
            try:
                hosts.end(stage.moves, destination)
                raise AssertionError("the migration succeeded")
            except NotMoved as told:
                check(how in str(told), f"not {how}: {told}")
        finally:
            destination.stop()
        stage.moves.plug(stage.here.daemon.region)
    stage.on_rings(4)
    stream.stop()
    stream.finish(60 * stage.slow)
    nothing_odd(stage, delta)


def migrates_by_command(stage: Hosts) -> None:
    """`hallway migrate` has a VM leave and come back; one that has to stay gets its region again."""
    delta = Delta(*stage.both)
    stream = Stream(stage.stays, stage.moves, conns=4, stall=60)
    stage.on_rings(4)
    at, to = stage.here, stage.there
    refused = _hallway(at, "migrate", stage.moves.name, "unix:/run/nobody")
    check(refused.returncode == 1, f"migrated to nobody: {refused}")
    check(
        f"{stage.moves.name} stays here: QEMU" in refused.stderr,
        f"not why it stays: {refused}",
    )
    stage.on_rings(4)
    for _ in range(2):
        destination = hosts.arrival(stage.moves, to)
        try:
            done = _hallway(at, "migrate", stage.moves.name, hosts.address(destination))
            check(done.returncode == 0, f"does not migrate: {done}")
            check(
                "stood still" in done.stdout and "is taken out" in done.stderr,
                f"does not tell: {done}",
            )
            stage.moves.become(destination)
        except BaseException:
            destination.stop()
            raise
        stream.check_running(f"when its VM moved to {to.name}")
        stage.settled(to, 4)
        at, to = to, at
    stream.stop()
    stream.finish(60 * stage.slow)
    nothing_odd(stage, delta)


def _hallway(host: Host, *words: str) -> subprocess.CompletedProcess[str]:
    return call(binaries() / "hallway", *words, "--run-dir", host.daemon.run_dir)


def _transferred(vm: VM) -> int:
    return vm.qmp.command("query-migrate").get("ram", {}).get("transferred", 0)


def nothing_odd(stage: Hosts, delta: Delta) -> None:
    """No corruption, and no reset. A sleeper may owe its waking to the watchdog: its peer stood still."""
    for vm in stage.both:
        moved = delta.of(vm)
        found = odd(moved, watchdog=False)
        check(not found, f"{vm.name}: {', '.join(found)}")
        check(not moved["resets"], f"{vm.name}: resets is {moved['resets']}")
    healthy(*stage.both)


TESTS = (migrates, migration_fails)
