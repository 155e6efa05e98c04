# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The command lines of the documents, and which test runs each of them.

A command line stands in a block that is marked `sh`. documents.toml names for each the
test that runs it, or says why none does. `make check` compares both (lint/commands.py).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hallway_lab.paths import REPO

LIST = Path(__file__).with_suffix(".toml")
NAMES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "tests/README.md", "docs/*.md")


@dataclass(frozen=True)
class Line:
    """A line of a block."""

    document: str
    number: int
    block: str  # what the block is marked with
    text: str  # without its comment


def lines() -> Iterator[Line]:
    """Yield each line of each block of the documents."""
    for path in sorted(found for name in NAMES for found in REPO.glob(name)):
        block = None
        for number, text in enumerate(path.read_text().splitlines(), 1):
            if text.startswith("```"):
                block = text[3:] if block is None else None
            elif block is not None and text:
                yield Line(str(path.relative_to(REPO)), number, block, text.partition(" # ")[0].strip())


def commands() -> list[Line]:
    """Return the command lines."""
    return [line for line in lines() if line.block == "sh"]


def listed() -> dict[str, dict[str, str]]:
    """Return what documents.toml says: `run` and `alike` name tests, `not-run` has reasons."""
    return tomllib.loads(LIST.read_text())


def run_by(test: str) -> list[str]:
    """Return the command lines that a test is to run, in the order of the list."""
    found = [command for command, by in listed()["run"].items() if by == test]
    assert found, f"{LIST.name} names no command line that {test} runs"
    return found
