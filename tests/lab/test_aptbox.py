# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Two runs that start side by side on an empty cache fetch packages one after the other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hallway_lab import paths

UPDATE = "from hallway_lab.aptbox import AptBox; AptBox('stable').update()"


def test_updates_take_turns(tmp_path: Path) -> None:
    """apt refuses a folder that another apt has locked: no run may meet that refusal.

    There is no network here, so both updates fail, after apt took its lock.
    """
    env = {**os.environ, "HALLWAY_CACHE": str(tmp_path), "PYTHONPATH": str(paths.LAB)}
    words = [sys.executable, "-c", UPDATE]
    running = [
        subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(2)
    ]
    said = [process.communicate()[0] for process in running]
    for text in said:
        assert "Failed to fetch" in text
        assert "Could not get lock" not in text
    assert not (tmp_path / "apt/stable/updated").exists(), "lists that could not be fetched count as fetched"
