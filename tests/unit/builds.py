# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What the runners of other languages build while there is a network."""

from __future__ import annotations

from hallway_lab.paths import REPO
from hallway_lab.sh import run

# A crate that fails must not hide another.
CARGO = (
    *("cargo", "test", "--release", "--locked", "-q", "--no-fail-fast"),
    *("--manifest-path", str(REPO / "host/Cargo.toml")),
)


def rust(_kernel: str) -> None:
    """Build the Rust tests."""
    run([*CARGO, "--no-run"])
