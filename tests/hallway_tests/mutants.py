# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Mutants: faults that are put into a copy of the module, which its tests have to notice."""

from __future__ import annotations

from typing import NamedTuple


class Misfit(Exception):
    """A mutant that no longer fits its source: it has to be written again."""


class Mutant(NamedTuple):
    """One fault, and what has to notice it. Files are separated by spaces, and so are tests."""

    name: str
    files: str
    old: str
    new: str
    tests: str
    says: str = ""
    """What a test that notices it has to say."""
    times: int = 1
    """How often the old text stands in each file."""


def put_in(text: str, old: str, new: str, times: int = 1) -> str:
    """Return a source with the fault. The old text must stand in it that often."""
    if (found := text.count(old)) != times:
        raise Misfit(f"{old!r} is there {found} times in place of {times}: write the mutant again")
    return text.replace(old, new)
