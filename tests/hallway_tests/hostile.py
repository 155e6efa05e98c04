# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A VM that is a hostile end of tunnels: the module in tests/helpers/hostile."""

from __future__ import annotations

import shutil
from pathlib import Path

from hallway_lab import modbuild
from hallway_lab.kernels import kernel as find_kernel
from hallway_lab.paths import REPO

from .guests import share_folder

FILE = "hostile.ko"


def prepare(kernel: str) -> None:
    """Build the module for the guests' module of this tree, and lay it out for guests: see `needs`."""
    modules = modbuild.build(kernel).parent
    built = modbuild.build_module(
        Path(REPO / "tests/helpers/hostile"),
        find_kernel(kernel),
        f"HALLWAY={modules.parent}",
        f"KBUILD_EXTRA_SYMBOLS={modules / 'Module.symvers'}",
        label="-hostile",
    )
    folder = share_folder(kernel)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(built, folder / FILE)
