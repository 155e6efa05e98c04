"""Two VMs with a stream between them, to which nothing may happen, and room for a third.

The third one is what comes, goes and dies. Whatever a scenario does to it,
after it the first two are what they were before.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hallway_lab import topology
from hallway_lab.vm import VM
from hallway_tests.guests import (
    Delta,
    Stream,
    autopsy,
    connections,
    insmod,
    members,
    odd,
    settle_in,
    wait_members,
)
from hallway_tests.pair import Pair, booted, count_on_rings
from hallway_tests.suite import check, wait_for

from .scenario import Outcome, Setting

# Every connection gets a ring at its first byte.
AT_ONCE = {"promote_bytes": 0, "promote_ms": 0}
BYSTANDERS = 3
OFF_RINGS = 0.05  # how much of what a bystander moves may go over TCP, before its rings and while they grow


@dataclass
class Stage:
    """What a scenario gets."""

    pair: Pair

    @contextlib.contextmanager
    def bystander(self, outcome: Outcome, *, broken: bool = False, **params: object) -> Iterator[Stream]:
        """A stream between the two VMs: it stays on rings, and its VMs are afterwards as they were.

        The module is loaded anew before and unloaded after: with ring memory or
        a context left behind, that would not return. broken: rings of others may break.
        """
        pair = self.pair
        pair.load(**AT_ONCE | params)
        start, delta = self._held(), Delta(*pair.both)
        stream = Stream(pair.b, pair.a, conns=BYSTANDERS, both="--stall 60")
        pair.wait_on_rings(BYSTANDERS)
        yield stream
        stream.check_running("though nothing happened to its VMs")
        pair.wait_on_rings(BYSTANDERS)
        for one in [c for c in connections(pair.a) if stream.port in (c["local_port"], c["remote_port"])]:
            for way in (one["tx"], one["rx"]):
                check(way["tcp_bytes"] < OFF_RINGS * way["ring_bytes"], f"it was on TCP for long: {one}")
        stream.stop()
        stream.finish()
        wait_for(lambda: not any(connections(vm) for vm in pair.both), "no connection is left")
        for vm in pair.both:
            moved = delta.of(vm)
            found = odd(moved | {"corrupt_rings": 0} if broken else moved)
            check(not found, f"{vm.name}: {', '.join(found)}")
            check(moved["tx_bytes_ring"], f"{vm.name} sent nothing through rings")
            outcome.ring_bytes += moved["tx_bytes_ring"]
        wait_for(lambda: self._held() == start, f"all is given back: {start}")
        pair.unload()
        pair.healthy()

    @contextlib.contextmanager
    def victim(self, **options: Any) -> Iterator[VM]:
        """A third VM, which is a member, for the length of the block."""
        third = self.pair.third(**options)
        with self.pair.site.join(third):
            settle_in(third)
            insmod(third, **AT_ONCE)
            wait_members(*self.pair.both, third)
            yield third

    def missed(self, third: VM) -> None:
        """Wait until the two serve the third VM no more."""
        for vm in self.pair.both:
            wait_for(lambda: third.ip4 not in members(vm), f"{vm.name} misses it")  # noqa: B023

    def ringed(self, third: VM) -> int:
        """Count the third VM's connections with the first that have both directions on rings."""
        return count_on_rings(self.pair.a, third)

    def on_rings(self, third: VM, count: int, timeout: float = 30) -> None:
        """Wait until so many of them are."""
        with autopsy(self.pair.a, third):
            wait_for(lambda: self.ringed(third) == count, f"{count} are on rings", timeout)

    def _held(self) -> dict[str, object]:
        return held(self.pair.site.daemon, *self.pair.both)


def held(daemon: topology.Daemon, *vms: VM) -> dict[str, object]:
    """Return what these VMs and the daemon hold on to."""
    status = daemon.status()
    ours = [vm.uuid for vm in vms]
    shown = [m for region in status["regions"] for m in region["members"] if m["uuid"] in ours]
    return {
        "members": sorted(
            (m["uuid"], m["liveness"], m["channels"]) for m in shown if m["liveness"] != "absent"
        ),
        "QEMUs": len(status["vms"]),
        "descriptors": len(os.listdir(f"/proc/{status['pid']}/fd")),
    }


@contextlib.contextmanager
def pair(setting: Setting, **options: Any) -> Iterator[Stage]:
    """Boot the two VMs."""
    # That of a stage before may have another size.
    (topology.REGION_DIR / "default").unlink(missing_ok=True)
    with booted(setting.kernel, setting.share, setting.logs, 1, **options) as two:
        yield Stage(two)
