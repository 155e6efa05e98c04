"""Runs every row with Hallway off and on, and prints the table.

All of it happens inside the lab's private namespaces: the end of this program,
for any reason, also ends the VMs, the daemon and their network.
"""

from __future__ import annotations

import argparse
import time

from hallway_lab import isolate, measure, programs, results, summary
from hallway_lab.ledger import SHARE, TRIFLE
from hallway_lab.measure import Stand, describe
from hallway_lab.results import Store
from hallway_lab.sample import Row, Samples, sample
from hallway_lab.sh import guarded, say

from .rows import Programs

KERNEL = "6.1"


def main(words: list[str] | None = None) -> int:
    """Run the demo; return the exit code."""
    parser = argparse.ArgumentParser(prog="lab/demo", description=__doc__)
    measure.add_selection(parser)
    options = parser.parse_args(words)
    return guarded("demo", lambda: _demo(options))


def _demo(options: argparse.Namespace) -> int:
    begin = time.monotonic()
    isolate.enter()
    results.prepare()
    with measure.standing(KERNEL, programs.build_rawstream()) as stand:
        store = Store("demo", KERNEL)
        rows = measure.chosen(options, Programs(stand).rows())
        for number, row in enumerate(rows, 1):
            _run(stand, store, row, f"{number}/{len(rows)}")
        complaints = [
            f"{vm.name}'s kernel complained ({vm.log}): {health}"
            for vm in stand.site.vms
            if not (health := vm.verdict()).ok
        ]
        facts = stand.facts()
    print(f"\n{describe(facts)}\nArrows: → client to server, ← back.\n")
    print(summary.show("demo", store.records))
    print(
        f"\nA row is ok if rings carried {SHARE:.0%} of its payload or more, each way that has "
        f"{TRIFLE >> 10} KiB or more,\nif both VMs counted the same bytes, and if files arrived unchanged."
    )
    for complaint in complaints:
        print(f"FAILED {complaint}")
    passed = sum(not one.faults for one in store.records)
    print(f"\n{passed} of {len(rows)} rows ok, {time.monotonic() - begin:.0f} s")
    return 0 if passed == len(rows) and not complaints else 1


def _run(stand: Stand, store: Store, row: Row, place: str) -> None:
    say(f"{place} {row.title}")
    samples = Samples(row)
    sample(stand, samples)
    store.add(row.key, row.title, figures=samples.figures(), faults=tuple(samples.faults))
