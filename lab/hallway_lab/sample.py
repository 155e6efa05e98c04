# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Samples of programs between two VMs, with Hallway off and on by turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .ledger import SHARE, Ledger, judge, unwanted
from .measure import Switchable
from .programs import Run
from .results import Figure, figure, number
from .sh import LabError, say

# Medians of a few samples differ by this much where nothing has changed.
NOISE = 0.05


@dataclass(frozen=True)
class Row:
    """A program that says how fast it was."""

    key: str
    title: str
    unit: str
    run: Callable[[], Run]
    command: str = ""  # what it runs, for people
    target: float = 0  # the ratio that is promised; 0: none is
    paper: str = ""  # what a paper says of such a row
    lower_is_better: bool = False
    spin_us: int | None = None  # None: the module's default
    carries: bool = True  # False: too few bytes to be promoted at all
    share: float = SHARE  # of the payload that rings have to carry
    settle: Callable[[bool], None] | None = None  # before a run, with Hallway on or off
    beside: tuple[tuple[str, Callable[[], Run]], ...] = ()  # other ways that it is compared with


@dataclass
class Samples:
    """All samples of one row, and what was wrong with any of them."""

    row: Row
    tcp: list[float] = field(default_factory=list)
    hallway: list[float] = field(default_factory=list)
    beside: dict[str, list[float]] = field(default_factory=dict)
    more: dict[str, list[float]] = field(default_factory=dict)  # by name and carrier
    ledger: Ledger | None = None  # of the last run with Hallway on
    faults: list[str] = field(default_factory=list)

    @property
    def ratio(self) -> float | None:
        """How much better Hallway's median is."""
        if not self.tcp or not self.hallway:
            return None
        better, worse = (figure("", *part).median for part in (self.hallway, self.tcp))
        if self.row.lower_is_better:
            better, worse = worse, better
        # What idles may need nothing that can be measured.
        return better / worse if worse else None

    @property
    def is_even(self) -> bool:
        """Tell whether the medians differ by noise: little, and less than the samples of one carrier do."""
        if self.ratio is None:
            return False
        overlap = min(max(self.tcp), max(self.hallway)) >= max(min(self.tcp), min(self.hallway))
        return overlap and 1 - NOISE <= self.ratio <= 1 / (1 - NOISE)

    def figures(self) -> dict[str, Figure | str]:
        """Return what a record holds of them."""
        unit = self.row.unit
        found: dict[str, Figure | str] = {
            name: figure(unit, *values)
            for name, values in (("TCP", self.tcp), ("Hallway", self.hallway), *self.beside.items())
            if values
        }
        if self.ratio is not None:
            found["ratio"] = figure("×", self.ratio)
        found |= {name: figure("", *values) for name, values in self.more.items()}
        if self.row.target:
            found["target"] = f"≥ {self.row.target:g}×"
        if self.row.paper:
            found["paper"] = self.row.paper
        return found | (self.ledger.figures() if self.ledger else {})


def sample(stand: Switchable, samples: Samples, *, on_first: bool = False) -> None:
    """Run a row's program once with Hallway off, once with it on, and once in each way beside."""
    row = samples.row
    stand.spin(row.spin_us)
    for on in (on_first, not on_first):
        name = "Hallway" if on else "TCP"
        try:
            stand.switch(on)
            if row.settle:
                row.settle(on)
            with stand.meter() as traffic:
                done = row.run()
        except LabError as failure:
            samples.faults.append(f"{name}: {failure}")
            say(f"  {row.title}, FAILED: {failure}")
            continue
        (samples.hallway if on else samples.tcp).append(done.value)
        for key, value in done.more.items():
            samples.more.setdefault(f"{key}, {name}", []).append(value)
        if on and row.carries:
            samples.ledger = judge(traffic, done.up, done.down, row.share)
            samples.faults += samples.ledger.faults
        elif not on:
            samples.faults += unwanted(traffic)
        say(f"  {row.title}, {name}: {number(done.value)} {row.unit}")
    if row.beside:
        stand.switch(False)
    for name, go in row.beside:
        try:
            done = go()
        except LabError as failure:
            samples.faults.append(f"{name}: {failure}")
            say(f"  {row.title}, FAILED: {failure}")
            continue
        samples.beside.setdefault(name, []).append(done.value)
        say(f"  {row.title}, {name}: {number(done.value)} {row.unit}")
