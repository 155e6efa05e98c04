"""What a person and a program are told: a table, out/conformance.json, docs/conformance.md."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from typing import Any

from hallway_lab import paths
from hallway_lab.sh import run
from hallway_lab.table import LEFT, RIGHT, bytes_, render

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
DOCUMENT = paths.REPO / "docs/conformance.md"
PREFACE = f"""# Conformance

Other people's test suites, run in one guest with Hallway off and again with all
connections within the guest on rings: *steady*, from their first byte where both
ends have been called by then, and *switching*, with all connections moved from
rings to TCP and back at random moments meanwhile. A test that ends otherwise than
with Hallway off is run again alone, {REPEATS} times on either carrier. It has *changed*
if rings gave an outcome that TCP never gave; it is *unsteady* if TCP gave it too.
*Sockets* are the ends of connections that the module attached to; each can be
promoted in the direction that it sends.

Written by `make conformance`; each row by the last run of its suite.
"""


def record(row: Row, kernel: str, release: str) -> dict[str, Any]:
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
        "module": run(["git", "describe", "--always", "--dirty"], cwd=paths.REPO).strip(),
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
    # Rows that an older version of this file wrote may lack what is told today.
    alike = [one for one in old if all(one.keys() == new.keys() for new in records)]
    rows = {(one["suite"], one["kernel"], one["mode"]): one for one in [*alike, *records]}
    kept = [rows[key] for key in sorted(rows) if key[0] in suites]
    path.write_text(json.dumps(kept, indent=1) + "\n")
    DOCUMENT.write_text("\n".join(_document(kept)) + "\n")


def _document(records: list[dict[str, Any]]) -> Iterator[str]:
    yield PREFACE
    titles = [title for title, _ in HEAD]
    yield f"| {' | '.join(titles)} | module, day |"
    yield "|".join(["", *(" --- " if side == LEFT else " ---: " for _, side in HEAD), " --- ", ""])
    for one in records:
        yield f"| {' | '.join(_cells(one))} | {one['module']}, {one['date']} |"
    told = sorted({f"{one['kernel']}: {one['release']}" for one in records})
    yield f"\nKernels: {'; '.join(told)}."
    for title, lines in (
        ("Changed, or else wrong", _lines(records, troubles)),
        ("Unsteady: ended otherwise once, as with Hallway off", _lines(records, _unsteady)),
        ("Failing with Hallway off as well", _lines(records, _failing)),
    ):
        yield f"\n## {title}\n"
        yield from lines or ["None."]


def _lines(records: list[dict[str, Any]], tell: Callable[[dict[str, Any]], list[str]]) -> list[str]:
    return [
        f"- {one['suite']} ({one['mode']}, {one['kernel']}): {words.splitlines()[0]}"
        for one in records
        for words in tell(one)
    ]


def _unsteady(one: dict[str, Any]) -> list[str]:
    return [f"`{test}`: {words}" for test, words in one["unsteady"].items()]


def _failing(one: dict[str, Any]) -> list[str]:
    return [f"`{test}`: {reason}" for test, reason in one["failing"].items()]
