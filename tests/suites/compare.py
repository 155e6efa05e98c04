# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Is an outcome over rings another than over TCP? The answer names each test.

A test with another outcome is run again alone, several times on each carrier.
It has changed if rings gave an outcome that TCP never gave; if TCP itself gave
more than one, it is unsteady. Both fail.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

KNOWN = Path(__file__).with_name("known.toml")
GOOD = ("pass", "skip", "expected failure")

Outcomes = dict[str, str]  # a test's name: how it ended


@dataclass(frozen=True)
class Known:
    """Tests that fail over TCP as well, always or at times; those that change; and why."""

    fails: dict[str, str]
    changes: dict[str, str] = field(default_factory=dict)

    def reason(self, test: str) -> str | None:
        """Return why a test fails on both carriers, if that is known."""
        return _reason(self.fails, test)

    def change(self, test: str) -> str | None:
        """Return why a test changes, if that is known."""
        return _reason(self.changes, test)


def _reason(known: dict[str, str], test: str) -> str | None:
    return next((why for pattern, why in known.items() if fnmatchcase(test, pattern)), None)


def known(carrier: str = "", path: Path = KNOWN) -> Known:
    """Read the list that is kept; the tests that change are those of a carrier."""
    read = tomllib.loads(path.read_text())
    fails, changes = (
        {one["test"]: one["reason"] for one in read.get(name, [])} for name in ("fails", f"changes-{carrier}")
    )
    return Known(fails, changes)


def differing(tcp: Outcomes, ring: Outcomes) -> list[str]:
    """Return the tests with different outcomes, or with one on one carrier only."""
    return sorted(test for test in tcp.keys() | ring.keys() if tcp.get(test) != ring.get(test))


@dataclass
class Repeats:
    """All outcomes that a test had, on either carrier."""

    tcp: list[str | None] = field(default_factory=list)
    ring: list[str | None] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        """Whether rings gave an outcome that TCP never gave."""
        return not set(self.ring) <= set(self.tcp)

    def __str__(self) -> str:
        def words(outcomes: list[str | None]) -> str:
            return ", ".join(f"{count}x {outcome}" for outcome, count in Counter(outcomes).most_common())

        return f"TCP: {words(self.tcp)}; rings: {words(self.ring)}"


@dataclass
class Comparison:
    """The outcomes of a suite over rings beside those over TCP."""

    tcp: Outcomes
    ring: Outcomes
    repeats: dict[str, Repeats] = field(default_factory=dict)

    @property
    def tests(self) -> int:
        """How many tests have an outcome."""
        return len(self.tcp.keys() | self.ring.keys())

    @property
    def changed(self) -> dict[str, str]:
        """The tests that changed, with all their outcomes."""
        return {test: str(one) for test, one in self.repeats.items() if one.changed}

    @property
    def unsteady(self) -> dict[str, str]:
        """The tests that TCP gave several outcomes, too."""
        return {test: str(one) for test, one in self.repeats.items() if not one.changed}

    @property
    def failing(self) -> list[str]:
        """The tests that fail on both carriers."""
        bad = [{test for test, end in one.items() if end not in GOOD} for one in (self.tcp, self.ring)]
        return sorted(bad[0] & bad[1])

    def faults(self, kept: Known) -> list[str]:
        """Return all that keeps the suite from passing, but for what is known."""
        found = [
            f"changed: `{test}`: {words}" for test, words in self.changed.items() if kept.change(test) is None
        ]
        found += [
            f"unsteady, and known.toml does not say why: `{test}`: {words}"
            for test, words in self.unsteady.items()
            if kept.reason(test) is None
        ]
        found += [
            f"fails on both carriers, and known.toml does not say why: `{test}`"
            for test in self.failing
            if kept.reason(test) is None
        ]
        return found if self.tests else ["no test ran"]

    def notes(self, kept: Known) -> list[str]:
        """Return what is known of tests that fail on both carriers, or at times."""
        found = [f"`{test}` fails on both carriers: {kept.reason(test)}" for test in self.failing]
        found += [f"`{test}` changed: {why}" for test in self.changed if (why := kept.change(test))]
        return found + [f"`{test}` is unsteady: {kept.reason(test)}" for test in self.unsteady]


def compared(
    tcp: Outcomes,
    ring: Outcomes,
    repeat_tcp: Callable[[str], list[Outcomes]],
    repeat_ring: Callable[[str], list[Outcomes]],
) -> Comparison:
    """Compare outcomes; run each test that differs again alone, on both carriers."""
    made = Comparison(tcp, ring)
    for test in differing(tcp, ring):
        made.repeats[test] = Repeats(
            [tcp.get(test), *(one.get(test) for one in repeat_tcp(test))],
            [ring.get(test), *(one.get(test) for one in repeat_ring(test))],
        )
    return made
