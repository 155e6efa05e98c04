# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The demo as a recording of a terminal."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from hallway_lab.paths import REPO

RECORD = REPO / "demo/record"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.needs("hallway_tests.recording:prepare")
def test_recorded() -> None:
    """A row of the demo gives an asciicast: a head, and what a terminal got, in order of time."""
    file = Path(os.environ["TMPDIR"]) / "demo.cast"
    words = [RECORD, file, "--rounds", "1", "-k", "wget"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    head, *events = [json.loads(line) for line in file.read_text().splitlines()]
    assert head["version"] == 2 and head["width"] > 80 and head["height"] > 24, head
    assert all(kind == "o" for _, kind, _ in events)
    times = [when for when, _, _ in events]
    assert times == sorted(times) and times[0] >= 0
    shown = "".join(text for _, _, text in events)
    assert "nginx → wget" in shown, shown
    # One sample on a machine with other work does not tell which carrier is faster.
    assert done.returncode == (0 if "1 of 1 rows ok" in shown else 1), shown


@pytest.mark.slow
@pytest.mark.needs("hallway_tests.recording:prepare")
def test_refused() -> None:
    """Where the demo fails, so does the recording, whatever is in the words."""
    file = Path(os.environ["TMPDIR"]) / "none.cast"
    words = [RECORD, file, "-k", "it's a 'row"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode, done
    assert "it's a 'row: words" in file.read_text()
    done = subprocess.run([RECORD], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "usage" in done.stderr
