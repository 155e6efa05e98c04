# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The debug kernel: Debian's kernel source, a small configuration, all checkers.

A distribution's own debug configuration takes an hour to build, because it
builds every driver. A guest of the lab needs few, which `guest/debug.config` names. PV domains
of Xen cannot have KASAN: they get a kernel of their own, with `guest/debug-domain.config`.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from . import paths
from .builtkernel import Recipe, built
from .kernel import Kernel
from .sh import run


def kernel(name: str, *, refresh: bool = False) -> Kernel:
    """Return a debug kernel, building it unless the cache has it."""
    recipe = RECIPES[name]
    root, version = built(recipe, refresh=refresh)
    return Kernel(
        name=name,
        version=version,
        vmlinuz=root / "boot" / f"vmlinuz-{version}",
        modules_dir=root / "lib/modules" / version,
        build_dir=root / "linux",
        # UBSan watches the module alone: in all of the kernel it would cost minutes
        build_args=("UBSAN_SANITIZE=y",),
        # pc's interrupt routing is a loop of ACPI code that runs for each device:
        # with KASAN and kmemleak behind every step that is 13 s a device
        machine="q35",
    )


def _install(root: Path, tree: Path, version: str) -> None:
    boot = root / "boot"
    boot.mkdir(exist_ok=True)
    shutil.copy(tree / "arch/x86/boot/bzImage", boot / f"vmlinuz-{version}")
    shutil.copy(tree / "System.map", boot / f"System.map-{version}")
    shutil.copy(tree / ".config", boot / f"config-{version}")
    run(["make", f"INSTALL_MOD_PATH={root}", "modules_install"], cwd=tree, env=DEBUG.env)
    for link in ("build", "source"):
        (root / "lib/modules" / version / link).unlink(missing_ok=True)


DEBUG = Recipe(
    name="debug",
    title="the debug kernel",
    box="stable",
    suite=None,
    fragments=(paths.LAB / "guest/debug.config",),
    targets=("bzImage", "modules"),
    leave_packed=("*/arch/[!x]*/*.[chS]", "*/arch/[!x]*/dts/*", "*/arch/xtensa/*.[chS]"),
    install=_install,
    keep=("scripts", "include", "arch/x86/include", "tools/objtool/objtool"),
    keep_files=(".config", "Kbuild", "Makefile", "Module.symvers", "System.map", "arch/x86/Makefile*"),
)
OF_DOMAINS = dataclasses.replace(
    DEBUG,
    name="debug-domain",
    title="the debug kernel of domains",
    fragments=(*DEBUG.fragments, paths.LAB / "guest/debug-domain.config"),
)
RECIPES = {recipe.name: recipe for recipe in (DEBUG, OF_DOMAINS)}
