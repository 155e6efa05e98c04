# SPDX-License-Identifier: Apache-2.0 OR MIT
"""tokio's own tests that open connections, from its crate."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from hallway_lab.sh import LabError, run
from hallway_tests.products import cached

from .suite import Suite, lay_out

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


def prepare(kernel: str) -> None:
    """Build the test programs, and lay them out."""
    lay_out(kernel, cached("tokio", (VERSION, PROGRAMS), _build))


def _build(scratch: Path) -> Path:
    crate = scratch / "crate"
    shutil.copytree(_source(scratch / "fetch"), crate)
    words = ["cargo", "test", "--no-run", "--locked", "--features", "full"]
    words += ["--message-format=json-render-diagnostics"]
    for test in PROGRAMS:
        words += ["--test", test]
    # Without line tables they are small enough to copy into a guest.
    env = {"CARGO_PROFILE_DEV_DEBUG": "0", "CARGO_TERM_QUIET": "true"}
    said = run([*words, "--target-dir", scratch / "target"], cwd=crate, env=env)
    programs = scratch / "tokio"
    programs.mkdir()
    for line in said.splitlines():
        made = json.loads(line) if line.startswith("{") else {}
        if made.get("executable") and made["profile"]["test"]:
            shutil.copy2(made["executable"], programs / made["target"]["name"])
    missing = set(PROGRAMS) - {path.name for path in programs.iterdir()}
    if missing:
        raise LabError(f"tokio {VERSION} has no tests {', '.join(sorted(missing))}")
    return programs


def _source(folder: Path) -> Path:
    """Return the folder in which cargo keeps the crate, with its tests."""
    folder.mkdir()
    (folder / "Cargo.toml").write_text(MANIFEST)
    (folder / "lib.rs").touch()
    said = run(["cargo", "metadata", "-q", "--format-version=1"], cwd=folder)
    packages = json.loads(said[said.index("{") :])["packages"]
    return next(Path(one["manifest_path"]).parent for one in packages if one["name"] == "tokio")


SUITES = (
    Suite(
        "tokio",
        f"libtest.py {' '.join(f'/root/tokio/{one}' for one in PROGRAMS)}",
        120,
        setup="{ test -d /root/tokio || cp -r /hallway/suites/tokio /root/; }",
        outsourced=True,
    ),
)
