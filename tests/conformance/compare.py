"""Is an outcome over rings another than over TCP? Said of each test by name.

A test that ended otherwise is run again alone, several times on either carrier,
before anything is said of it. It has changed if rings gave an outcome that TCP
never gave; if TCP itself gave more than one, the test is unsteady, which is told.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

KNOWN = Path(__file__).with_name("known.toml")
GOOD = ("pass", "skip", "expected failure")

Outcomes = dict[str, str]  # a test's name: how it ended


@dataclass(frozen=True)
class Known:
    """Tests that fail over TCP as well, and why."""

    fails: dict[str, str]

    def reason(self, test: str) -> str | None:
        """Return why a test fails on both carriers, if that is known."""
        return next((why for pattern, why in self.fails.items() if fnmatchcase(test, pattern)), None)


def known(path: Path = KNOWN) -> Known:
    """Read the list that is kept."""
    read = tomllib.loads(path.read_text())
    return Known({one["test"]: one["reason"] for one in read.get("fails", [])})


def differing(tcp: Outcomes, ring: Outcomes) -> list[str]:
    """Return the tests that ended differently, or on one side alone."""
    return sorted(test for test in tcp.keys() | ring.keys() if tcp.get(test) != ring.get(test))


@dataclass
class Repeats:
    """All outcomes that a test had, on either carrier."""

    tcp: list[str | None] = field(default_factory=list)
    ring: list[str | None] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        """Tell whether rings gave an outcome that TCP never gave."""
        return not set(self.ring) <= set(self.tcp)

    def __str__(self) -> str:
        def told(outcomes: list[str | None]) -> str:
            return ", ".join(f"{count}x {outcome}" for outcome, count in Counter(outcomes).most_common())

        return f"TCP: {told(self.tcp)}; rings: {told(self.ring)}"
