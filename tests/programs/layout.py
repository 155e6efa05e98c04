# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What programs need in a guest besides packages."""

from __future__ import annotations

import shutil
from pathlib import Path

from hallway_lab import paths, programs

HERE = Path(__file__).parent


def lay_out(kernel: str) -> None:
    """Build it, and lay it out in the folder that guests share."""
    folder = paths.OUT / "tests" / f"share-{kernel}"
    shutil.copy(programs.build_rawstream(), folder)
    shutil.copytree(HERE / "guest", folder / "programs", dirs_exist_ok=True)
