"""The verdict on a suite, put to the test: what it must see, and what it must not."""

from __future__ import annotations

from typing import Any

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
