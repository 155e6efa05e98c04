"""Daemon and module of the next minor version of the ABI: an upgrade meets both."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from hallway_lab import modbuild, paths
from hallway_lab.sh import run

from .guests import REPO, share_folder

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
    module = modbuild.build(kernel, source=tree, label="newer")
    folder = share_folder(kernel) / "newer"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(module, folder)


def _tree() -> Path:
    return paths.out("tests", "newer", "x").parent
