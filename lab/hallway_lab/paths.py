# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Where the lab keeps things: one cache folder, one output folder, one /run.

Downloads and everything derived from them alone live in the cache, keyed by
their inputs; results of a run live in `out/` of the repository; sockets and
shared memory live in a /run that exists only inside the lab's own mount
namespace (see isolate.py), so they cannot outlive a run.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from .sh import LabError

REPO = Path(__file__).resolve().parents[2]
LAB = REPO / "lab"
OUT = REPO / "out"
RUN = Path("/run/hallway-lab")


def cache(*parts: str) -> Path:
    """Return a path in the cache folder; its parent is made if need be."""
    base = os.environ.get("HALLWAY_CACHE")
    if base:
        root = Path(base)
    else:
        xdg = os.environ.get("XDG_CACHE_HOME")
        root = (Path(xdg) if xdg else Path.home() / ".cache") / "hallway"
    path = root.joinpath(*parts).absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as refusal:
        raise LabError(f"cannot keep a cache in {root}: {refusal.strerror}") from None
    return path


def out(*parts: str) -> Path:
    """Return a path in the output folder; its parent is made if need be."""
    path = OUT.joinpath(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def key(*inputs: object) -> str:
    """Return a short cache key of `inputs`: text as given, files by content."""
    digest = hashlib.sha256()
    for item in inputs:
        data = item.read_bytes() if isinstance(item, Path) else repr(item).encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def workshop(target: Path) -> Iterator[Path]:
    """Give a folder beside `target` to make it in; the caller holds the target's lock.

    What a run that was killed left there goes first.
    """
    folder = target.with_name(f"{target.name}.parts")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def lock(name: str) -> Iterator[None]:
    """Hold the cache's lock `name`, so that two runs never build one thing twice."""
    with open(cache("locks", name), "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
