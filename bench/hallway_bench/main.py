# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs every scenario several times, TCP and Hallway by turns, and reports.

A round runs each scenario once with Hallway off and once with it on. Every
other round begins with on: a machine that becomes slower or faster during the
run then weighs on both alike. Reported are medians, and the lowest and highest
sample: as a table, in the store of results, and in out/benchmarks (see report.py).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hallway_lab import isolate, measure, summary
from hallway_lab.measure import describe
from hallway_lab.results import Record, Store
from hallway_lab.sample import Row, Samples, sample
from hallway_lab.sh import guarded, say, step

from . import growth, instructions, native, report
from .compiling import compile_program
from .domains import DomainPrograms, Domains
from .group import Group
from .hostend import HostEnd
from .native import Native
from .outside import Outside
from .paperprograms import PaperPrograms
from .papers import Papers
from .scenarios import Scenarios
from .siblings import Siblings
from .splits import Splits
from .tiers import Tiers
from .tunnels import Tunnels
from .vcpus import Vcpus
from .vhostuser import VhostUser
from .within import Within

PROGRAMS = (
    "stream",
    "pingpong",
    "connrate",
    "lifecycle",
    "disk",
    "crowd",
    "idle",
    "native",
    "sockmap",
    "bounds",
    "loan",
    "datagrams",
)


def main(words: list[str] | None = None) -> int:
    """Run the benchmark; return the exit code."""
    parser = argparse.ArgumentParser(prog="bench/run", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="samples of each (default: 5)")
    parser.add_argument("--seconds", type=int, default=2, help="seconds of each run (default: 2)")
    parser.add_argument("--kernel", default="6.1", choices=["6.1", "6.12"])
    parser.add_argument(
        "--check", action="store_true", help="count instructions alone; fail if one is 3 %% over the baseline"
    )
    parser.add_argument("--accept", action="store_true", help="count them, and make them the baseline")
    parser.add_argument(
        "--publish",
        nargs="?",
        const="",
        metavar="REVISION",
        help="measure nothing: write docs/benchmarks from the records of this revision of the module"
        " [default: that of the sources]",
    )
    measure.add_selection(parser)
    options = parser.parse_args(words)
    if options.rounds < 1 or options.seconds < 1:
        parser.error("rounds and seconds are at least 1")
    return guarded("bench", lambda: _bench(options))


def build_programs() -> list[Path]:
    """Build the static C programs."""
    with step("building the benchmark's programs"):
        return [compile_program(name) for name in PROGRAMS]


def _bench(options: argparse.Namespace) -> int:
    if options.publish is not None:
        report.prepare()
        print(report.publish(options.publish))
        return 0
    isolate.enter()
    if options.check or options.accept or options.k == instructions.KEY:
        return instructions.measured(check=options.check, accept=options.accept)
    report.prepare()
    seconds = options.seconds
    everything: list[Group] = [
        Scenarios(seconds),
        *growth.groups(seconds),
        Tunnels(seconds),
        HostEnd(seconds),
        Splits(seconds),
        Vcpus(seconds),
        VhostUser(seconds),
        Outside(seconds),
        Siblings(seconds),
        Tiers(seconds),
        Papers(seconds),
        PaperPrograms(seconds),
        Domains(seconds),
        DomainPrograms(seconds),
        Within(seconds),
        Native(seconds),
    ]
    groups = [(group, group.rows()) for group in everything]
    # The keys of a group's rows need not have its name in them.
    names = {row.key: f"{group.kind} {row.key}" for group, rows in groups for row in rows}
    wanted = measure.chosen(options, [row for _, rows in groups for row in rows], lambda row: names[row.key])
    needed = [group for group, rows in groups if any(row in wanted for row in rows)]
    for group in needed:
        group.prepare(options.kernel)
    if all(isinstance(group, Native) for group in needed):
        isolate.cut_off()
    else:
        measure.make_ready(options.kernel, *build_programs())
    stores = {group.kind: Store(group.kind, group.kernel or options.kernel, group.runner) for group in needed}
    facts = []
    for group, rows in groups:
        mine = [row for row in rows if row in wanted]
        if mine:
            facts.append(_run(group, mine, options, stores[group.kind]))
    print("\n".join(["", *_described(facts)]))
    print(f"Medians of {options.rounds} rounds of {options.seconds} s or more.\n")
    for kind, store in stores.items():
        if store.records:
            print(f"{summary.show(kind, store.records)}\n")
    print(report.keep())
    return 1 if any(one.faults for store in stores.values() for one in store.records) else 0


def _described(facts: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield what figures were measured on: VMs, and User Mode Linux."""
    if vms := [one for one in facts if "qemu" in one]:
        cpus = sorted({one["guest_cpus"] for one in vms})
        yield describe(vms[-1] | {"guest_cpus": " or ".join(map(str, cpus))})
    yield from (native.describe(one) for one in facts if "qemu" not in one)


def _run(group: Group, rows: list[Row], options: argparse.Namespace, store: Store) -> dict[str, Any]:
    """Run these rows of a group, keep their records, and return what they were measured on."""
    with group.standing(options.kernel) as stand:
        everything = [Samples(row) for row in rows]
        for number in range(options.rounds):
            begin = time.monotonic()
            for samples in everything:
                sample(stand, samples, on_first=number % 2 == 1)
            say(f"round {number + 1} of {options.rounds} took {time.monotonic() - begin:.0f} s")
        stand.site.judge()
        facts = group.facts(stand)
    for samples in everything:
        met = group.is_met(samples, everything)
        _record(store, samples, met, seconds=group.seconds, **facts)
    return facts


def _record(store: Store, samples: Samples, met: bool, **details: object) -> Record:
    return store.add(
        samples.row.key,
        samples.row.title,
        "met" if met else "missed",
        figures=samples.figures(),
        faults=tuple(samples.faults),
        details={"command": samples.row.command, **details},
    )
