# SPDX-License-Identifier: Apache-2.0 OR MIT
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
# Words that docs/glossary.md retired: a pattern, the glossary's word, and the folders and
# files in which the pattern stands for that concept, and for no other.
TEXTS = ("README.md", "ARCHITECTURE.md", "SPECIFICATION.md", "docs/")
RINGS = (
    *("abi/", "kmod/ring/", "kmod/sock/"),
    *("tests/ring/", "tests/module/", "host/crates/ring/", "host/crates/endpoint/", "spec/model/"),
)
OURS = (*TEXTS, "abi/", "bench/", "demo/", "host/", "kmod/", "lab/", "packaging/", "spec/", "tests/")
RETIRED = (
    (
        r"\bway back\b|\b(?:go|goes|going|went|gone|moved?|moves|fall|fell) back to (?:plain )?TCP"
        r"|\brings? (?:is|are|was|were) given back"
        r"|\b[Gg](?:ives?|ave|iving) (?:\w+ ){0,3}(?:rings?|memory) back"
        r"|\b[Gg]ives? back what it took\b|\bgive_back\(",
        "demote",
        OURS,
    ),
    # The field of a slice keeps its name, which guests of other versions know.
    (r"(?<!`)\b(?:has_)?settled?\b|\bSettled\b", "drained", ("host/crates/daemon/", "spec/", "docs/")),
    (r"\b(?:rx_)?cut(?:s|ting)?\b", "truncate", (*RINGS, "lab/hallway_lab/measure.py")),
    (r"\btx_repeat\b|\brepeated\b", "resend", ("tests/ring/", "tests/module/", "host/crates/ring/")),
    (r"\b(?:rx_)?saved?(?:_at|_end)?\b", "requeue", ("tests/ring/", "host/crates/ring/", "spec/protocol.md")),
    # Names that docs/json.md lists stay as programs know them.
    (
        r"(?<!members\[\]\.)(?<!not set up yet; `)(?:\b|_)(?:silent(?:ly)?|SILENT|silences?|unheard)(?:\b|_)",
        "unresponsive",
        (
            *(*TEXTS, "kmod/", "packaging/", "spec/", "tests/faults/", "tests/ring/"),
            *("host/crates/daemon/src/vms/", "host/crates/membership/"),
        ),
    ),
    # In quotes: names of what the holder keeps, which older daemons gave.
    (r"""(?<!["A-Za-z])bells?(?![A-Za-z])|[a-z]Bells?\b""", "doorbell", OURS),
    (
        r"\bbox(?:es)?\b",
        "mailbox, or host",
        (*TEXTS, "host/", "spec/", "tests/ring/", "tests/module/", "tests/e2e/"),
    ),
)
# Words. A reader takes in a cell at a time, under its heading. A row has as many of them as the
# table has columns, so its length says nothing: those of docs/threat-model.md have four sentences.
LONGEST_CELL = 25


def plain() -> list[str]:
    """No line speaks of things as people."""
    found = []
    for path in source.files():
        if path.suffix not in PROSE or source.name(path) in EXEMPT:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            hit = AVOIDED.search(line.replace("_", " "))  # in names, too
            if hit:
                found.append(f"{source.name(path)}:{number}: say it without {hit[0]!r}: {line.strip()}")
    return found


def retired() -> list[str]:
    """One concept has one word: that of the glossary."""
    rules = [(re.compile(pattern), word, folders) for pattern, word, folders in RETIRED]
    found = []
    for path in source.files():
        name = source.name(path)
        here = [(pattern, word) for pattern, word, folders in rules if name.startswith(folders)]
        if not here or name in EXEMPT or path.suffix not in (*PROSE, ".svg", ".json"):
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            found += [
                f"{name}:{number}: the glossary has {word}, not {hit[0]!r}: {line.strip()}"
                for pattern, word in here
                if (hit := pattern.search(line))
            ]
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
