# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Which QEMU runs which guest.

The distribution's QEMU 7.2 runs 6.1 guests well but crashes 6.12 guests at
random under TCG, so those get the newer QEMU of backports. It also starts
programs in guests five times faster, so the debug kernel gets it, and tests
that are not about devices (`FAST`). It is unpacked into the cache beside its
libraries instead of replacing the installed one, because the tests want both.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from . import paths
from .aptbox import AptBox
from .sh import LabError, run, step

BINARY = "qemu-system-x86_64"
FAST = "backports"
LIBDIR = "usr/lib/x86_64-linux-gnu"


@dataclass(frozen=True)
class Emulator:
    """A QEMU: how its command line begins, and its environment."""

    name: str
    command: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)

    def version(self) -> str:
        """Return the version that QEMU itself tells."""
        text = run([*self.command, "--version"], env=self.env)
        hit = re.search(r"version (\S+)", text)
        return hit[1] if hit else "unknown"


def emulator(name: str) -> Emulator:
    """Return the QEMU called 'distro' or 'backports'."""
    if name == "distro":
        binary = shutil.which(BINARY)
        if not binary:
            raise LabError(f"{BINARY} is not installed: run `./lab/run setup`")
        return Emulator("distro", (binary,))
    if name == "backports":
        return _backports()
    raise LabError(f"unknown emulator {name!r}: known are distro, backports")


def for_kernel(kernel_name: str) -> Emulator:
    """Return the QEMU that runs guests with this kernel reliably."""
    return emulator(name_for_kernel(kernel_name))


def name_for_kernel(kernel_name: str) -> str:
    """Return that QEMU's name."""
    return "distro" if kernel_name == "6.1" else "backports"


def _backports() -> Emulator:
    with paths.lock("qemu-backports"):
        link = paths.cache("qemu", "backports")
        if not (link / ".complete").exists():
            with step("fetching QEMU from backports"):
                _unpack(link)
    libraries = f"{link}/{LIBDIR}"
    firmware = [link / "usr/share/qemu", link / "usr/share/seabios", link / "usr/lib/ipxe/qemu"]
    words = [str(link / "usr/bin" / BINARY)]
    for folder in firmware:
        words += ["-L", str(folder)]
    env = {"LD_LIBRARY_PATH": libraries, "QEMU_MODULE_DIR": f"{libraries}/qemu"}
    return Emulator("backports", tuple(words), env)


def _unpack(target: Path) -> None:
    box = AptBox("backports")
    version = box.candidate("qemu-system-x86", "bookworm-backports")
    shutil.rmtree(target, ignore_errors=True)
    base = [f"{name}={version}" for name in ("qemu-system-x86", "qemu-system-common", "qemu-system-data")]
    box.unpack(target, [*base, "seabios"])
    missing = _missing_libraries(target)
    for _ in range(4):
        if not missing:
            break
        packages = sorted({_owner(box, version, soname) for soname in missing})
        box.unpack(target, packages)
        missing = _missing_libraries(target)
    if missing:
        raise LabError(f"QEMU from backports lacks libraries: {', '.join(missing)}")
    (target / ".complete").touch()


def _missing_libraries(target: Path) -> list[str]:
    os.environ.pop("LD_PRELOAD", None)
    text = run(
        ["ldd", target / "usr/bin" / BINARY],
        env={"LD_LIBRARY_PATH": f"{target}/{LIBDIR}"},
    )
    return re.findall(r"^\s*(\S+) => not found", text, re.M)


def _owner(box: AptBox, version: str, soname: str) -> str:
    """Return the package of QEMU's dependencies that ships `soname`."""
    stem, _, number = soname.partition(".so.")
    names = box.depends("qemu-system-x86", version, r"lib.*")
    guess = re.sub(r"[^a-z0-9]", "", stem.lower() + number.split(".")[0])
    for name in names:
        flat = re.sub(r"[^a-z0-9]", "", re.sub(r"t64$", "", name))
        if flat == guess:
            return name
    short = re.sub(r"[^a-z0-9]", "", stem.lower())
    for name in names:
        if re.sub(r"[^a-z0-9]", "", name).startswith(short):
            return name
    raise LabError(f"no dependency of QEMU looks like the home of {soname}")
