# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The module, built with all warnings, in build folders of its own.

The checks compile everything again with other flags; in the folders of the
ordinary build that would cost the next build as much again.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tempfile
from pathlib import Path

from hallway_lab import kernels, modbuild, paths
from hallway_lab.aptbox import AptBox
from hallway_lab.sh import LabError, run

from . import source, tools


def _build(name: str, *make_args: str) -> tuple[list[str], LabError | None]:
    """Build for a kernel; return the log, and how it failed."""
    kernel = kernels.kernel(name)
    apart = dataclasses.replace(kernel, name=f"check-{name}")
    failure = None
    log = paths.out("build", f"{apart.name}.log")
    log.unlink(missing_ok=True)
    try:
        modbuild.build_module(paths.REPO / "kmod", apart, *make_args)
    except LabError as caught:
        failure = caught
    return log.read_text().splitlines() if log.exists() else [], failure


def _findings(log: list[str], name: str) -> list[str]:
    """Return warnings in our files, and errors anywhere, by their place in the checkout."""
    work = paths.out("build", f"check-{name}")
    found = set()
    for line in log:
        # newer kernels say where a file is from the module's folder on
        place = work / "kmod" / line.split(":")[0]
        ours = place.is_file() and place.is_relative_to(work)
        if "error:" in line or (ours and "warning:" in line):
            found.add(line.replace(line.split(":")[0], str(place.relative_to(work)), 1) if ours else line)
    return sorted(found)


def sparse(name: str) -> list[str]:
    """W=1 and sparse say nothing about our files, and looked at all of them."""
    tools.need("sparse")
    log, failure = _build(name, "W=1", "C=2", "CHECK=sparse")
    found = _findings(log, name)
    if found or failure:
        return found or [str(failure)]
    looked = sum(1 for line in log if re.match(r"\s*CHECK\s.*\.c$", line))
    # unsupported.c takes the place of others on kernels without their AF_VSOCK.
    sources = [path for path in source.c_files("kmod") if path.suffix == ".c" and path.stem != "unsupported"]
    if looked < len(sources):
        return [f"sparse looked at {looked} of {len(sources)} files (out/build/check-{name}.log)"]
    return []


def benchmarks(name: str) -> list[str]:
    """Each module of the benchmarks is built, and W=1 says nothing about them."""
    apart = dataclasses.replace(kernels.kernel(name), name=f"check-{name}-bench")
    folder = paths.REPO / "bench/module"
    try:
        built = modbuild.build_module(folder, apart, "W=1").parent
    except LabError as failure:
        return [str(failure)]
    log = paths.out("build", f"{apart.name}.log").read_text().splitlines()
    lacking = [path for path in folder.glob("*.c") if not (built / f"{path.stem}.ko").exists()]
    return [line for line in log if "warning:" in line] + [f"{path} gives no module" for path in lacking]


# The outer halves of calls that may block natively: see HALL_NATIVE in kmod/sock/sock.h.
LEAVING = (
    *("hall_sendmsg", "hall_recvmsg", "hall_splice_read", "hall_close"),
    *("hall_getsockopt", "hall_ioctl"),
    *("hall_ops_sendmsg", "hall_ops_recvmsg", "hall_ops_setsockopt"),
    *("hall_watched_connect", "hall_watched_accept", "hall_watched_setsockopt"),
    *("hall_watched_shutdown", "hall_datagram_release"),
    *("hall_out_sendmsg", "hall_out_recvmsg", "hall_out_setsockopt", "hall_out_getsockopt"),
    *("hall_out_poll", "hall_out_ioctl", "hall_datagram_poll"),
)


def jumps(name: str) -> list[str]:
    """A call that leaves for the native one jumps there and leaves nothing of ours on the stack."""
    built = modbuild.build(name)
    listing = run(["objdump", "-dr", "--no-show-raw-insn", "-j", ".text", built])
    functions = {
        hit[1]: hit[2] for hit in re.finditer(r"^\w+ <(\w+)>:\n(.*?)(?:\n\n|\Z)", listing, re.M | re.S)
    }
    found = [f"{function}() is not in {built}" for function in LEAVING if function not in functions]
    for function in (*LEAVING, "hall_sendpage"):
        body = functions.get(function, "")
        thunk = r"\b(call|jmp)q?\s[^\n]*\n[^\n]*__x86_indirect_thunk"
        ways = re.findall(rf"{thunk}|\b(call|jmp)q?\s+\*", body)
        kinds = [a or b for a, b in ways]
        if body and "jmp" not in kinds:
            found.append(f"{function}() on {name} does not leave by a jump")
        if "call" in kinds:
            found.append(f"{function}() on {name} calls what it has to jump to")
    return found


def newest() -> list[str]:
    """Each file compiles with the headers of Debian unstable, whose kernel exports all that they use.

    Their helper programs may want a newer C library than this machine's, so
    what is done to the objects afterwards does not count: it fails for one module
    while make (-k) compiles the other one.
    """
    name = "unstable-headers"
    log, failure = _build(name, "W=1", "-k")
    found = _findings(log, name)
    linked = any(re.match(r"\s*LD \[M\]\s+(\S*/)?hallway\.o", line) for line in log)
    if found or (failure and not linked):
        return found or [str(failure)]
    return _unexported(name)


def _unexported(name: str) -> list[str]:
    """Return the symbols of the modules that neither they nor the kernel have."""
    listed = (kernels.kernel(name).build_dir / "Module.symvers").read_text().splitlines()
    known = {"__this_module", *(line.split("\t")[1] for line in listed)}
    folder = paths.out("build", f"check-{name}", "kmod")
    built = [path for path in (folder / "hallway.o", folder / "hallway_vsock.o") if path.exists()]
    for path in built:
        known |= {line.split()[-1] for line in run(["nm", "--defined-only", path]).splitlines()}
    used = {(line.split()[-1], path.name) for path in built for line in run(["nm", "-u", path]).splitlines()}
    return sorted(
        f"{path} uses {symbol}, which {name} does not export" for symbol, path in used if symbol not in known
    )


def dkms() -> list[str]:
    """DKMS of this Debian, kept in a folder of its own, builds and installs it."""
    kernel = kernels.kernel("6.1")
    with tempfile.TemporaryDirectory() as scratch:
        places = [f"--{what}tree={scratch}/{what}" for what in ("dkms", "install")]
        Path(scratch, "dkms").mkdir()
        Path(scratch, "install", kernel.version).mkdir(parents=True)  # its sign of a kernel
        words = [f"--kernelsourcedir={kernel.build_dir}", "-k", kernel.version, "--no-depmod"]
        env = {"PATH": f"{_dkms_program().parent}:{os.environ['PATH']}", "SOURCES": f"{scratch}/src"}
        said = run([paths.REPO / "kmod/dkms-install", *places, *words], env=env)
        built = sorted(Path(scratch, "install").rglob("hallway.ko*"))
        if not built:
            return [f"DKMS installed no hallway.ko: {said}"]
        version = run(["modinfo", "-F", "version", built[0]]).strip()
    stated = run(["sed", "-n", 's/^PACKAGE_VERSION="\\(.*\\)"/\\1/p', paths.REPO / "kmod/dkms.conf"]).strip()
    return [] if stated == version else [f"kmod/dkms.conf says {stated}, the module {version}"]


def _dkms_program() -> Path:
    folder = paths.cache("dkms")
    with paths.lock("dkms"):
        if not (folder / "usr/sbin/dkms").exists():
            AptBox("stable").unpack(folder, ["dkms"])
    return folder / "usr/sbin/dkms"
