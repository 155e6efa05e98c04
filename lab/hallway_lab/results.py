# SPDX-License-Identifier: Apache-2.0 OR MIT
"""One store of results, and one writer of tables.

A record says how one thing fared on one kernel: a row of the demo or of the
benchmarks, a program, a suite, a fault. Each run appends its records to
out/results/KIND.jsonl, one line of JSON each; the last record of a key on a
kernel counts.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime
import json
import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from . import accel, kernels, modbuild, paths
from .venv import use

TABULATE = "tabulate==0.10.0"
DIRTY = "-dirty"  # ends the revision of a module with changes that are in no commit
TERMINAL, MARKDOWN = "simple", "github"  # tabulate's names of the two forms of a table
REST = "measured"  # the column of all figures that have no column of their own


@dataclass(frozen=True)
class Figure:
    """One sample or several, of one unit; at least one.

    The unit is "s", "B" (bytes), "%" (a share from 0 to 1), "×" (a ratio), ""
    (a count), or any other word, which is printed behind the number.
    """

    samples: tuple[float, ...]
    unit: str = ""

    @property
    def median(self) -> float:
        """The middle of the samples."""
        return statistics.median(self.samples)

    @property
    def lowest(self) -> float:
        """The lowest sample."""
        return min(self.samples)

    @property
    def highest(self) -> float:
        """The highest sample."""
        return max(self.samples)

    def quantile(self, part: float) -> float:
        """The value that this part of the samples, from 0 to 1, are below: between samples, a line."""
        place = part * (len(self.samples) - 1)
        below = int(place)
        two = [*sorted(self.samples), self.highest][below : below + 2]
        return two[0] + (place - below) * (two[1] - two[0])

    def __str__(self) -> str:
        words = SCALED.get(self.unit, number)
        text = words(self.median)
        if len(self.samples) > 1:
            text += f" ({words(self.lowest)} to {words(self.highest)})"
        return text if self.unit in SCALED else f"{text} {self.unit}"


def figure(unit: str, *samples: float) -> Figure:
    """Return a figure of these samples."""
    return Figure(samples, unit)


@dataclass(frozen=True)
class Record:
    """How one thing fared on one kernel."""

    key: str
    name: str  # for people
    kernel: str  # as the lab calls it
    release: str  # as the kernel calls itself
    revision: str  # of the module, DIRTY behind it if there were changes
    date: str
    machine: str  # what ran the VMs: TCG or KVM, and how many CPUs; or what else ran the kernel
    verdict: str  # one word: "ok", "FAILED", ...
    figures: dict[str, Figure | str] = field(default_factory=dict)
    faults: tuple[str, ...] = ()  # why it failed
    notes: tuple[str, ...] = ()  # what is worth knowing beside
    details: dict[str, Any] = field(default_factory=dict)  # in no table

    def line(self) -> str:
        """Return the record as a line of the store."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)

    @classmethod
    def parse(cls, line: str) -> Record:
        """Return the record of a line of the store."""
        kept = json.loads(line)
        kept["figures"] = {
            name: one if isinstance(one, str) else Figure(tuple(one["samples"]), one["unit"])
            for name, one in kept["figures"].items()
        }
        return cls(**kept | {"faults": tuple(kept["faults"]), "notes": tuple(kept["notes"])})


class Store:
    """The records of one kind that a run makes on one kernel."""

    def __init__(self, kind: str, kernel: str, runner: str | None = None) -> None:
        """Begin a run, once the module is built: the records name the sources of now.

        `runner` is what runs the kernel, if it is not QEMU.
        """
        self.kind = kind
        self.records: list[Record] = []
        self._same = {
            "kernel": kernel,
            "release": kernels.kernel(kernel).version,
            "revision": modbuild.revision(),
            "date": datetime.date.today().isoformat(),
            "machine": f"{runner or accel.name().upper()}, {len(os.sched_getaffinity(0))} CPUs",
        }

    def record(self, key: str, name: str, verdict: str = "", **rest: Any) -> Record:
        """Make a record; with faults, the verdict is FAILED."""
        if rest.get("faults"):
            verdict = "FAILED"
        one = Record(key=key, name=name, verdict=verdict or "ok", **self._same, **rest)
        self.records.append(one)
        return one

    def add(self, key: str, name: str, verdict: str = "", **rest: Any) -> Record:
        """Make a record and keep it."""
        one = self.record(key, name, verdict, **rest)
        keep(self.kind, one)
        return one


def keep(kind: str, one: Record) -> None:
    """Append a record to its kind's file."""
    with open(paths.out("results", f"{kind}.jsonl"), "a") as file:
        file.write(f"{one.line()}\n")


def read(kind: str, revision: str | None = None) -> list[Record]:
    """Return the last record of each key on each kernel, of one revision if it is named."""
    path = paths.out("results", f"{kind}.jsonl")
    lines = path.read_text().splitlines() if path.exists() else []
    records = [Record.parse(line) for line in lines]
    kept = {(one.key, one.kernel): one for one in records if revision in (None, one.revision)}
    return list(kept.values())


# -- samples -------------------------------------------------------------------

COLUMNS = (
    *("key", "name", "kernel", "figure", "unit", "median", "p10", "p99", "lowest", "highest"),
    *("samples", "verdict", "paper", "command", "revision", "date", "machine"),
)


def write_samples(path: Path, records: Iterable[Record]) -> None:
    """Write a line of CSV for each figure of the records; numbers are in the figure's unit."""
    with open(path, "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for one in records:
            table.writerows(
                (
                    *(one.key, one.name, one.kernel, name, found.unit),
                    *(found.median, found.quantile(0.1), found.quantile(0.99), found.lowest, found.highest),
                    " ".join(map(str, found.samples)),
                    *(one.verdict, one.figures.get("paper", ""), one.details.get("command", "")),
                    *(one.revision, one.date, one.machine),
                )
                for name, found in one.figures.items()
                if isinstance(found, Figure)
            )


# -- tables --------------------------------------------------------------------


def prepare() -> None:
    """Have the library of tables; fetched once, so call it before a run leaves the network."""
    if not find_spec("tabulate"):
        use("tables", TABULATE)


def table(records: Iterable[Record], columns: Sequence[str], form: str = TERMINAL) -> str:
    """Return a table of these columns: fields of a record, names of figures, or REST."""
    prepare()
    from tabulate import tabulate

    rows = [[_cell(one, column, columns) for column in columns] for one in records]
    right = [
        any(isinstance(row[n], Figure) and len(row[n].samples) == 1 for row in rows)
        for n in range(len(columns))
    ]
    cells = [
        [str(cell).replace("|", "\\|") if form == MARKDOWN else str(cell) for cell in row] for row in rows
    ]
    return tabulate(
        cells,
        headers=columns,
        tablefmt=form,
        colalign=["right" if one else "left" for one in right] if rows else None,
        disable_numparse=True,
    )


def rest(one: Record, columns: Sequence[str]) -> str:
    """Return the figures that have no column of their own; they may be none."""
    return "; ".join(f"{name} {value}" for name, value in one.figures.items() if name not in columns)


def _cell(one: Record, column: str, columns: Sequence[str]) -> Figure | str:
    if column == REST:
        return rest(one, columns)
    if column in one.figures:
        return one.figures[column]
    return getattr(one, column, "-")


def number(value: float) -> str:
    """Return a number with three or so significant digits; a count as it is."""
    if value >= 1000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def size(value: float) -> str:
    """Return bytes in decimal units."""
    if value < 1000:
        return f"{value:.0f} B"
    for unit, scale in (("kB", 1e3), ("MB", 1e6)):
        if value < 1000 * scale:
            return f"{value / scale:.1f} {unit}"
    return f"{value / 1e9:.1f} GB"


def duration(value: float) -> str:
    """Return seconds, as milliseconds if there are few."""
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def share(value: float) -> str:
    """Return a share in percent, never rounded up to a full one."""
    return f"{int(value * 1000) / 10:.1f} %"


def ratio(value: float) -> str:
    """Return how many times."""
    return f"{value:.2f}×" if value < 10 else f"{value:.1f}×"


SCALED: dict[str, Callable[[float], str]] = {"s": duration, "B": size, "%": share, "×": ratio, "": number}
