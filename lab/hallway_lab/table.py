"""Tables and figures, for a terminal and for documents."""

from __future__ import annotations

from collections.abc import Sequence

LEFT, RIGHT = "<", ">"


def number(value: float) -> str:
    """A figure with three or so significant digits."""
    if value >= 1000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def bytes_(value: int) -> str:
    """A count of bytes in decimal units."""
    if value < 1000:
        return f"{value} B"
    for unit, size in (("kB", 1e3), ("MB", 1e6), ("GB", 1e9)):
        if value < 1000 * size or unit == "GB":
            return f"{value / size:.1f} {unit}"
    raise AssertionError


def share(value: float | None) -> str:
    """A share in percent, never rounded up to a full one."""
    return "-" if value is None else f"{int(value * 1000) / 10:.1f} %"


def render(head: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]]) -> str:
    """Columns of text; `head` gives each column's title and alignment."""
    titles = [title for title, _ in head]
    widths = [max(len(row[n]) for row in [titles, *rows]) for n in range(len(head))]
    lines = []
    for row in [titles, ["-" * width for width in widths], *rows]:
        cells = [f"{cell:{side}{width}}" for cell, width, (_, side) in zip(row, widths, head, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def markdown(head: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]]) -> str:
    """The same for a document."""
    sides = ["---:" if side == RIGHT else "---" for _, side in head]
    return "\n".join(f"| {' | '.join(row)} |" for row in [[title for title, _ in head], sides, *rows])
