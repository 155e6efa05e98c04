# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Debian's kernel source: its package, and as much of it as is asked for."""

from __future__ import annotations

from pathlib import Path

from . import paths
from .aptbox import AptBox
from .sh import LabError, run

META = "linux-source"


def package(box: str = "stable", suite: str | None = None) -> tuple[str, str]:
    """Return the newest package of the source in an apt box, or in one suite of it, and its version."""
    apt = AptBox(box)
    name = apt.depends(META, apt.candidate(META, suite), rf"{META}-\d.*")[0]
    return name, apt.candidate(name, suite)


def unpack(tree: Path, package: str, *words: str, box: str = "stable") -> None:
    """Unpack a package of the source to a folder; more words for tar say what of it."""
    tree.mkdir(parents=True, exist_ok=True)
    with paths.workshop(tree) as scratch:
        AptBox(box).unpack(scratch, [package])
        tarballs = sorted((scratch / "usr/src").glob("linux-source-*.tar.*"))
        if not tarballs:
            raise LabError(f"{package} has no source below usr/src")
        run(["tar", "-C", tree, "--strip-components=1", *words, "-xf", tarballs[0]])
