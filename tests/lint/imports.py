"""Imports point one way: between the host's crates, and in the lab."""

from __future__ import annotations

import ast
import graphlib
import tomllib
from collections.abc import Iterator
from pathlib import Path

from hallway_lab.paths import REPO

from . import source

CRATES = REPO / "host/crates"

# The crates that each crate may use, by the names of their folders.
BELOW = {
    "abi": set(),
    "shm": set(),
    "control": set(),
    "qmp": set(),
    "ivshmem-server": set(),
    "membership": {"abi", "shm"},
    "netlink": {"abi", "membership"},
    "daemon": {"abi", "shm", "control", "qmp", "ivshmem-server", "membership"},
    "cli": {"control", "netlink"},
}


def lab() -> list[str]:
    """No circle in lab/hallway_lab, not even by an import within a function."""
    files = [path for path in source.files("lab/hallway_lab") if path.suffix == ".py"]
    graph = {path.stem: set(_python(path)) for path in files}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        # the sorter names each node after one that imports it
        return ["lab/hallway_lab: a circle: " + " -> ".join(reversed(error.args[1]))]
    return []


def _python(path: Path) -> Iterator[str]:
    """Yield the modules of the same package that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            yield from [node.module.split(".")[0]] if node.module else [alias.name for alias in node.names]


def crates() -> list[str]:
    """Each crate uses only those below it."""
    manifests = {path.parent.name: tomllib.loads(path.read_text()) for path in CRATES.glob("*/Cargo.toml")}
    folders = {manifest["package"]["name"]: folder for folder, manifest in manifests.items()}
    found = []
    for folder, manifest in manifests.items():
        if folder not in BELOW:
            found.append(f"host/crates/{folder}: give it its place in tests/lint/imports.py")
            continue
        used = {folders[name] for name in manifest.get("dependencies", {}) if name in folders}
        found += [f"host/crates/{folder}: lies below {name}, or beside it" for name in used - BELOW[folder]]
    return sorted(found)
