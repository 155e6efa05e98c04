# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Plots of the benchmarks, one SVG each: throughput, latency, connections, growth.

Each sample is a dot, the line or bar is the median, the shade or whisker
reaches from the lowest sample to the highest. Diamonds and triangles are what TCP here and
the ratio of a paper give together. The importer has made matplotlib available: see venv.use().
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from hallway_lab.results import Figure, Record
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

CARRIERS = (("TCP", "#7a7a7a", "o"), ("Hallway", "#1f6fb4", "s"))
# Of what a row is compared with beside, in the order of its figures.
BESIDE = ("#c2571a", "#3d8b40", "#8a4fa3", "#b0a030")
PAPER = "#a01c4b"
# What precedes a ratio in a paper's words, its marker, and what the legend says.
PAPERS = (
    (":", "D", "paper's ratio"),
    ("to", "D", "paper's ratio, its best"),
    ("≤", "v", "paper's ratio, at most"),
)


@dataclass(frozen=True)
class Panel:
    """One pair of axes, for the records with keys that begin with `prefix`: a curve, or bars."""

    prefix: str
    title: str = ""
    axis: str = ""  # what grows from left to right along a curve; without it, bars
    figure: str = ""  # begins the names of the figures that it shows
    unit: str = ""


SIZE, MESSAGE = "size of writes", "size of messages"
PLOTS = {
    "throughput": (Panel("stream-", "stream", SIZE), Panel("iperf3-", "iperf3", SIZE)),
    "latency": (Panel("trip-"),),
    "connections": (Panel("connect"),),
    "outsourcing": (
        Panel("outsource-stream-out-", "VM to outside", SIZE),
        Panel("outsource-stream-in-", "outside to VM", SIZE),
    ),
    "tunnels": (
        Panel("tunnel-packets-", "messages between VMs", MESSAGE),
        Panel("tunnel-trip-sleep-", "round trip, receivers asleep", MESSAGE),
    ),
    "growth": (
        Panel("growth-connections-", "two VMs", "connections"),
        Panel("growth-connections-", "slowest 1 % of answers", "connections", "p99, ms, ", "ms"),
        Panel("growth-rate-", "connections", "programs that connect"),
        Panel("growth-star-", "all but one call that one", "VMs"),
        Panel("growth-ring-", "each calls the next", "VMs"),
        Panel("growth-cpus-", "two VMs, a program for each CPU", "CPUs of each"),
    ),
    "within": (Panel("within-user-stream-", "within one VM", SIZE),),
    "papers": (
        Panel("papers-stream-", "stream between VMs", SIZE),
        Panel("papers-pingpong-sleep-", "round trip, receivers asleep", SIZE),
    ),
    "xen": (
        Panel("xen-stream-", "stream between domains of Xen", SIZE),
        Panel("xen-pingpong-sleep-", "round trip, receivers asleep", SIZE),
    ),
}


def draw(records: Sequence[Record], folder: Path) -> Iterator[Path]:
    """Draw all that has samples on both carriers; yield the files."""
    matplotlib.rcParams.update(
        {"font.size": 9, "axes.grid": True, "grid.alpha": 0.3, "svg.hashsalt": "hallway"}
    )
    measured = [one for one in records if "ratio" in one.figures]
    for name, panels in PLOTS.items():
        target = folder / f"{name}.svg"
        filled = [
            (panel, group)
            for panel in panels
            if (group := [one for one in measured if one.key.startswith(panel.prefix)])
        ]
        if filled:
            canvas = Canvas(figsize=(4.6 * len(filled), 3.8), layout="constrained")
            for axes, (panel, group) in zip(
                canvas.subplots(1, len(filled), squeeze=False)[0], filled, strict=True
            ):
                (_curve if panel.axis else _bars)(axes, panel, group)
            canvas.supxlabel(
                _conditions([one for _, group in filled for one in group]), fontsize=7, color="#555555"
            )
            canvas.savefig(target, metadata={"Date": None})
            yield target


def _conditions(records: Sequence[Record]) -> str:
    facts = records[0].details
    cpus = " or ".join(str(count) for count in sorted({one.details["guest_cpus"] for one in records}))
    sampled = f"{len(_figure(records[0], 'TCP').samples)} samples of {facts['seconds']} s, medians"
    guests = f"VMs of {cpus} CPU, Linux {facts['guest_kernel']}"
    host = f"QEMU {facts['qemu']} {facts['accelerator'].upper()}, {facts['host_cpus']} CPUs on the host"
    return f"{sampled}; {guests},\n{host}"


def _figure(one: Record, carrier: str) -> Figure:
    found = one.figures[carrier]
    assert isinstance(found, Figure)
    return found


def _beside(panel: Panel, group: list[Record]) -> list[str]:
    """Return the figures in the unit of the panel that every record has beside those of the carriers."""
    if panel.figure:
        return []
    return [
        name
        for name, found in group[0].figures.items()
        if isinstance(found, Figure)
        and found.unit == _figure(group[0], "TCP").unit
        and name not in [carrier for carrier, *_ in CARRIERS]
        and all(name in one.figures for one in group)
    ]


def _expected(one: Record, words: str) -> float | None:
    """Return TCP's median here times a paper's ratio to TCP; None unless the ratio follows `words`."""
    ratio = re.search(rf"{words} ([\d.]+)×", str(one.figures.get("paper", "")))
    if not ratio:
        return None
    tcp = _figure(one, "TCP")
    return tcp.median / float(ratio[1]) if tcp.unit.startswith("µs") else tcp.median * float(ratio[1])


def _curve(axes: Axes, panel: Panel, group: list[Record]) -> None:
    sizes = [int(one.key.rpartition("-")[2]) for one in group]
    for carrier, colour, marker in CARRIERS:
        figures = [_figure(one, f"{panel.figure}{carrier}") for one in group]
        axes.plot(sizes, [one.median for one in figures], color=colour, marker=marker, label=carrier)
        ends = [one.lowest for one in figures], [one.highest for one in figures]
        axes.fill_between(sizes, *ends, color=colour, alpha=0.2)
        for size, one in zip(sizes, figures, strict=True):
            axes.plot([size] * len(one.samples), one.samples, ".", color=colour, markersize=3)
    for name, colour in zip(_beside(panel, group), BESIDE, strict=False):
        axes.plot(
            sizes, [_figure(one, name).median for one in group], "--", color=colour, linewidth=1, label=name
        )
    for words, marker, label in PAPERS if not panel.figure else ():
        found = [(size, _expected(one, words)) for size, one in zip(sizes, group, strict=True)]
        if points := [point for point in found if point[1]]:
            axes.plot(*zip(*points, strict=True), marker, color=PAPER, markersize=5, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    words = [
        one.name.rpartition(" of ")[2].partition(",")[0] if panel.axis in (SIZE, MESSAGE) else f"{n}"
        for n, one in zip(sizes, group, strict=True)
    ]
    axes.set_xticks(sizes, words)
    axes.set_title(panel.title)
    axes.set_xlabel(panel.axis)
    axes.set_ylabel(panel.unit or _figure(group[0], "TCP").unit)
    axes.legend()


def _bars(axes: Axes, _panel: Panel, group: list[Record]) -> None:
    width = 0.36
    for offset, (carrier, colour, _) in zip((-width / 2, width / 2), CARRIERS, strict=True):
        for place, one in enumerate(group):
            found = _figure(one, carrier)
            median = found.median
            ends = [[median - found.lowest], [found.highest - median]]
            x = place + offset
            axes.bar(x, median, width, color=colour, alpha=0.6, label=carrier if place == 0 else None)
            axes.errorbar(x, median, ends, color="#333333", capsize=4, linewidth=1)
            axes.plot([x] * len(found.samples), found.samples, ".", color=colour, markersize=4)
            axes.annotate(
                f"{median:.3g}" if median < 1000 else f"{median:.0f}", (x, median), ha="right", va="bottom"
            )
    axes.set_xticks(range(len(group)), [one.name.partition(", ")[2] or one.name for one in group])
    axes.set_title(group[0].name.partition(", ")[0])
    axes.set_ylabel(_figure(group[0], "TCP").unit)
    # The legend needs room above.
    axes.set_ylim(0, 1.25 * max(_figure(one, carrier).highest for one in group for carrier, *_ in CARRIERS))
    axes.legend()
