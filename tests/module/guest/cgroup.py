# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A cgroup of the test's own."""

from __future__ import annotations

import contextlib
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def cgroup():
    """Within the block this process is in a cgroup of its own, whose memory is accounted."""
    group = ROOT / "row"
    (ROOT / "cgroup.subtree_control").write_text("+memory")
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text("0")
        yield group
    finally:
        (ROOT / "cgroup.procs").write_text("0")
        group.rmdir()
