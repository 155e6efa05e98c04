# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What tests need of other projects: made once, and kept in the cache."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from hallway_lab import paths
from hallway_lab.sh import step


def cached(name: str, made_of: tuple[object, ...], make: Callable[[Path], Path]) -> Path:
    """Return what `make` makes in a scratch folder; older products of that name are removed."""
    folder = paths.cache("suites", f"{name}-{paths.key(*made_of)}")
    with paths.lock(f"suites-{name}"):
        if not folder.exists():
            with step(f"making {name} for the tests"), paths.workshop(folder) as scratch:
                product = make(scratch)
                (scratch / "made").mkdir()
                product.rename(scratch / "made" / product.name)
                (scratch / "made").rename(folder)
        for old in folder.parent.glob(f"{name}-*"):
            if old != folder:
                shutil.rmtree(old)
    return next(folder.iterdir())
