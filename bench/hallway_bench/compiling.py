# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The benchmark's own programs in C, compiled."""

from __future__ import annotations

from pathlib import Path

from hallway_lab import paths
from hallway_lab.sh import run

GCC = ("gcc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall")


def compile_program(name: str, *more: str) -> Path:
    """Compile a static program of bench/programs, with more words to the compiler; return its path."""
    target = paths.out("bench", name)
    run([*GCC, "-static", "-o", target, paths.REPO / f"bench/programs/{name}.c", *more])
    return target
