"""The words of comments, documents and messages: plain technical English."""

from __future__ import annotations

import re

from . import source

# Bytes, threads, rings and peers are things; the other words read like a translation.
AVOIDED = re.compile(
    r"\b(who|whom|whoever|anew|told|by now|so (?:many|much|often))\b",
    re.I,
)
PROSE = (".c", ".h", ".rs", ".py", ".md", ".toml", ".yaml", ".pml", ".sh", "")
# These are lists of the words, or other people's text.
EXEMPT = ("docs/glossary.md", "tests/lint/words.py")
# A Rust doc comment that is read alone, in rustdoc, has a subject.
BARE = re.compile(
    r"^\s*/// (?:(?:The same|Likewise|These|This \w+|Nothing|Why|Another one|(?:Of|In) the \w+)\."
    r"|(?:The same|Likewise)[,;] .*|Of (?:the|an?|its|both)\b[^.:]*\.)$"
)
LONGEST_CELL = 25  # words


def plain() -> list[str]:
    """No line speaks of things as people."""
    found = []
    for path in source.files():
        if path.suffix not in PROSE or source.name(path) in EXEMPT:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            hit = AVOIDED.search(line)
            if hit:
                found.append(f"{source.name(path)}:{number}: say it without {hit[0]!r}: {line.strip()}")
    return found


def subjects() -> list[str]:
    """Each Rust doc comment names what it is about."""
    return [
        f"{source.name(path)}:{number}: name what it is: {line.strip()}"
        for path in source.files("host")
        if path.suffix == ".rs"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if BARE.match(line)
    ]


def tables() -> list[str]:
    """A cell of a table is short enough to be read in a table."""
    found = []
    for path in source.files():
        if path.suffix != ".md":
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            cells = line.split("|")[1:-1] if line.startswith("|") else []
            count = max((len(cell.split()) for cell in cells), default=0)
            if count > LONGEST_CELL:
                found.append(f"{source.name(path)}:{number}: a cell of {count} words, not {LONGEST_CELL}")
    return found
