"""Runs every scenario several times, TCP and Hallway by turns, and reports.

A round runs each scenario once with Hallway off and once with it on, and
every other round begins with on: a machine that grows slower or faster while
this runs then weighs on both alike. Reported are medians, and the lowest and
highest sample, as a table, as JSON and as plots.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hallway_lab import isolate, measure, paths, table
from hallway_lab.ledger import judge, unwanted
from hallway_lab.measure import Stand, describe
from hallway_lab.sh import LabError, guarded, run, say, step
from hallway_lab.venv import venv

from .scenarios import Scenario, Scenarios

PROGRAMS = ("stream", "pingpong", "connrate")
MATPLOTLIB = "matplotlib==3.11.2"
PLOTS = Path(__file__).with_name("plots.py")


@dataclass
class Samples:
    """All samples of one scenario, and what was wrong with any of them."""

    scenario: Scenario
    tcp: list[float] = field(default_factory=list)
    hallway: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def ratio(self) -> float | None:
        """How much better Hallway's median is."""
        if not self.tcp or not self.hallway:
            return None
        ratio = statistics.median(self.hallway) / statistics.median(self.tcp)
        return 1 / ratio if self.scenario.lower_is_better else ratio

    @property
    def met(self) -> bool:
        """Whether the promise is kept."""
        return not self.faults and self.ratio is not None and self.ratio >= self.scenario.target


def main(words: list[str] | None = None) -> int:
    """Run the benchmark; return the exit code."""
    parser = argparse.ArgumentParser(prog="bench/run", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="samples of each (default: 5)")
    parser.add_argument("--seconds", type=int, default=2, help="seconds of each run (default: 2)")
    parser.add_argument("--kernel", default="6.1", choices=["6.1", "6.12"])
    measure.add_only(parser)
    parser.add_argument("--no-plots", action="store_true", help="do without matplotlib, which pip fetches")
    options = parser.parse_args(words)
    if options.rounds < 1 or options.seconds < 1:
        parser.error("rounds and seconds are at least 1")
    return guarded("bench", lambda: _bench(options))


def build_programs() -> list[Path]:
    """Build the static C programs."""
    built = []
    with step("building the benchmark's programs"):
        for name in PROGRAMS:
            target = paths.out("bench", name)
            source = paths.REPO / "bench/programs" / f"{name}.c"
            run(["gcc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-static", "-o", target, source])
            built.append(target)
    return built


def _bench(options: argparse.Namespace) -> int:
    paths.out("bench.json").unlink(missing_ok=True)
    isolate.enter()
    python = None if options.no_plots else venv("plots", MATPLOTLIB) / "bin/python"
    with measure.standing(options.kernel, *build_programs()) as stand:
        scenarios = measure.chosen(options, Scenarios(stand, options.seconds).all())
        results = [Samples(scenario) for scenario in scenarios]
        for number in range(options.rounds):
            begin = time.monotonic()
            for samples in results:
                _sample(stand, samples, on_first=number % 2 == 1)
            say(f"round {number + 1} of {options.rounds} took {time.monotonic() - begin:.0f} s")
        stand.site.judge()
        facts = stand.facts()
    code = _report(results, facts, options)
    if python:
        print(run([python, PLOTS, paths.out("bench.json"), paths.OUT]), end="")
    return code


def _sample(stand: Stand, samples: Samples, on_first: bool) -> None:
    scenario = samples.scenario
    stand.spin(scenario.spin_us)
    for on in (on_first, not on_first):
        stand.switch(on)
        try:
            with stand.meter() as traffic:
                done = scenario.run()
        except LabError as failure:
            samples.faults.append(f"{'Hallway' if on else 'TCP'}: {failure}")
            say(f"  {scenario.title}, FAILED: {failure}")
            continue
        (samples.hallway if on else samples.tcp).append(done.value)
        if on and scenario.carries:
            samples.faults += judge(traffic, done.up, done.down).faults
        elif not on:
            samples.faults += unwanted(traffic)
        name = "Hallway" if on else "TCP"
        say(f"  {scenario.title}, {name}: {table.number(done.value)} {scenario.unit}")


HEAD = (
    ("scenario", table.LEFT),
    ("unit", table.LEFT),
    ("TCP", table.RIGHT),
    ("lowest - highest", table.RIGHT),
    ("Hallway", table.RIGHT),
    ("lowest - highest", table.RIGHT),
    ("ratio", table.RIGHT),
    ("target", table.RIGHT),
    ("", table.LEFT),
)


def _middle_and_ends(samples: Sequence[float]) -> list[str]:
    if not samples:
        return ["-", "-"]
    ends = f"{table.number(min(samples))} - {table.number(max(samples))}"
    return [table.number(statistics.median(samples)), ends]


def _cells(samples: Samples) -> list[str]:
    scenario = samples.scenario
    return [
        scenario.title,
        scenario.unit,
        *_middle_and_ends(samples.tcp),
        *_middle_and_ends(samples.hallway),
        "-" if samples.ratio is None else f"{samples.ratio:.2f}×",
        f"≥ {scenario.target:g}×",
        "FAILED" if samples.faults else "met" if samples.met else "missed",
    ]


def _report(results: list[Samples], facts: dict[str, object], options: argparse.Namespace) -> int:
    print(f"\n{describe(facts)}\nMedians of {options.rounds} rounds of {options.seconds} s.\n")
    print(table.render(HEAD, [_cells(samples) for samples in results]))
    print()
    for samples in results:
        print(f"{samples.scenario.title}: {samples.scenario.command}")
        for fault in samples.faults:
            first, _, more = fault.partition("\n")
            print(f"  FAILED: {first}{' ...' if more else ''}")
    target = paths.out("bench.json")
    target.write_text(json.dumps(_json(results, facts, options), indent=2) + "\n")
    print(f"\nAll samples are in {target}")
    return 1 if any(samples.faults for samples in results) else 0


def _json(results: list[Samples], facts: dict[str, object], options: argparse.Namespace) -> dict[str, object]:
    return {
        "machine": facts,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "scenarios": [
            {
                "key": samples.scenario.key,
                "title": samples.scenario.title,
                "unit": samples.scenario.unit,
                "command": samples.scenario.command,
                "lower_is_better": samples.scenario.lower_is_better,
                "tcp": samples.tcp,
                "hallway": samples.hallway,
                "ratio_of_medians": samples.ratio,
                "target": samples.scenario.target,
                "met": samples.met,
                "failed": samples.faults,
            }
            for samples in results
        ],
    }
