# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A test that waits, with processes beside it, until its run is ended."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

# In the run's process group, out of it, and one that only SIGKILL ends.
STUBBORN = "setsid sleep 1000 & (trap '' INT TERM HUP; sleep 1000) & sleep 1000"


@pytest.mark.xdist_group("sample-waiting")
def test_waits() -> None:
    """Waits."""
    subprocess.Popen(["sh", "-c", STUBBORN])
    Path(os.environ["SAMPLE_READY"]).touch()
    time.sleep(1000)
