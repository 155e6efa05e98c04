"""Plots of out/bench.json, one SVG each: throughput, latency, connections.

Runs in an environment of its own that has matplotlib: `plots.py JSON FOLDER`.
Each sample is a dot, the line or bar is the median, the shade or whisker
reaches from the lowest sample to the highest.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

CARRIERS = (("tcp", "TCP", "#7a7a7a", "o"), ("hallway", "Hallway", "#1f6fb4", "s"))


def main(source: Path, folder: Path) -> None:
    """Draw all that the file has samples for."""
    matplotlib.rcParams.update(
        {"font.size": 9, "axes.grid": True, "grid.alpha": 0.3, "svg.hashsalt": "hallway"}
    )
    report = json.loads(source.read_text())
    measured = [one for one in report["scenarios"] if one["tcp"] and one["hallway"]]
    for name, draw, prefixes in (
        ("throughput", _throughput, ("stream-", "iperf3-")),
        ("latency", _bars, ("trip-",)),
        ("connections", _bars, ("connect",)),
    ):
        target = folder / f"{name}.svg"
        target.unlink(missing_ok=True)
        groups = [[one for one in measured if one["key"].startswith(prefix)] for prefix in prefixes]
        groups = [group for group in groups if group]
        if groups:
            figure = Figure(figsize=(4.6 * len(groups), 3.8), layout="constrained")
            for axes, group in zip(figure.subplots(1, len(groups), squeeze=False)[0], groups, strict=True):
                draw(axes, group)
            figure.supxlabel(_conditions(report), fontsize=7, color="#555555")
            figure.savefig(target, metadata={"Date": None})
            print(target)


def _conditions(report: dict[str, Any]) -> str:
    facts = report["machine"]
    sampled = f"{report['rounds']} samples of {report['seconds']} s, medians"
    guests = f"two VMs, {facts['guest_cpus']} CPU each, Linux {facts['guest_kernel']}"
    host = f"QEMU {facts['qemu']} {facts['accelerator'].upper()}, {facts['host_cpus']} CPUs on the host"
    return f"{sampled}; {guests},\n{host}"


def _throughput(axes: Axes, group: list[dict[str, Any]]) -> None:
    sizes = [int(one["key"].partition("-")[2]) for one in group]
    for field, label, colour, marker in CARRIERS:
        samples = [one[field] for one in group]
        medians = [statistics.median(values) for values in samples]
        axes.plot(sizes, medians, color=colour, marker=marker, label=label)
        axes.fill_between(sizes, list(map(min, samples)), list(map(max, samples)), color=colour, alpha=0.2)
        for size, values in zip(sizes, samples, strict=True):
            axes.plot([size] * len(values), values, ".", color=colour, markersize=3)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [one["title"].rpartition(" of ")[2] for one in group])
    axes.set_title(group[0]["key"].partition("-")[0])
    axes.set_xlabel("size of writes")
    axes.set_ylabel(group[0]["unit"])
    axes.legend()


def _bars(axes: Axes, group: list[dict[str, Any]]) -> None:
    width = 0.36
    for offset, (field, label, colour, _) in zip((-width / 2, width / 2), CARRIERS, strict=True):
        for place, one in enumerate(group):
            values = one[field]
            median = statistics.median(values)
            ends = [[median - min(values)], [max(values) - median]]
            x = place + offset
            axes.bar(x, median, width, color=colour, alpha=0.6, label=label if place == 0 else None)
            axes.errorbar(x, median, ends, color="#333333", capsize=4, linewidth=1)
            axes.plot([x] * len(values), values, ".", color=colour, markersize=4)
            axes.annotate(
                f"{median:.3g}" if median < 1000 else f"{median:.0f}", (x, median), ha="right", va="bottom"
            )
    axes.set_xticks(range(len(group)), [one["title"].partition(", ")[2] or one["title"] for one in group])
    axes.set_title(group[0]["title"].partition(", ")[0])
    axes.set_ylabel(group[0]["unit"])
    axes.set_ylim(
        0, 1.25 * max(max(one[field]) for one in group for field, *_ in CARRIERS)
    )  # the legend's place
    axes.legend()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
