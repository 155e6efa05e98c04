"""The verdict on a suite, put to the test: what it must see, and what it must not."""

from __future__ import annotations

from typing import Any

from hallway_tests import page
from hallway_tests.suite import check

from . import compare, report


def judged() -> None:
    """Each way to differ is seen; a test that TCP itself fails now and then is told apart."""
    tcp = {"a": "pass", "b": "fail", "c": "skip", "gone": "pass"}
    ring = {"a": "fail", "b": "fail", "c": "skip", "new": "pass"}
    check(compare.differing(tcp, ring) == ["a", "gone", "new"], "other tests differ")
    for told, changed in (
        ((["pass"] * 3, ["fail"] * 3), True),
        ((["pass"] * 3, ["fail", "pass", "pass"]), True),
        ((["pass"] * 3, [None, "pass", "pass"]), True),
        ((["pass", "fail", "pass"], ["fail", "pass", "pass"]), False),
        ((["fail", "pass", "pass"], ["pass"] * 3), False),
    ):
        check(compare.Repeats(*told).changed is changed, f"judged wrongly: {told}")
    good: dict[str, Any] = {"rings": True, "tests": 1, "changed": {}, "failing": {"b": "why"}, "faults": []}
    good["counters"] = {"tx_bytes_ring": 1}
    check(not report.troubles(good), f"a good row is bad: {report.troubles(good)}")
    for bad in (
        {"tests": 0},
        {"changed": {"a": "TCP: 3x pass; rings: 3x fail"}},
        {"failing": {"b": None}},
        {"faults": ["the kernel complained"]},
        {"counters": {"tx_bytes_ring": 0}},
    ):
        check(len(report.troubles({**good, **bad})) == 1, f"not seen: {bad}")
    _page_remembers()


def _page_remembers() -> None:
    """A page keeps the rows, and what is said of them, that a run does not replace."""
    titles = ("suite", "carrier", "tests")
    old = {("web, tls", "steady"): ["web, tls", "steady", "1"], ("mail", "steady"): ["mail", "steady", "2"]}
    notes = {("web, tls", "steady"): ["changed: `a`: b"], ("mail", "steady"): ["changed: `c`"]}
    written = page.Page(titles, old, {"Changed": notes, "Unsteady": {}}).text(["tests"])
    new = page.Page(titles, {("mail", "steady"): ["mail", "steady", "3"]}, {"Changed": {}, "Unsteady": {}})
    new.take(page.read(written, titles, 2))
    check(new.rows == {**old, ("mail", "steady"): ["mail", "steady", "3"]}, f"rows: {new.rows}")
    check(new.notes["Changed"] == {("web, tls", "steady"): ["changed: `a`: b"]}, f"notes: {new.notes}")
    wanted = written.replace("| 2 |", "| 3 |").replace("- mail, steady: changed: `c`\n", "")
    check(new.text(["tests"]) == wanted, new.text(["tests"]))
    check(not page.read(written, ("suite", "other"), 2).rows, "rows with other columns are kept")
