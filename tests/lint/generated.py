# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Files that are generated are what their sources make of them."""

from __future__ import annotations

import subprocess

from hallway_lab.paths import REPO


def current() -> list[str]:
    """spec/generate would change no file."""
    done = subprocess.run([REPO / "spec/generate", "--check"], capture_output=True, text=True)
    if done.stderr:
        return done.stderr.splitlines()
    return [f"{name} is stale: make generate" for name in done.stdout.splitlines()]
