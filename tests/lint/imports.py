# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Imports point one way: between the host's crates, within each, in the lab, and in the tests."""

from __future__ import annotations

import ast
import graphlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from hallway_lab.paths import REPO

from . import source

CRATES = REPO / "host/crates"
DAEMON = CRATES / "daemon/src"

# The crates that each crate may use, by the names of their folders.
BELOW = {
    "abi": set(),
    "shm": set(),
    "unix": set(),
    "control": set(),
    "log": set(),
    "cpus": set(),
    "qmp": {"unix"},
    "ivshmem-server": {"unix"},
    "xenstore": set(),
    "membership": {"abi", "shm"},
    "netlink": {"abi", "membership"},
    "ring": {"abi", "shm"},
    "endpoint": {"abi", "log", "ring", "shm"},
    "outsource": {"abi", "ring", "shm", "endpoint"},
    "host": {"abi", "ring", "shm", "endpoint", "unix"},
    "daemon": {
        *("abi", "shm", "control", "log", "qmp", "ivshmem-server", "membership"),
        *("endpoint", "outsource", "host", "xenstore", "cpus", "unix"),
    },
    "libvirt": {"abi", "control", "log", "membership"},
    "tunnel": {"abi", "netlink", "unix"},
    "capi": {"tunnel"},
    "cli": {"abi", "control", "log", "netlink", "tunnel", "unix"},
}

# The daemon's modules: each may use those before it. A component owns its data
# and is used by those after it; what it wants of them, it returns (effect.rs).
MODULES = (
    *("run", "program", "regionspec", "options", "config", "access"),
    *("effect", "domains", "lines", "notify", "poller"),
    *("keeper/holder", "keeper/state", "keeper/pidfd", "keeper"),
    *("connections/ringer", "connections/line", "connections/connection", "connections"),
    *("regions/served", "regions"),
    *("vms/bridge", "vms/news", "vms/migrate", "vms/monitor", "vms/vm", "vms"),
    *("pairs", "cgroup", "helpers/cgroups", "helpers/listen", "helpers/process", "helpers"),
    *("cpus/weight", "cpus", "stop", "picture", "requests", "clients"),
    *("server", "server/commit", "server/start", "main"),
)


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


def modules() -> list[str]:
    """Each module of the daemon uses only those before it."""
    found = []
    places = {path: str(path.relative_to(DAEMON).with_suffix("")) for path in DAEMON.rglob("*.rs")}
    for path, place in sorted(places.items()):
        if place not in MODULES:
            found.append(f"{source.name(path)}: give it its place in tests/lint/imports.py")
            continue
        for line, used in _rust(path, DAEMON):
            if used not in MODULES[: MODULES.index(place) + 1]:
                found.append(f"{source.name(path)}:{line}: {place} lies below {used}")
    gone = set(MODULES) - set(places.values())
    return found + [f"tests/lint/imports.py: {place} is no module of the daemon" for place in sorted(gone)]


def circles() -> list[str]:
    """No circle of modules in a crate of the host's. A module within another may use that one."""
    found = []
    for root in sorted(CRATES.glob("*/src")):
        graph = {_place(path, root): {used for _, used in _rust(path, root)} for path in root.rglob("*.rs")}
        try:
            graphlib.TopologicalSorter(graph).prepare()
        except graphlib.CycleError as error:
            # the sorter names each node after one that imports it
            circle = " -> ".join(reversed(error.args[1]))
            found.append(f"{source.name(root)}: a circle: {circle}")
    return found


def _place(path: Path, root: Path) -> str:
    """Return the name of a module: its path in the crate."""
    return str(path.relative_to(root).with_suffix(""))


# A path of modules, or several in the braces of a `use`.
RUST_PATH = re.compile(r"\b(crate|super|self)((?:::\w+)*)(?:::\{([^;]*)\};)?")


def _rust(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Yield line and module of each path to another module, outside of tests."""
    text = source.code(path).split("#[cfg(test)]")[0]
    place = _place(path, root)
    parent = place.rpartition("/")[0]
    own = "" if place in ("main", "lib") else place
    starts = {"crate": "", "super": parent, "self": own}
    for hit in RUST_PATH.finditer(text):
        first = [name for name in starts[hit[1]].split("/") if name]
        for name in hit[2].split("::")[1:]:
            first = first[:-1] if name == "super" else [*first, name]
        # Braces within those name what is in a module.
        for last in re.sub(r"::\{[^{}]*\}", "", hit[3] or "").split(","):
            names = [*first, *last.strip().split("::")]
            lengths = range(len(names), 0, -1)
            modules = ("/".join(names[:length]) for length in lengths)
            used = next((one for one in modules if one and (root / f"{one}.rs").exists()), place)
            if used != place:
                yield source.line_of(text, hit.start()), used


TESTS = REPO / "tests"
LIBRARY = "hallway_tests"
# Suites that use another suite, besides the library.
USES = {"e2e": {"programs"}}


def suites() -> list[str]:
    """The tests' library uses no suite, and suites do not use each other."""
    folders = {path.name for path in TESTS.iterdir() if (path / "__init__.py").exists()}
    found = []
    for path in source.files("tests"):
        folder = path.relative_to(TESTS).parts[0]
        if path.suffix == ".py" and folder in folders:
            above = folders - {folder, LIBRARY} - USES.get(folder, set())
            found += [
                f"{source.name(path)}:{line}: {folder} must not use {name}"
                for line, name in _absolute(path)
                if name in above
            ]
    return found


def _absolute(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and top-level package of each absolute import of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module.split(".")[0]
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
