"""Runs every row with Hallway off and on, and prints the table.

All of it happens inside the lab's private namespaces: whatever ends this
program, also ends the VMs, the daemon and their network.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass

from hallway_lab import isolate, measure, paths, programs, table
from hallway_lab.ledger import SHARE, TRIFLE, Ledger, judge, unwanted
from hallway_lab.measure import Stand, describe
from hallway_lab.programs import Run
from hallway_lab.sh import LabError, guarded, say

from .rows import Programs, Row

KERNEL = "6.1"


@dataclass(frozen=True)
class Line:
    """A row that was run: both figures, who carried the bytes, what failed."""

    row: Row
    tcp: Run | None
    hallway: Run | None
    ledger: Ledger | None
    faults: list[str]

    @property
    def ratio(self) -> float | None:
        """How much better Hallway is."""
        if not (self.tcp and self.hallway and self.tcp.value and self.hallway.value):
            return None
        ratio = self.hallway.value / self.tcp.value
        return 1 / ratio if self.row.lower_is_better else ratio


def main(words: list[str] | None = None) -> int:
    """Run the demo; return the exit code."""
    parser = argparse.ArgumentParser(prog="lab/demo", description=__doc__)
    measure.add_only(parser)
    options = parser.parse_args(words)
    return guarded("demo", lambda: _demo(options))


def _demo(options: argparse.Namespace) -> int:
    begin = time.monotonic()
    paths.out("demo.json").unlink(missing_ok=True)
    isolate.enter()
    with measure.standing(KERNEL, programs.build_rawstream()) as stand:
        rows = measure.chosen(options, Programs(stand).rows())
        lines = [_line(stand, row, f"{n}/{len(rows)}") for n, row in enumerate(rows, 1)]
        complaints = [
            f"{vm.name}'s kernel complained ({vm.log}): {health}"
            for vm in stand.site.vms
            if not (health := vm.verdict()).ok
        ]
        facts = stand.facts()
    facts["seconds"] = round(time.monotonic() - begin, 1)
    return _report(lines, complaints, facts)


def _line(stand: Stand, row: Row, place: str) -> Line:
    runs: dict[bool, Run] = {}
    ledger, faults = None, []
    begin = time.monotonic()
    try:
        stand.spin(row.spin_us)
        for on in (False, True):
            stand.switch(on)
            with stand.meter() as traffic:
                runs[on] = row.run()
            if on:
                ledger = judge(traffic, runs[on].up, runs[on].down)
                faults += ledger.faults
            else:
                faults += unwanted(traffic)
    except LabError as failure:
        faults.append(str(failure))
    line = Line(row, runs.get(False), runs.get(True), ledger, faults)
    told = " → ".join(table.number(one.value) for one in runs.values()) or "nothing"
    say(f"{place} {row.title}: {told} {row.unit}, {time.monotonic() - begin:.0f} s")
    for fault in faults:
        say(f"    FAILED: {_first_line(fault)}")
    return line


def _first_line(fault: str) -> str:
    """The rest, such as the end of a guest's log, is in the JSON."""
    return fault.partition("\n")[0]


HEAD = (
    ("program", table.LEFT),
    ("unit", table.LEFT),
    ("TCP", table.RIGHT),
    ("Hallway", table.RIGHT),
    ("ratio", table.RIGHT),
    ("in rings →", table.RIGHT),
    ("←", table.RIGHT),
    ("of payload →", table.RIGHT),
    ("←", table.RIGHT),
    ("", table.LEFT),
)


def _cells(line: Line) -> list[str]:
    cells = [line.row.title, line.row.unit]
    cells += [table.number(one.value) if one else "-" for one in (line.tcp, line.hallway)]
    cells.append(f"{line.ratio:.1f}×" if line.ratio else "-")
    ledger = line.ledger
    ways = (ledger.up, ledger.down) if ledger else ()
    cells += [table.bytes_(way.ring) for way in ways] or ["-", "-"]
    cells += [table.share(way.share) for way in ways] or ["-", "-"]
    cells.append("FAILED" if line.faults else "ok")
    return cells


def _report(lines: list[Line], complaints: list[str], facts: dict[str, object]) -> int:
    failed = [line for line in lines if line.faults]
    passed = not failed and not complaints and bool(lines)
    print(f"\n{describe(facts)}\nArrows: → client to server, ← back.\n")
    print(table.render(HEAD, [_cells(line) for line in lines]))
    print(
        f"\nA row is ok if rings carried {SHARE:.0%} of its payload or more, each way that has "
        f"{TRIFLE >> 10} KiB or more,\nif both VMs counted the same bytes, and if files arrived unchanged."
    )
    for line in failed:
        for fault in line.faults:
            print(f"FAILED {line.row.title}: {_first_line(fault)}")
    for complaint in complaints:
        print(f"FAILED {complaint}")
    target = paths.out("demo.json")
    target.write_text(json.dumps(_json(lines, complaints, facts, passed), indent=2) + "\n")
    print(f"\n{len(lines) - len(failed)} of {len(lines)} rows ok, {facts['seconds']} s; also in {target}")
    return 0 if passed else 1


def _json(
    lines: list[Line], complaints: list[str], facts: dict[str, object], passed: bool
) -> dict[str, object]:
    return {
        "passed": passed,
        "machine": facts,
        "kernel_complaints": complaints,
        "rows": [
            {
                "key": line.row.key,
                "program": line.row.title,
                "unit": line.row.unit,
                "lower_is_better": line.row.lower_is_better,
                "tcp": line.tcp and line.tcp.value,
                "hallway": line.hallway and line.hallway.value,
                "ratio": line.ratio,
                "rings": line.ledger and {way: asdict(getattr(line.ledger, way)) for way in ("up", "down")},
                "failed": line.faults,
            }
            for line in lines
        ],
    }
