"""docs/reasons.md, made from abi/hallway/reason.h.

`python3 -m lint.reasons` (in tests/) writes it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
HEADER = REPO / "abi/hallway/reason.h"
DOCUMENT = REPO / "docs/reasons.md"

HEAD = """\
# Why a connection is on TCP

Every connection that is not on a ring, and every one that left it, has one of
these reasons. The CLI shows the words, netlink carries the number; a number
never changes its meaning. A reason belongs to one end: the two ends of a
connection may have different ones.

Made from `abi/hallway/reason.h` by `python3 -m lint.reasons` in `tests/`.

| number | name | what it means |
| ---: | --- | --- |
"""


def listed() -> list[tuple[int, str, str]]:
    """Return number, name and words of each reason."""
    rows = re.findall(r'\bR\((\d+), (\w+), "((?:[^"\\]|\\.)*)"\)', HEADER.read_text())
    return [(int(number), name, words) for number, name, words in rows]


def text() -> str:
    """Return the document as it has to be."""
    rows = [f"| {number} | {name} | {words} |\n" for number, name, words in listed()]
    return HEAD + "".join(rows)


def consistent() -> list[str]:
    """The list of words and the constants are two hands that write one thing."""
    where = str(HEADER.relative_to(REPO))
    constants = re.findall(r"^#define\s+HALLWAY_REASON_(\w+)\s+(\d+)", HEADER.read_text(), re.M)
    known = {name: int(number) for name, number in constants}
    count = known.pop("COUNT", None)
    words = {name: number for number, name, _ in listed()}
    found = [
        f"{where}: {name} is {known.get(name)} as a constant, {number} in the list"
        for name, number in words.items()
        if known.get(name) != number
    ]
    found += [f"{where}: {name} is a constant, and not in the list" for name in known if name not in words]
    if sorted(words.values()) != list(range(len(words))):
        found.append(f"{where}: the numbers have a gap or a double")
    if count != len(words):
        found.append(f"{where}: HALLWAY_REASON_COUNT is {count}, the list has {len(words)}")
    return found


def current() -> list[str]:
    """The document says what the header says."""
    if DOCUMENT.exists() and DOCUMENT.read_text() == text():
        return []
    return [
        f"{DOCUMENT.relative_to(REPO)} is not what abi/hallway/reason.h makes it: "
        "(cd tests && python3 -m lint.reasons)"
    ]


if __name__ == "__main__":
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(text())
    sys.exit(0)
