"""What a person and a program are told: a table, out/conformance.json, docs/conformance.md."""

from __future__ import annotations

import datetime
import json
from typing import Any

from hallway_lab import paths
from hallway_lab.table import LEFT, RIGHT, bytes_, render
from hallway_tests import page

from .compare import GOOD, known
from .runner import REPEATS, Row

HEAD = (
    *(("suite", LEFT), ("kernel", LEFT), ("carrier", LEFT), ("tests", RIGHT), ("skipped", RIGHT)),
    *(
        ("same", RIGHT),
        ("unsteady", RIGHT),
        ("changed", RIGHT),
        ("failing on both", RIGHT),
        ("sockets", RIGHT),
    ),
    *(("directions promoted", RIGHT), ("switches", RIGHT), ("through rings", RIGHT), ("over TCP", RIGHT)),
)
NAMED_BY = 3  # columns
RUN = ("release", "module", "day")  # columns that only the page has
DOCUMENT = paths.REPO / "docs/conformance.md"
PREFACE = f"""# Conformance

Other people's test suites, run in one guest with Hallway off and again with all
connections within the guest on rings: *steady*, from their first byte where each
end was accepted, or has been called by then, and *switching*, with all connections
moved from rings to TCP and back at random moments meanwhile. A test that ends
otherwise than with Hallway off is run again alone, {REPEATS} times on either carrier. It
has *changed* if rings gave an outcome that TCP never gave; it is *unsteady* if TCP
gave it too. *Sockets* are the ends of connections that the module attached to; each
can be promoted in the direction that it sends.

Written by `make conformance`; each row by the last run of its suite.
"""


def record(row: Row, kernel: str, release: str, module: str) -> dict[str, Any]:
    """Return all that is kept of a row."""
    kept = known()
    tcp = row.tcp.outcomes[0] if row.tcp.outcomes else {}
    ring = row.ring.outcomes[0] if row.ring.outcomes else {}
    told = {test: str(repeats) for test, repeats in row.repeats.items()}
    changed = {test: told[test] for test, repeats in row.repeats.items() if repeats.changed}
    bad = [{test for test, outcome in one.items() if outcome not in GOOD} for one in (tcp, ring)]
    failing = sorted(bad[0] & bad[1])
    return {
        "suite": row.suite.name,
        "mode": row.mode,
        "rings": row.suite.rings,
        "kernel": kernel,
        "release": release,
        "module": module,
        "date": datetime.date.today().isoformat(),
        "tests": len(tcp.keys() | ring.keys()),
        "passed": sum(outcome == "pass" for outcome in ring.values()),
        "skipped": sum(outcome == "skip" for outcome in ring.values()),
        "changed": changed,
        "unsteady": {test: words for test, words in told.items() if test not in changed},
        "failing": {test: kept.reason(test) for test in failing},
        "why": {test: row.ring.why.get(test) or row.tcp.why.get(test, "") for test in [*changed, *failing]},
        "faults": row.faults,
        "seconds": [round(row.tcp.seconds), round(row.ring.seconds)],
        "switches": row.ring.traffic.switches,
        "counters": row.ring.traffic.counters,
    }


def troubles(one: dict[str, Any]) -> list[str]:
    """Return all that keeps a row from passing."""
    found = [f"changed: `{test}`: {words}" for test, words in one["changed"].items()]
    found += [
        f"fails on both carriers, and known.toml does not say why: `{test}`"
        for test, reason in one["failing"].items()
        if reason is None
    ]
    found += one["faults"]
    if not one["tests"]:
        found.append("no test ran")
    if one["rings"] and not one["counters"].get("tx_bytes_ring"):
        found.append("not one byte went through a ring")
    return found


def table(records: list[dict[str, Any]]) -> str:
    """Return the table of all rows."""
    return render(HEAD, [_cells(one) for one in records])


def _cells(one: dict[str, Any]) -> list[str]:
    counted = one["counters"]
    differing = len(one["changed"]) + len(one["unsteady"])
    return [
        one["suite"],
        one["kernel"],
        one["mode"],
        str(one["tests"]),
        str(one["skipped"]),
        str(one["tests"] - differing),
        str(len(one["unsteady"])),
        str(len(one["changed"])),
        str(len(one["failing"])),
        str(counted.get("attached", 0)),
        str(counted.get("tx_promoted", 0)),
        str(one["switches"]),
        bytes_(counted.get("tx_bytes_ring", 0)),
        bytes_(counted.get("tx_bytes_tcp", 0)),
    ]


def keep(records: list[dict[str, Any]], suites: set[str]) -> None:
    """Write the rows to out/ and docs/, with those that other runs left for other of the suites."""
    path = paths.out("conformance.json")
    old = json.loads(path.read_text()) if path.exists() else []
    rows = {_key(one): one for one in [*old, *records]}
    kept = [rows[key] for key in sorted(rows) if key[0] in suites]
    path.write_text(json.dumps(kept, indent=1) + "\n")
    new = _page(records)
    older = page.read(DOCUMENT.read_text(), new.titles, NAMED_BY)
    older.rows = {key: row for key, row in older.rows.items() if key[0] in suites}
    new.take(older)
    right = [title for title, side in HEAD if side == RIGHT]
    DOCUMENT.write_text(f"{PREFACE}\n{new.text(right)}")


def _key(one: dict[str, Any]) -> tuple[str, ...]:
    return one["suite"], one["kernel"], one["mode"]


def _page(records: list[dict[str, Any]]) -> page.Page:
    new = page.Page([*(title for title, _ in HEAD), *RUN])
    for one in records:
        new.rows[_key(one)] = [*_cells(one), one["release"], one["module"], one["date"]]
    for title, tell in (
        ("Changed, or else wrong", troubles),
        ("Unsteady: ended otherwise once, as with Hallway off", _unsteady),
        ("Failing with Hallway off as well", _failing),
    ):
        told = {_key(one): [words.partition("\n")[0] for words in tell(one)] for one in records}
        new.notes[title] = {key: words for key, words in told.items() if words}
    return new


def _unsteady(one: dict[str, Any]) -> list[str]:
    return [f"`{test}`: {words}" for test, words in one["unsteady"].items()]


def _failing(one: dict[str, Any]) -> list[str]:
    return [f"`{test}`: {reason}" for test, reason in one["failing"].items()]
