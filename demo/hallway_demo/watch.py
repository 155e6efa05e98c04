# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a run of a program did to the guests: the time of their CPUs, and how often a ring made it wait."""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from hallway_lab.measure import Times
from hallway_lab.results import Figure, figure, share
from hallway_lab.vm import VM

# The module's counters of each column, summed over both guests.
WAITS = {
    "ring full": ("ring_full",),
    "doorbells": ("doorbells_sent",),
    "sleeps": ("rx_sleeps", "tx_sleeps"),
}
# The module's counters of what does not go by TCP.
CARRIED = ("tx_bytes_ring", "tx_bytes_tunnel", "tx_bytes_outsourced", "rx_bytes_outsourced")


@dataclass(frozen=True)
class Snapshot:
    """What one guest has counted since it booted."""

    times: Times
    counters: dict[str, int]

    @classmethod
    def of(cls, vm: VM) -> Snapshot:
        """Ask a guest."""
        stat, counters = vm.run("head -n 1 /proc/stat; hallway counters --json").out.split("\n", 1)
        return cls(Times.parse(stat), json.loads(counters))


@dataclass
class Activity:
    """One run, filled in at its end. Shares are of the guest with the busier programs."""

    on_rings: bool = False  # the VMs' own, tunnels', or those to the outsourcer
    busy: float = 0  # the part of the time in which its CPU ran
    own: float | None = None  # the part of that in which it ran programs, not the kernel
    waits: dict[str, int] | None = None


class Watch:
    """All runs of a row."""

    def __init__(self, *guests: VM) -> None:
        self._guests = guests
        self.runs: list[Activity] = []

    @contextlib.contextmanager
    def around(self) -> Iterator[Activity]:
        """Watch the guests during the block. The block may set the shares, where a program knows better."""
        activity = Activity()
        before = [Snapshot.of(vm) for vm in self._guests]
        yield activity
        after = [Snapshot.of(vm) for vm in self._guests]
        _fill(activity, list(zip(before, after, strict=True)))
        self.runs.append(activity)

    def own(self, *, on_rings: bool) -> float | None:
        """Return the median of the programs' share of the CPU's time."""
        found = [run.own for run in self.runs if run.on_rings == on_rings and run.own is not None]
        return statistics.median(found) if found else None

    def figures(self) -> dict[str, Figure | str]:
        """Return what a record holds of the runs on rings."""
        runs = [run for run in self.runs if run.on_rings and run.waits is not None]
        if not runs:
            return {}
        found: dict[str, Figure | str] = {
            name: figure("", statistics.median([run.waits[name] for run in runs if run.waits]))
            for name in WAITS
        }
        own = self.own(on_rings=True)
        busy = statistics.median([run.busy for run in runs])
        return {"CPU: own / busy": f"{share(own or 0)} / {share(busy)}"} | found


def _fill(activity: Activity, guests: Sequence[tuple[Snapshot, Snapshot]]) -> None:
    counted = [
        {name: new.counters[name] - old.counters[name] for name in new.counters} for old, new in guests
    ]
    most = max((new.times - old.times for old, new in guests), key=attrgetter("own"))
    activity.on_rings = any(one[name] for one in counted for name in CARRIED)
    if activity.own is None:
        activity.own = most.own / max(most.all - most.idle, 1)
        activity.busy = most.busy
    activity.waits = {
        column: sum(one[name] for one in counted for name in names) for column, names in WAITS.items()
    }
