# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A kernel that the lab builds itself: Debian's kernel source, and a small configuration.

The configuration starts from nothing (allnoconfig), and fragments name what is
wanted of it; what that asks for and Kconfig does not grant fails the build rather
than going missing silently. What stays in the cache is what booting and building
modules need.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import kernelsource, paths
from .sh import Arg, LabError, end_group, run, say, step

# A tenth of the source's files, but half of the time that unpacking takes;
# Kconfig files have to stay, since each names the next.
LEAVE_PACKED = ("*/Documentation/*/*", "*/tools/testing/*", "*/sound/*.[ch]", "*/drivers/gpu/*.[ch]")
SAY_EVERY = 20
NEUTRAL = {"KBUILD_BUILD_USER": "lab", "KBUILD_BUILD_HOST": "lab", "LC_ALL": "C"}


@dataclass(frozen=True)
class Recipe:
    """How to build a kernel.

    `install` takes what the kernel boots from out of the tree, which is then left with
    `keep` and `keep_files` alone: what a module's build reads besides the makefiles.
    """

    name: str  # as the lab calls it
    title: str
    box: str  # the apt box of its source
    suite: str | None
    fragments: tuple[Path, ...]  # of its configuration; a later one has the last word
    targets: tuple[str, ...]
    leave_packed: tuple[str, ...]
    install: Callable[[Path, Path, str], None]
    keep: tuple[str, ...]
    keep_files: tuple[str, ...]
    arch: str | None = None  # as make calls it; None: the machine's own

    @property
    def env(self) -> dict[str, str]:
        """Return the environment of each `make`."""
        return NEUTRAL | ({"ARCH": self.arch} if self.arch else {})


def built(recipe: Recipe, *, refresh: bool = False) -> tuple[Path, str]:
    """Return the folder of a kernel in the cache, and its release, building it unless it is there."""
    with paths.lock(f"kernel-{recipe.name}"):
        record = paths.cache("kernels", f"{recipe.name}.json")
        root = _root(recipe, json.loads(record.read_text())["version"]) if record.exists() else None
        if refresh or root is None or not (root / ".complete").exists():
            # the archive keeps only the newest version, so look again before building
            package, version = kernelsource.package(recipe.box, recipe.suite)
            record.write_text(json.dumps({"version": version}))
            root = _root(recipe, version)
            if not (root / ".complete").exists():
                _make(recipe, root, f"{package}={version}")
        return root, (root / ".complete").read_text()


def _root(recipe: Recipe, version: str) -> Path:
    name = f"{recipe.name}_{version.replace('~', '-')}_{paths.key(version, *recipe.fragments)}"
    return paths.cache("kernels", name)


def _make(recipe: Recipe, root: Path, package: str) -> None:
    """Build below `root`; a build that was interrupted goes on where it was."""
    tree = root / "linux"
    if not (root / ".unpacked").exists():
        with step(f"fetching {package}"):
            shutil.rmtree(root, ignore_errors=True)
            words = [f"--exclude={pattern}" for pattern in (*LEAVE_PACKED, *recipe.leave_packed)]
            kernelsource.unpack(tree, package, *words, box=recipe.box)
            (root / ".unpacked").touch()
    with step(f"building {recipe.title} (five minutes on two free CPUs)"):
        _configure(recipe, tree)
        version = run(["make", "-s", "kernelrelease"], cwd=tree, env=recipe.env).split()[-1]
        _build(recipe, tree, root / "build.log")
        recipe.install(root, tree, version)
    _prune(recipe, tree)
    (root / ".complete").write_text(version)


def _configure(recipe: Recipe, tree: Path) -> None:
    words: list[Arg] = ["scripts/kconfig/merge_config.sh", "-n", *recipe.fragments]
    said = run(words, cwd=tree, env=recipe.env)
    # Kernels differ in how that script says what was refused.
    config = tree / ".config"
    granted = config.read_text().splitlines() if config.exists() else []
    lines = [line for fragment in recipe.fragments for line in fragment.read_text().splitlines()]
    wanted = {hit[1]: line for line in lines if (hit := re.match(r"(?:# )?(CONFIG_\w+)", line))}
    if refused := [line for line in wanted.values() if line[0] != "#" and line not in granted]:
        files = " and ".join(map(str, recipe.fragments))
        raise LabError(f"the kernel's Kconfig does not grant {', '.join(refused)} of {files}\n{said}")


def _build(recipe: Recipe, tree: Path, log: Path) -> None:
    code = _watch(recipe, ["make", f"-j{os.cpu_count() or 1}", *recipe.targets], tree, log)
    if code:
        said = log.read_text(errors="replace").splitlines()
        errors = [line for line in said if re.search(r"error|\*\*\*", line, re.I)]
        raise LabError("\n".join([f"building {recipe.title} failed ({log}):", *errors[-20:], *said[-10:]]))


def _watch(recipe: Recipe, words: Sequence[str], tree: Path, log: Path) -> int:
    """Run a long `make`; keep what it says, and tell the person how far it is."""
    begin = said = time.monotonic()
    objects, last = 0, ""
    with (
        open(log, "w") as kept,
        subprocess.Popen(
            words,
            cwd=tree,
            env={**os.environ, **recipe.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            process_group=0,
        ) as process,
        end_group(process),
    ):
        assert process.stdout is not None
        for line in process.stdout:
            kept.write(line)
            hit = re.match(r"\s+(?:CC|AS)\s+(?:\[M\]\s+)?(\S+)/", line)
            if hit:
                objects, last = objects + 1, hit[1]
            now = time.monotonic()
            if now - said >= SAY_EVERY:
                said = now
                say(f"{recipe.title}: {objects} objects compiled in {now - begin:.0f} s, now in {last}")
    return process.returncode


def _prune(recipe: Recipe, tree: Path) -> None:
    """Leave what a module's build needs: a tenth of the tree."""
    lean = tree.with_name("lean")
    shutil.rmtree(lean, ignore_errors=True)
    for name in recipe.keep:
        source, target = tree / name, lean / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        else:
            shutil.copy2(source, target)
    for pattern in recipe.keep_files:
        for path in tree.glob(pattern):
            shutil.copy2(path, lean / path.relative_to(tree))
    shutil.rmtree(tree)
    lean.rename(tree)
