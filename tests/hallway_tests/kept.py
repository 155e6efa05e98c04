"""What runs leave for each other: the rows of the last run of each thing, on each kernel."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def keep(
    path: Path, records: Sequence[Row], order: Sequence[str], merge: Callable[[Row, Row], Row] | None = None
) -> list[Row]:
    """Put rows in place of those of before, into that file too; return all whose keys are still known.

    `merge` makes one row of the old and the new one, if the new one does not say all.
    """
    old = json.loads(path.read_text()) if path.exists() else []
    rows = {(one["key"], one["kernel"]): one for one in old}
    for one in records:
        place = one["key"], one["kernel"]
        rows[place] = merge(rows[place], one) if merge and place in rows else one
    kept = [one for one in rows.values() if one["key"] in order]
    kept.sort(key=lambda one: (order.index(one["key"]), one["kernel"]))
    path.write_text(json.dumps(kept, indent=2) + "\n")
    return kept
