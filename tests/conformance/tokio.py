"""tokio's own tests, from its crate: those that open connections."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from hallway_lab.sh import LabError, run

from .suites import Family, Suite, cached

VERSION = "1.54.1"
PROGRAMS = (
    *("tcp_accept", "tcp_accept_ready", "tcp_connect", "tcp_echo", "tcp_into_split", "tcp_into_std"),
    *("tcp_peek", "tcp_shutdown", "tcp_socket", "tcp_split", "tcp_stream", "net_quickack"),
    *("buffered", "io_driver", "io_driver_drop", "rt_common"),
)
MANIFEST = f"""[package]
name = "fetch"
version = "0.0.0"
edition = "2021"
[lib]
path = "lib.rs"
[dependencies]
tokio = "={VERSION}"
"""


def fetch(_kernel: str) -> list[Path]:
    """Return a folder with the test programs."""
    return [cached("tokio", (VERSION, PROGRAMS), _build)]


def _build(scratch: Path) -> Path:
    crate = scratch / "crate"
    shutil.copytree(_source(scratch / "fetch"), crate)
    words = ["cargo", "test", "--no-run", "--locked", "--features", "full"]
    words += ["--message-format=json-render-diagnostics"]
    for test in PROGRAMS:
        words += ["--test", test]
    # Without line tables they are small enough to be copied into a guest.
    env = {"CARGO_PROFILE_DEV_DEBUG": "0", "CARGO_TERM_QUIET": "true"}
    said = run([*words, "--target-dir", scratch / "target"], cwd=crate, env=env)
    programs = scratch / "tokio"
    programs.mkdir()
    for line in said.splitlines():
        told = json.loads(line) if line.startswith("{") else {}
        if told.get("executable") and told["profile"]["test"]:
            shutil.copy2(told["executable"], programs / told["target"]["name"])
    missing = set(PROGRAMS) - {path.name for path in programs.iterdir()}
    if missing:
        raise LabError(f"tokio {VERSION} has no tests {', '.join(sorted(missing))}")
    return programs


def _source(folder: Path) -> Path:
    """Return where cargo keeps the crate, its tests included."""
    folder.mkdir()
    (folder / "Cargo.toml").write_text(MANIFEST)
    (folder / "lib.rs").touch()
    told = run(["cargo", "metadata", "-q", "--format-version=1"], cwd=folder)
    packages = json.loads(told[told.index("{") :])["packages"]
    return next(Path(one["manifest_path"]).parent for one in packages if one["name"] == "tokio")


FAMILY = Family(
    "tokio",
    (
        Suite(
            "tokio",
            f"libtest.py {' '.join(f'/root/tokio/{one}' for one in PROGRAMS)}",
            120,
            setup="{ test -d /root/tokio || cp -r /hallway/conformance/tokio /root/; }",
        ),
    ),
    fetch,
)
