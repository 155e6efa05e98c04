"""The debug kernel: Debian's kernel source, a small configuration, all checkers.

A distribution's own debug configuration takes an hour to build, because it
builds every driver. A guest of the lab needs few, so `guest/debug.config`
starts from nothing (allnoconfig) and names them; what it asks for and Kconfig
does not grant fails the build rather than going missing silently. What stays
in the cache is what booting and building modules need.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from . import kernelsource, paths
from .kernel import Kernel
from .sh import Arg, LabError, end_group, run, say, step

FRAGMENT = paths.LAB / "guest/debug.config"
# A tenth of the source's files, but half of the time that unpacking takes;
# Kconfig files have to stay, since each names the next.
LEAVE_PACKED = (
    *("*/Documentation/*/*", "*/tools/testing/*", "*/sound/*.[ch]", "*/drivers/gpu/*.[ch]"),
    *("*/arch/[!x]*/*.[chS]", "*/arch/[!x]*/dts/*", "*/arch/xtensa/*.[chS]"),
)
# What a module's build reads besides the makefiles.
KEEP = ("scripts", "include", "arch/x86/include", "tools/objtool/objtool")
KEEP_FILES = (".config", "Kbuild", "Makefile", "Module.symvers", "System.map", "arch/x86/Makefile*")
SAY_EVERY = 20
NEUTRAL = {"KBUILD_BUILD_USER": "lab", "KBUILD_BUILD_HOST": "lab", "LC_ALL": "C"}


def kernel(*, refresh: bool = False) -> Kernel:
    """Return the debug kernel, building it unless the cache has it."""
    with paths.lock("kernel-debug"):
        record = paths.cache("kernels", "debug.json")
        root = _root(json.loads(record.read_text())["version"]) if record.exists() else None
        if refresh or root is None or not (root / ".complete").exists():
            # the archive keeps only the newest version, so look again before building
            package, version = kernelsource.package()
            record.write_text(json.dumps({"version": version}))
            root = _root(version)
            if not (root / ".complete").exists():
                _make(root, f"{package}={version}")
        return _load(root)


def _root(version: str) -> Path:
    return paths.cache("kernels", f"debug_{version.replace('~', '-')}_{paths.key(version, FRAGMENT)}")


def _load(root: Path) -> Kernel:
    version = (root / ".complete").read_text()
    return Kernel(
        name="debug",
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


def _make(root: Path, package: str) -> None:
    """Build below `root`; a build that was interrupted goes on where it was."""
    tree = root / "linux"
    if not (root / ".unpacked").exists():
        with step(f"fetching {package}"):
            shutil.rmtree(root, ignore_errors=True)
            kernelsource.unpack(tree, package, *(f"--exclude={pattern}" for pattern in LEAVE_PACKED))
            (root / ".unpacked").touch()
    with step("building the debug kernel (five minutes on two free CPUs)"):
        _configure(tree)
        version = run(["make", "-s", "kernelrelease"], cwd=tree, env=NEUTRAL).split()[-1]
        _build(tree, root / "build.log")
        _install(root, tree, version)
    _prune(tree)
    (root / ".complete").write_text(version)


def _configure(tree: Path) -> None:
    said = run(["scripts/kconfig/merge_config.sh", "-n", FRAGMENT], cwd=tree, env=NEUTRAL)
    refused = re.findall(r"^Value requested for (\w+) not in final", said, re.M)
    if refused or not (tree / ".config").exists():
        raise LabError(f"the kernel's Kconfig does not grant {', '.join(refused)} of {FRAGMENT}\n{said}")


def _build(tree: Path, log: Path) -> None:
    words: list[Arg] = ["make", f"-j{os.cpu_count() or 1}", "bzImage", "modules"]
    code = _watch(words, tree, log)
    if code:
        said = log.read_text(errors="replace").splitlines()
        errors = [line for line in said if re.search(r"error|\*\*\*", line, re.I)]
        raise LabError("\n".join([f"building the debug kernel failed ({log}):", *errors[-20:], *said[-10:]]))


def _watch(words: Sequence[Arg], tree: Path, log: Path) -> int:
    """Run a long `make`; keep what it says, and tell the person how far it is."""
    begin = said = time.monotonic()
    objects, last = 0, ""
    with (
        open(log, "w") as kept,
        subprocess.Popen(
            [str(word) for word in words],
            cwd=tree,
            env={**os.environ, **NEUTRAL},
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
                say(f"debug kernel: {objects} objects compiled in {now - begin:.0f} s, now in {last}")
    return process.returncode


def _install(root: Path, tree: Path, version: str) -> None:
    boot = root / "boot"
    boot.mkdir(exist_ok=True)
    shutil.copy(tree / "arch/x86/boot/bzImage", boot / f"vmlinuz-{version}")
    shutil.copy(tree / "System.map", boot / f"System.map-{version}")
    shutil.copy(tree / ".config", boot / f"config-{version}")
    run(["make", f"INSTALL_MOD_PATH={root}", "modules_install"], cwd=tree, env=NEUTRAL)
    for link in ("build", "source"):
        (root / "lib/modules" / version / link).unlink(missing_ok=True)


def _prune(tree: Path) -> None:
    """Leave what a module's build needs: a tenth of the tree."""
    lean = tree.with_name("lean")
    shutil.rmtree(lean, ignore_errors=True)
    for name in KEEP:
        source, target = tree / name, lean / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        else:
            shutil.copy2(source, target)
    for pattern in KEEP_FILES:
        for path in tree.glob(pattern):
            shutil.copy2(path, lean / path.relative_to(tree))
    shutil.rmtree(tree)
    lean.rename(tree)
