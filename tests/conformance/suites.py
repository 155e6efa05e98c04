"""What a suite is: tests of other people, and the program in the guest that runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Suite:
    """Tests that run together: one line of the table."""

    name: str
    command: str  # of the guest: a program of tests/conformance/guest and what it runs
    limit: float = 60  # seconds for one test
    whole: float = 1500  # and for all of them
    setup: str = ""  # a command of the guest that goes before


@dataclass(frozen=True)
class Family:
    """Suites that come from one place."""

    name: str
    suites: tuple[Suite, ...]
    # Fetches and builds what the guest needs, before the network is cut off;
    # returns what is to be laid out for it.
    fetch: Callable[[str], list[Path]] = lambda kernel: []
