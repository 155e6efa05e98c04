# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The comparison of outcomes, and the guest's programs that write them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import cast

import pytest
from hallway_tests.record import Outcome

from . import cpython
from .carriers import STEADY, Traffic
from .compare import Comparison, Known, Outcomes, Repeats, compared, differing, known
from .guest import Guest, Run
from .runner import Runner
from .suite import HERE, Suite
from .test_suites import FAMILIES

TCP = {"a": "pass", "b": "fail", "c": "skip", "gone": "pass"}
RING = {"a": "fail", "b": "fail", "c": "skip", "new": "pass"}
NOTHING = Known({})


def test_differing() -> None:
    """A test differs by its outcome, or by having one on one carrier only."""
    assert differing(TCP, RING) == ["a", "gone", "new"]


@pytest.mark.parametrize(
    ("tcp", "ring", "changed"),
    [
        (["pass"] * 3, ["fail"] * 3, True),
        (["pass"] * 3, ["fail", "pass", "pass"], True),
        (["pass"] * 3, [None, "pass", "pass"], True),
        (["pass", "fail", "pass"], ["fail", "pass", "pass"], False),
        (["fail", "pass", "pass"], ["pass"] * 3, False),
    ],
)
def test_changed(tcp: list[str | None], ring: list[str | None], changed: bool) -> None:
    """A test has changed if rings gave an outcome that TCP never gave."""
    assert Repeats(tcp, ring).changed is changed


def test_repeats_alone() -> None:
    """Each test that differs is repeated on both carriers, others are not."""
    asked: list[tuple[str, str]] = []

    def repeat(on: str, test: str) -> list[Outcomes]:
        asked.append((on, test))
        return [{test: "pass"}] * 2

    found = compared(TCP, RING, lambda test: repeat("tcp", test), lambda test: repeat("ring", test))
    assert asked == [(on, test) for test in ("a", "gone", "new") for on in ("tcp", "ring")]
    assert set(found.changed) == {"a", "gone"}
    assert set(found.unsteady) == {"new"}
    assert found.failing == ["b"]


def test_faults() -> None:
    """A change, an unsteady test, a failure without a reason, and a run of no test: each is a fault."""
    assert not Comparison({"a": "pass"}, {"a": "pass"}).faults(NOTHING)
    assert Comparison({}, {}).faults(NOTHING) == ["no test ran"]
    both = Comparison({"a": "fail"}, {"a": "fail"})
    assert len(both.faults(NOTHING)) == 1
    assert not both.faults(Known({"a": "why"}))
    assert both.notes(Known({"a": "why"})) == ["`a` fails on both carriers: why"]
    unsteady = Comparison({"a": "pass"}, {"a": "fail"}, {"a": Repeats(["pass", "fail"], ["fail", "pass"])})
    assert len(unsteady.faults(NOTHING)) == 1
    assert not unsteady.faults(Known({"a": "why"}))
    changed = Comparison({"a": "pass"}, {"a": "fail"}, {"a": Repeats(["pass"], ["fail"])})
    assert len(changed.faults(Known({"a": "why"}))) == 1


def test_known_changes() -> None:
    """A change with a reason is no fault, and is noted."""
    changed = Comparison({"a": "pass"}, {"a": "fail"}, {"a": Repeats(["pass"] * 3, ["fail"] * 3)})
    kept = Known({}, {"a": "why"})
    assert not changed.faults(kept)
    assert changed.notes(kept) == ["`a` changed: why"]


def test_known() -> None:
    """The list of known failures can be read, and its patterns are a shell's."""
    kept = known()
    assert kept.fails
    assert Known({"tls::*rekey*": "why"}).reason("tls::basic.rekey_rx") == "why"


class _Guest:
    """A guest in which each test passes. Its module has the given counters."""

    def __init__(self, **counters: int) -> None:
        self._counters = Counter(counters)

    def over_tcp(self, _suite: Suite) -> Run:
        return Run([{"a": "pass"}])

    def run(self, _suite: Suite, _on: str, _seed: int) -> Run:
        return Run([{"a": "pass"}], traffic=Traffic(self._counters))


@pytest.mark.parametrize(
    ("counters", "fault"),
    [
        ({"tx_bytes_ring": 1}, None),
        ({"tx_bytes_tcp": 1}, "not one byte went by the carrier"),
        ({"tx_bytes_ring": 1, "corrupt_rings": 1}, "corrupt_rings"),
    ],
)
def test_traffic(counters: dict[str, int], fault: str | None) -> None:
    """A suite fails if no byte of it used the carrier, or if a ring became corrupt."""
    runner = Runner(cast(Guest, _Guest(**counters)), Outcome("", ""), Random(0), 1)
    suite = Suite("a suite", "")
    if not fault:
        runner.compare(suite, STEADY)
        return
    with pytest.raises(pytest.fail.Exception, match=fault):
        runner.compare(suite, STEADY)


def test_keys() -> None:
    """No two suites have the same key; any character may be in a name."""
    keys = [suite.key for family in FAMILIES for suite in family.SUITES] + [cpython.QUICK.key]
    assert [key for key, count in Counter(keys).items() if count > 1] == []
    assert Suite("a/b: c's (d)", "").key == "a-b-c-s-d"


def test_exit_codes(tmp_path: Path) -> None:
    """Of a command, 0 is a pass, 4 (the kernel's) and 77 (automake's) are skips, the rest fails."""
    codes = {0: "pass", 4: "skip", 77: "skip", 1: "fail", 126: "fail"}
    commands = [{"name": str(code), "command": f"exit {code}", "tap": False} for code in codes]
    (tmp_path / "list.json").write_text(json.dumps(commands))
    program = [sys.executable, "-B", HERE / "guest/commands.py", "--results", tmp_path / "results"]
    subprocess.run([*program, "--", tmp_path / "list.json"], check=True)
    lines = map(json.loads, (tmp_path / "results").read_text().splitlines())
    ends = {line["test"]: line["outcome"] for line in lines if "outcome" in line}
    assert ends == {str(code): outcome for code, outcome in codes.items()}
