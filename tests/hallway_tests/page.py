"""A page of docs/ that is its own memory.

Rows are made a few at a time, in many checkouts: each stays as it is until what
it tells of has run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Key = tuple[str, ...]  # the first cells of a row


@dataclass
class Page:
    """The rows of a table, and the notes under each title, by what they are about."""

    titles: Sequence[str]
    rows: dict[Key, list[str]] = field(default_factory=dict)
    notes: dict[str, dict[Key, list[str]]] = field(default_factory=dict)

    def take(self, older: Page) -> None:
        """Keep what an older page holds of rows that this one has not."""
        missing = older.rows.keys() - self.rows.keys()
        self.rows |= {key: older.rows[key] for key in missing}
        for title, notes in older.notes.items():
            self.notes.setdefault(title, {}).update((key, notes[key]) for key in missing & notes.keys())

    def text(self, right: Iterable[str]) -> str:
        """Return the page, with the columns that are told flush right."""
        aligned = [" ---: " if title in right else " --- " for title in self.titles]
        lines = [_row(self.titles), "|".join(["", *aligned, ""])]
        lines += [_row(self.rows[key]) for key in sorted(self.rows)]
        for title, notes in self.notes.items():
            told = [f"- {', '.join(key)}: {words}" for key in sorted(notes) for words in notes[key]]
            lines += ["", f"## {title}", "", *(told or ["None."])]
        return "\n".join(lines) + "\n"


def read(text: str, titles: Sequence[str], named_by: int) -> Page:
    """Return what a page holds; nothing if its columns are others."""
    page = Page(titles)
    if _row(titles) not in text.splitlines():
        return page
    title = ""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if line.startswith("## "):
            title = line.removeprefix("## ")
        elif line.startswith("| ") and cells != list(titles) and cells[0] != "---":
            page.rows[tuple(cells[:named_by])] = cells
        elif line.startswith("- "):
            about, _, words = line.removeprefix("- ").partition(": ")
            key = tuple(about.rsplit(", ", named_by - 1))
            page.notes.setdefault(title, {}).setdefault(key, []).append(words)
    return page


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
