# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A kernel of User Mode Linux: it runs as a process of this machine, at this machine's speed.

It is built from the newest source of Debian, of an own architecture (ARCH=um):
the lab's host has no virtualisation of its own, and a kernel under emulation is
too slow to say what a call costs.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from . import paths
from .builtkernel import Recipe, built
from .kernel import Kernel


def kernel(*, refresh: bool = False) -> Kernel:
    """Return the kernel, building it unless the cache has it; `vmlinuz` is the program."""
    root, version = built(RECIPE, refresh=refresh)
    return Kernel(
        name=RECIPE.name,
        version=version,
        vmlinuz=root / "linux.uml",
        modules_dir=None,
        build_dir=root / "linux",
        build_args=("ARCH=um",),
    )


def _install(root: Path, tree: Path, _version: str) -> None:
    shutil.copy(tree / "linux", root / "linux.uml")
    # What `modules` would write where modules are built.
    shutil.copy(tree / "vmlinux.symvers", tree / "Module.symvers")


RECIPE = Recipe(
    name="uml",
    title="the kernel of User Mode Linux",
    box="unstable",
    suite="sid",
    fragments=(paths.LAB / "guest/uml.config",),
    targets=("linux", "modules_prepare"),
    leave_packed=(
        *("*/arch/[!ux]*/*.[chS]", "*/arch/[!ux]*/dts/*", "*/arch/xtensa/*.[chS]"),
        *("*/sound/*/*.[ch]", "*/drivers/net/ethernet/*.[ch]", "*/drivers/net/wireless/*.[ch]"),
        *("*/drivers/media/*.[ch]", "*/drivers/infiniband/*.[ch]"),
    ),
    install=_install,
    keep=("scripts", "include", "arch/um", "arch/x86/include", "arch/x86/um"),
    keep_files=(".config", "Kbuild", "Makefile", "Module.symvers", "System.map", "arch/x86/Makefile*"),
    arch="um",
)
