# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The guest module, built out of the source tree for one kernel.

Each kernel gets its own copy of kmod/ and abi/, so builds for two kernels do
not fight and the checkout stays clean. Files keep their times: an unchanged
source is not compiled again.
"""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path

from . import paths
from .kernel import Kernel
from .kernels import kernel
from .sh import LabError, run

SOURCES = ("abi", "kmod")


def build(name: str, *make_args: str, source: Path | None = None, label: str = "") -> Path:
    """Build the modules for the kernel called `name` and return the path of hallway.ko.

    hallway_vsock.ko lies beside it. Another `label`: in another folder, beside the modules of this tree.
    """
    target = kernel(name)
    return build_module((source or paths.REPO) / "kmod", target, *make_args, label=label)


def build_module(folder: Path, target: Kernel, *make_args: str, label: str = "") -> Path:
    """Build the module in `folder` (its siblings in SOURCES come along)."""
    if not any((folder / name).exists() for name in ("Kbuild", "Makefile")):
        raise LabError(f"{folder} has no Kbuild: there is no module to build")
    work = paths.out("build", f"{target.name}{label}", "x").parent
    with paths.lock(f"build-{target.name}{label}"):
        for name in {*SOURCES, folder.name}:
            _mirror(folder.parent / name, work / name)
        log = paths.out("build", f"{target.name}{label}.log")
        jobs = f"-j{os.cpu_count() or 1}"
        words = ["make", jobs, "-C", str(target.build_dir), f"M={work / folder.name}"]
        said = run([*words, *target.build_args, *make_args, "modules"], env={"LC_ALL": "C"}, check=False)
        log.write_text(said)
        built = sorted((work / folder.name).glob("*.ko"))
        if not built or "Error " in said:
            tail = "\n".join(said.splitlines()[-40:])
            raise LabError(f"building the module for {target.version} failed ({log}):\n{tail}")
        # Guests read them from a shared folder at each insmod: 97 % of the bytes are of no use there.
        run(["strip", "--strip-debug", *built])
        return built[0]


@functools.cache
def revision() -> str:
    """Return the commit that last changed the module's sources, and whether they were changed since.

    A process has one: what it builds stays the same while commits are made.
    """
    # Without a number of digits git takes as many as this clone needs: records of another would not be found.
    words = ["git", "log", "-1", "--format=%h", "--abbrev=12", "--", *SOURCES]
    commit = run(words, cwd=paths.REPO).strip()
    changed = run(["git", "status", "--porcelain", "--", *SOURCES], cwd=paths.REPO)
    return f"{commit}-dirty" if changed else commit


def _mirror(source: Path, target: Path) -> None:
    """Make `target` hold the files of `source`, besides what was built there."""
    if not source.is_dir():
        return
    present = set()
    for path in source.rglob("*"):
        if path.is_file() and path.suffix not in (".o", ".ko", ".cmd"):
            twin = target / path.relative_to(source)
            present.add(twin)
            twin.parent.mkdir(parents=True, exist_ok=True)
            if not twin.exists() or twin.read_bytes() != path.read_bytes():
                shutil.copy(path, twin)
    for old in [p for p in target.rglob("*.[chS]") if p not in present and not p.name.endswith(".mod.c")]:
        old.unlink()


def warnings(name: str) -> list[str]:
    """Return the warnings of the last build for this kernel."""
    log = paths.out("build", f"{name}.log")
    lines = log.read_text().splitlines() if log.exists() else []
    return [line for line in lines if "warning:" in line or "error:" in line]
