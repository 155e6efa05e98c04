"""What a person and a program are told: a table, out/migration.json, docs/migration-results.md."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hallway_lab import modbuild, paths, table
from hallway_lab.sh import say
from hallway_tests import kept, page

from .scenario import PAUSE, Outcome, Scenario

DOCUMENT = paths.REPO / "docs/migration-results.md"
PREFACE = """# VMs that come, go, crash and move

Real VMs under load; every byte of every stream is checked by its receiver. Where
something happens to a third VM, a stream between the two others goes on in rings
all the time, nothing that belongs to it is reset, no sleeper is saved by the
watchdog, and afterwards ring memory is all given back. Streams with the VM that
something happens to go on intact, or end with an error that TCP gives. What
migrates with Hallway has 20 busy connections, each of which gets on, all on rings
again where they can be.
In both cases channels, QEMUs and the daemons' descriptors are afterwards as many as
before. In every scenario no kernel has complained. A row tells what was looked at by
the tests of its module's revision.

*Took* is the median of all rounds, and the longest, on a host whose two CPUs
emulate all VMs (TCG): an upper bound, no promise.

Written by `make migration`; each row by the last run of its scenario.
"""
BARE = "migrates-without"  # the scenario that others are compared with
HEAD = (
    *(("scenario", table.LEFT), ("kernel", table.LEFT), ("what is done", table.LEFT)),
    *(("rounds", table.RIGHT), ("in rings", table.RIGHT), ("result", table.LEFT), ("took", table.LEFT)),
)
NAMED_BY = 2  # cells: scenario and kernel
RUN = ("release", "module", "day")  # and when a row was played


def record(scenario: Scenario, outcome: Outcome, kernel: str, release: str) -> dict[str, Any]:
    """Return all that is kept of a scenario."""
    return {
        "key": scenario.key,
        "what": scenario.done,
        "kernel": kernel,
        "release": release,
        "module": modbuild.revision(),
        "date": datetime.date.today().isoformat(),
        **asdict(outcome),
    }


def tell(one: dict[str, Any], place: str) -> None:
    """Say how a scenario fared."""
    word = "FAILED" if one["faults"] else "ok"
    say(f"{place} {one['key']}: {word}, {one['done']} rounds in {one['seconds']:.0f} s{_took(one, ' ({})')}")
    for fault in one["faults"]:
        say(f"    FAILED: {fault}")


def render(records: list[dict[str, Any]]) -> str:
    """Return the table for a terminal."""
    return table.render(HEAD, [_cells(one) for one in records])


def _cells(one: dict[str, Any]) -> list[str]:
    rounds = str(one["done"]) if one["done"] == one["wanted"] else f"{one['done']} of {one['wanted']}"
    return [
        *(one["key"], one["kernel"], one["what"], rounds, table.bytes_(one["ring_bytes"])),
        *("FAILED" if one["faults"] else "ok", _took(one, "{}")),
    ]


def _took(one: dict[str, Any], form: str) -> str:
    told = [
        f"{what} {_seconds(statistics.median(values))}, at most {_seconds(max(values))}"
        for what, values in one["figures"].items()
    ]
    return form.format("; ".join(told)) if told else ""


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def keep(records: list[dict[str, Any]], everything: Sequence[Scenario]) -> None:
    """Write the rows to out/ and docs/, with those that other runs left for other scenarios."""
    order = [one.key for one in everything]
    rows = kept.keep(paths.out("migration.json"), records, order)
    new = page.Page([*(title for title, _ in HEAD), *RUN])
    new.rows = {_key(one): [*_cells(one), one["release"], one["module"], one["date"]] for one in rows}
    new.notes["What a migration costs a stream"] = _added_pauses(rows)
    faults = {_key(one): [fault.partition("\n")[0] for fault in one["faults"]] for one in rows}
    new.notes["Failed"] = {key: told for key, told in faults.items() if told}
    older = page.read(DOCUMENT.read_text(), new.titles, NAMED_BY)
    older.rows = {key: row for key, row in older.rows.items() if key[0] in order}
    new.take(older)
    wanted = [(one.key, kernel) for one in everything for kernel in one.kernels]
    missing = (
        ", ".join(f"{key} on {kernel}" for key, kernel in wanted if (key, kernel) not in new.rows) or "None."
    )
    right = [title for title, side in HEAD if side == table.RIGHT]
    DOCUMENT.write_text(f"{PREFACE}\n{new.text(right)}\n## Not played yet (*open*)\n\n{missing}\n")


def _key(one: dict[str, Any]) -> tuple[str, ...]:
    return one["key"], one["kernel"]


def _added_pauses(rows: list[dict[str, Any]]) -> dict[tuple[str, ...], list[str]]:
    """Compare migrations with one without Hallway, by the medians."""
    pauses = {_key(one): statistics.median(one["figures"][PAUSE]) for one in rows if PAUSE in one["figures"]}
    told = {}
    for (key, kernel), pause in pauses.items():
        bare = pauses.get((BARE, kernel))
        if bare is not None and key != BARE:
            more = f"{_seconds(abs(pause - bare))} {'more' if pause > bare else 'less'}"
            words = (
                f"its longest pause is {_seconds(pause)}, {more} than the {_seconds(bare)} without Hallway"
            )
            told[key, kernel] = [words]
    return told
