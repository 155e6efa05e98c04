# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a suite is: tests of another project, and the program in the guest that runs them."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from hallway_lab import paths
from hallway_lab.sh import run

HERE = Path(__file__).resolve().parent
IMAGE = "suites"  # of the guests; lab/hallway_lab/image.py lists the Debian packages in it


@dataclass(frozen=True)
class Suite:
    """Tests that run together: one row of the table for each carrier."""

    name: str
    command: str  # of the guest: a program of tests/suites/guest and what it runs
    limit: float = 60  # seconds for one test
    whole: float = 1500  # and for all of them
    setup: str = ""  # a command of the guest that goes before
    rings: bool = True  # bytes of its connections can go through one
    outsourced: bool = False  # it runs so, too: its connections over loopback get both ends in the host

    @property
    def key(self) -> str:
        """The name as a part of names of tests and files."""
        return re.sub(r"[^\w.]+", "-", self.name.lower()).strip("-")


def lay_out(kernel: str, *products: Path) -> None:
    """Lay out for the guests of a kernel what runs suites, and what these are made of."""
    folder = paths.OUT / "tests" / f"share-{kernel}" / "suites"
    shutil.copytree(HERE / "guest", folder / "guest", dirs_exist_ok=True)
    mapped = folder / "guest/mapped.so"
    run(["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-o", mapped, HERE / "guest/mapped.c"])
    for path in products:
        if path.is_dir():
            shutil.copytree(path, folder / path.name, dirs_exist_ok=True)
        else:
            shutil.copy2(path, folder / path.name)
