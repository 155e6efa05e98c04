# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The library for programs, installed in a folder, and its examples in each language."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

from hallway_lab import paths
from hallway_lab.paths import REPO
from hallway_lab.sh import run

from .guests import share_folder

HERE = "library"  # in the folder that guests see
EXAMPLES = ("lines", "pipe")
LONGEST = (256 << 10) - 8
# Which language listens, and which sends.
PAIRS = (("rust", "c"), ("c", "python"), ("python", "rust"))


def folder() -> Path:
    """Return the folder on this machine."""
    return paths.out("tests", HERE)


def prepare(kernel: str) -> None:
    """Build it, and lay it out for guests, if there is a kernel: see `needs`."""
    host, root = REPO / "host", folder()
    with paths.lock("host"):
        words = [f"DESTDIR={root}", "PREFIX=/usr", "PYTHONDIR=/usr/lib/python3/dist-packages"]
        run(["make", "-s", "install-library", *words], cwd=REPO)
        crate = ["-p", "hallway-tunnel", "--examples"]
        run(["cargo", "build", "--release", "--locked", "-q", *crate], cwd=host)
        find = {"PKG_CONFIG_LIBDIR": str(root / "usr/lib/pkgconfig"), "PKG_CONFIG_SYSROOT_DIR": str(root)}
        flags = run(["pkg-config", "--cflags", "--libs", "hallway"], env={**os.environ, **find}).split()
        warnings = ["-Wall", "-Wextra", "-Werror"]
        for name in EXAMPLES:
            example = host / f"crates/capi/examples/{name}.c"
            run(["cc", *warnings, "-o", root / f"{name}-c", example, *flags])
            shutil.copy(host / "target/release/examples" / name, root / f"{name}-rust")
            shutil.copy(host / f"python/examples/{name}.py", root / f"{name}.py")
    if kernel:
        share_folder(kernel).mkdir(parents=True, exist_ok=True)
        shutil.copytree(root, share_folder(kernel) / HERE, dirs_exist_ok=True)


def example(language: str, at: Path | str, name: str = "lines") -> str:
    """Return the command that runs a language's example, in the folder `at`."""
    program = name + {"rust": "-rust", "c": "-c", "python": ".py"}[language]
    return f"{find(at)} {'python3 -B ' * (language == 'python')}{at}/{program}"


def find(at: Path | str) -> str:
    """Return the words before a command that finds the library in the folder `at`."""
    return f"env LD_LIBRARY_PATH={at}/usr/lib PYTHONPATH={at}/usr/lib/python3/dist-packages"


def lines() -> list[str]:
    """Return lines to send as messages: short ones between long ones."""
    lengths = (1, 2, 3, LONGEST, 1, 4096, 70_000, 1, 16)
    return [f"{random.getrandbits(4 * length):0{length}x}" for length in lengths]
