"""`make conformance`: other people's tests, over rings and over TCP."""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path
from typing import Any

from hallway_lab import isolate, kernels, modbuild
from hallway_lab.prepare import guest_steps, run_steps
from hallway_lab.sh import guarded
from hallway_tests import guests

from . import cpython, report, selftests, stress, tokio, wheels
from .judged import judged
from .runner import Guests, compare, seed_of
from .suites import HERE, Family, Suite

FAMILIES: tuple[Family, ...] = (
    *(cpython.FAMILY, tokio.FAMILY, wheels.FAMILY, selftests.FAMILY, stress.FAMILY),
)
KERNELS = ("6.1", "6.12")
MODES = ("steady", "switching")


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    options = _parse()
    return guarded("conformance", lambda: _enter(options))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests/conformance/run", description="Other people's tests, over rings and over TCP."
    )
    parser.add_argument("--kernel", choices=KERNELS, default=KERNELS[0])
    parser.add_argument("--mode", choices=MODES, help="only on this carrier, beside TCP")
    parser.add_argument("--only", default="", help="only suites whose names match this pattern")
    parser.add_argument("--seed", type=int, default=None, help="repeat a run's random choices")
    parser.add_argument("--quick", action="store_true", help="a minute's worth of it, as `make test` runs it")
    parser.add_argument("--list", action="store_true", help="list the suites, and run nothing")
    return parser.parse_args()


def _enter(options: argparse.Namespace) -> int:
    chosen = [
        (family, [suite for suite in family.suites if re.search(options.only, suite.name, re.I)])
        for family in FAMILIES
    ]
    families = [family for family, suites in chosen if suites]
    suites = [suite for _, some in chosen for suite in some]
    if options.quick:
        families, suites = [cpython.FAMILY], [cpython.QUICK]
    if options.list or not suites:
        print("\n".join(suite.name for suite in suites) or f"no suite is called {options.only}")
        return 0 if suites else 2
    isolate.enter()
    return _run(options, families, suites)


def _run(options: argparse.Namespace, families: list[Family], suites: list[Suite]) -> int:
    judged()
    kernel, seed = options.kernel, seed_of(options.seed)
    share = lay(kernel, families)
    isolate.cut_off()
    print(f"conformance {kernel}: seed {seed}", flush=True)
    module, release = modbuild.revision(), kernels.kernel(kernel).version
    records: list[dict[str, Any]] = []
    for rows in compare(Guests(kernel, share, seed), suites, [options.mode] if options.mode else list(MODES)):
        new = [report.record(row, kernel, release, module) for row in rows]
        if not options.quick:
            report.keep(new, {suite.name for family in FAMILIES for suite in family.suites})
        records += new
    print(report.table(records))
    failed = 0
    for one in records:
        found = report.troubles(one)
        failed += bool(found)
        for words in found:
            print(f"{one['suite']} ({one['mode']}): {words}")
    print(f"{len(records) - failed} passed, {failed} failed", flush=True)
    return 1 if failed else 0


def lay(kernel: str, families: list[Family]) -> Path:
    """Fetch and build all that these families need in a guest, and lay it out."""
    run_steps(guest_steps(kernel, "conformance"))
    share = guests.share(kernel)
    folder = share / "conformance"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(HERE / "guest", folder / "guest")
    for path in [path for family in families for path in family.fetch(kernel)]:
        if path.is_dir():
            shutil.copytree(path, folder / path.name)
        else:
            shutil.copy2(path, folder / path.name)
    return share
