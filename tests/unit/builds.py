"""What the runners of other languages build while there is a network."""

from __future__ import annotations

from hallway_lab.paths import REPO
from hallway_lab.sh import run

CARGO = ("cargo", "test", "--release", "--locked", "-q", "--manifest-path", str(REPO / "host/Cargo.toml"))


def rust(_kernel: str) -> None:
    """Build the Rust tests."""
    run([*CARGO, "--no-run"])
