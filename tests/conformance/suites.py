"""What a suite is: tests of other people, and the program in the guest that runs them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hallway_lab import paths
from hallway_lab.sh import step

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Suite:
    """Tests that run together: one line of the table."""

    name: str
    command: str  # of the guest: a program of tests/conformance/guest and what it runs
    limit: float = 60  # seconds for one test
    whole: float = 1500  # and for all of them
    setup: str = ""  # a command of the guest that goes before
    rings: bool = True  # bytes of its connections can go through one


@dataclass(frozen=True)
class Family:
    """Suites that come from one place."""

    name: str
    suites: tuple[Suite, ...]
    # Fetches and builds what the guest needs, before the network is cut off;
    # returns what is to be laid out for it.
    fetch: Callable[[str], list[Path]] = lambda kernel: []


def cached(name: str, made_of: tuple[object, ...], make: Callable[[Path], Path]) -> Path:
    """Return what `make` makes in a scratch folder; older ones of that name go."""
    folder = paths.cache("conformance", f"{name}-{paths.key(*made_of)}")
    with paths.lock(f"conformance-{name}"):
        if not folder.exists():
            with step(f"making {name} for the conformance tests"), paths.workshop(folder) as scratch:
                product = make(scratch)
                (scratch / "made").mkdir()
                product.rename(scratch / "made" / product.name)
                (scratch / "made").rename(folder)
        for old in folder.parent.glob(f"{name}-*"):
            if old != folder:
                shutil.rmtree(old)
    return next(folder.iterdir())
