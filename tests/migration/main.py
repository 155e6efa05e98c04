"""Plays every scenario, prints the table, and keeps the last result.

All of it happens inside the lab's private namespaces: whatever ends this
program, also ends the VMs, the daemons and their networks.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Iterator

import hallway_lab.libvirt
from hallway_lab import hosts, isolate, kernels, measure, paths
from hallway_lab.prepare import guest_steps, run_steps
from hallway_lab.sh import guarded, say
from hallway_tests import guests
from hallway_tests.suite import describe

from . import daemon, libvirt, membership, memory, moving, peers, plugging, report
from .scenario import KERNELS, Outcome, Scenario, Setting

ALL: tuple[Scenario, ...] = (
    *daemon.SCENARIOS,
    *peers.SCENARIOS,
    *membership.SCENARIOS,
    *plugging.SCENARIOS,
    *memory.SCENARIOS,
    *moving.SCENARIOS,
    *libvirt.SCENARIOS,
)


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(prog="tests/migration/run", description=__doc__)
    measure.add_selection(parser)
    parser.add_argument("--kernel", choices=KERNELS, default=KERNELS[0])
    parser.add_argument("--rounds", type=int, help="of each scenario [default: its own number]")
    parser.add_argument("--seed", type=int, help="repeat a run's random choices")
    options = parser.parse_args()
    return guarded("migration", lambda: _migration(options))


def _migration(options: argparse.Namespace) -> int:
    begin = time.monotonic()
    suited = [scenario for scenario in ALL if options.kernel in scenario.kernels]
    chosen = measure.chosen(options, suited)
    seed = options.seed if options.seed is not None else random.getrandbits(30)
    say(f"seed {seed}")
    random.seed(seed)
    isolate.enter()
    run_steps([*guest_steps(options.kernel), *guest_steps(options.kernel, qemu=hosts.QEMU)])
    if any(scenario in libvirt.SCENARIOS for scenario in chosen):
        hallway_lab.libvirt.prepare()
    share = guests.share(options.kernel)
    isolate.cut_off()
    setting = Setting(options.kernel, share, paths.out("migration", options.kernel, "x").parent, seed)
    release = kernels.kernel(options.kernel).version
    records = []
    for _, group in itertools.groupby(chosen, key=lambda scenario: scenario.stage):
        for scenario, outcome in _staged(setting, list(group), options.rounds):
            records.append(report.record(scenario, outcome, options.kernel, release))
            report.tell(records[-1], f"{len(records)}/{len(chosen)}")
            report.keep(records[-1:], ALL)
    failed = [one for one in records if one["faults"]]
    print(f"\n{report.render(records)}\n")
    print(f"{len(records) - len(failed)} passed, {len(failed)} failed, {time.monotonic() - begin:.0f} s;")
    print(f"all of it is in {paths.out('migration.json')}, and in {report.DOCUMENT}")
    return 1 if failed else 0


def _staged(setting: Setting, left: list[Scenario], rounds: int | None) -> Iterator[tuple[Scenario, Outcome]]:
    """Play scenarios of one stage; one that fails takes its VMs along, and the next gets others."""
    while left:
        with left[0].stage(setting) as stage:
            while left:
                scenario = left.pop(0)
                outcome = Outcome(rounds or scenario.rounds)
                _play(scenario, stage, outcome)
                yield scenario, outcome
                if outcome.faults:
                    break


def _play(scenario: Scenario, stage: object, outcome: Outcome) -> None:
    begin = time.monotonic()
    try:
        scenario.play(stage, outcome)
    except Exception as error:
        outcome.faults.append(f"round {outcome.done + 1}: {describe(error)}")
    outcome.seconds = time.monotonic() - begin
