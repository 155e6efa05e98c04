# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Daemon and module of the next minor version of the ABI, and of the previous release."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from hallway_lab import modbuild, paths
from hallway_lab.sh import LabError, run

from .guests import REPO, share_folder

# The release before this one, by the commit that stands for it: 0.1.0 has no tag. Its ABI is 3.0.
PREVIOUS = "20d98687b8370981a532944ca44c2fb10681aaa5"
PREVIOUS_ABI = "3.0"
SOURCES = ("abi", "kmod", "host", "spec")
NUMBERS = {
    "abi/hallway/constants.h": r"(HALLWAY_MINOR )(\d+)",
    "host/crates/abi/src/constants.rs": r"(MINOR: u16 = )(\d+)",
}


def newer_binaries() -> Path:
    """Return the folder of the newer daemon and CLI."""
    return _tree() / "host/target/release"


def build_newer(kernel: str) -> None:
    """Build the newer daemon, and the newer module as /hallway/newer/hallway.ko."""
    tree = _tree()
    for name in SOURCES:
        keep = shutil.ignore_patterns("target")
        shutil.copytree(REPO / name, tree / name, dirs_exist_ok=True, ignore=keep)
    for name, pattern in NUMBERS.items():
        text, count = re.subn(pattern, lambda m: f"{m[1]}{int(m[2]) + 1}", (tree / name).read_text())
        assert count == 1, f"{name} has no minor version"
        (tree / name).write_text(text)
    run(["cargo", "build", "--release", "--locked", "-q"], cwd=tree / "host")
    _share(kernel, tree, "newer")


def previous_binaries() -> Path:
    """Return the folder of the previous release's daemon and CLI."""
    return _previous() / "host/target/release"


def read_previous(name: str) -> str:
    """Return the text of a file of the previous release's sources."""
    return (_previous() / name).read_text()


def _previous() -> Path:
    # Each commit has a folder of its own: cargo goes by times, and git gives files that of the commit.
    return _tree(f"previous-{PREVIOUS[:12]}")


def build_previous(kernel: str) -> None:
    """Build the previous release's daemon, its module and CLI as /hallway/previous/."""
    build_previous_host("")
    shutil.copy(previous_binaries() / "hallway", _share(kernel, _previous(), "previous"))


def build_previous_host(_kernel: str) -> None:
    """Build the previous release's daemon and CLI."""
    tree = _previous()
    archive = tree / "sources.tar"
    try:
        run(["git", "archive", "-o", archive, PREVIOUS, *SOURCES], cwd=REPO)
    except LabError as failure:
        raise LabError(f"{PREVIOUS} is not in this checkout: fetch all of its history: {failure}") from None
    run(["tar", "xf", archive], cwd=tree)
    run(["cargo", "build", "--release", "--locked", "-q"], cwd=tree / "host")


def _share(kernel: str, tree: Path, label: str) -> Path:
    """Build a tree's module, for guests to see it in a folder of /hallway."""
    module = modbuild.build(kernel, source=tree, label=label)
    folder = share_folder(kernel) / label
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(module, folder)
    return folder


def _tree(label: str = "newer") -> Path:
    return paths.out("tests", label, "x").parent
