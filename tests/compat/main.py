"""Runs every program in every mode, prints the table, and keeps the last result.

All of it happens inside the lab's private namespaces: whatever ends this
program, also ends the VMs, the daemon and their network.
"""

from __future__ import annotations

import argparse
import random
import shutil
import time
from pathlib import Path

from hallway_lab import isolate, measure, paths, programs, topology
from hallway_lab.measure import Stand, describe
from hallway_lab.prepare import guest_steps, run_steps
from hallway_lab.sh import LabError, guarded, say
from hallway_tests import guests

from . import browser, databases, files, report, runtimes, shells, streams, verdict, web
from .report import Line
from .stage import Program, Stage

KERNELS = ("6.1", "6.12")
IMAGE = "programs"
MEMORY_MIB = 2048
ALL: tuple[Program, ...] = (
    *shells.PROGRAMS,
    *web.PROGRAMS,
    *browser.PROGRAMS,
    *databases.PROGRAMS,
    *files.PROGRAMS,
    *streams.PROGRAMS,
    *runtimes.PROGRAMS,
)


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(prog="tests/compat/run", description=__doc__)
    measure.add_selection(parser)
    parser.add_argument("--kernel", choices=KERNELS, default=KERNELS[0])
    parser.add_argument("--mode", choices=verdict.MODES, help="only this one")
    parser.add_argument("--seed", type=int, default=None, help="repeat a run's moments of switching")
    options = parser.parse_args()
    return guarded("compat", lambda: _compat(options))


def _compat(options: argparse.Namespace) -> int:
    begin = time.monotonic()
    chosen = measure.chosen(options, ALL)
    modes = (options.mode,) if options.mode else verdict.MODES
    seed = options.seed if options.seed is not None else random.getrandbits(30)
    say(f"seed {seed}")
    isolate.enter()
    run_steps(guest_steps(options.kernel, IMAGE))
    share = _share(options.kernel)
    isolate.cut_off()
    wanted = {"image": IMAGE, "memory_mib": MEMORY_MIB, "share": share}
    with topology.pair(options.kernel, load=False, **wanted) as site:
        stand = _stand(site)
        stage = Stage(stand.client, stand.server)
        lines, records = [], []
        for number, program in enumerate(chosen, 1):
            lines.append(_line(program, stage, stand, modes, seed))
            report.tell(lines[-1], f"{number}/{len(chosen)}")
            records.append(report.record(lines[-1], options.kernel, stand.client.kernel.version))
            report.keep(records[-1:], [one.key for one in ALL])
            if not all(vm.verdict().ok for vm in site.vms):
                break
        complaints = [f"{vm.name} ({vm.log}): {h}" for vm in site.vms if not (h := vm.verdict()).ok]
        facts = stand.facts()
    print(f"\n{describe(facts)}\n\n{report.render(records)}")
    failed = [line for line in lines if line.all_faults]
    for complaint in complaints:
        print(f"FAILED the kernel complained: {complaint}")
    took = time.monotonic() - begin
    print(f"\n{len(lines) - len(failed)} of {len(chosen)} programs ok, {took:.0f} s; all of it is in")
    print(f"{paths.out('compat.json')}, and in {report.DOCUMENT}")
    return 0 if len(lines) == len(chosen) and not failed and not complaints else 1


def _share(kernel: str) -> Path:
    folder = guests.share(kernel)
    shutil.copy(programs.build_rawstream(), folder)
    shutil.copytree(Path(__file__).with_name("guest"), folder / "compat", dirs_exist_ok=True)
    return folder


def _stand(site: topology.Site) -> Stand:
    """Load the module so that each connection is promoted at its first byte."""
    for vm in site.vms:
        guests.settle_in(vm)
        guests.insmod(vm, promote_bytes=0, promote_ms=0)
    guests.wait_members(*site.vms)
    return Stand(site)


def _line(program: Program, stage: Stage, stand: Stand, modes: tuple[str, ...], seed: int) -> Line:
    line = Line(program)
    try:
        with program.serve(stage):
            for mode in modes:
                line.outcomes[mode] = verdict.run(program, stage, stand, mode, seed)
    except (LabError, AssertionError) as failure:
        line.faults.append(str(failure))
    return line
