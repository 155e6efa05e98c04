# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Tools of others, and the settings they run with here."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hallway_lab import kernelsource, paths
from hallway_lab.paths import REPO
from hallway_lab.sh import Arg, LabError, step
from hallway_lab.venv import venv

from . import source

RUFF = "0.17.5"
RUFF_FOLDERS = ("lab", "tests", "demo", "bench", "spec", "host")
RUFF_MORE = 'lint.allowed-confusables = ["\u00d7"]'  # the sign of multiplication


def need(program: str) -> str:
    """Return the path of a program that `lab/run setup` installs."""
    path = shutil.which(program)
    if not path:
        raise LabError(f"{program} is not installed: run `./lab/run setup`")
    return path


def _said(command: Sequence[Arg], folder: Path = REPO) -> list[str]:
    """Run a tool; return what it said if it was not content."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if not done.returncode:
        return []
    return done.stdout.splitlines() or [f"{command[0]}: exit code {done.returncode}"]


# -- Rust ----------------------------------------------------------------------


def _cargo(component: str) -> None:
    if not shutil.which("cargo"):
        raise LabError("cargo is missing: install Rust (rustup, or the distribution's cargo)")
    if not shutil.which(component):
        raise LabError(f"{component} is missing: rustup component add rustfmt clippy")


def rustfmt() -> list[str]:
    """Rust is formatted by rustfmt with its defaults."""
    _cargo("cargo-fmt")
    return [
        line
        for folder in ("host", "tests/helpers/echo-rust")
        for line in _said(["cargo", "fmt", "--all", "--check"], REPO / folder)
    ]


def clippy() -> list[str]:
    """Clippy says nothing, about tests neither."""
    _cargo("cargo-clippy")
    words = ["cargo", "clippy", "-q", "--all-targets", "--locked", "--", "-D", "warnings"]
    return _said(words, REPO / "host")


# -- Python --------------------------------------------------------------------


def _ruff() -> Path:
    """Return ruff of the one version whose formatting is ours."""
    return venv("ruff", f"ruff=={RUFF}") / "bin/ruff"


def _python() -> list[Path]:
    inside = tuple(f"{folder}/" for folder in RUFF_FOLDERS)
    found = {path for path in source.files() if path.suffix == ".py"} | set(source.scripts("python3?"))
    return sorted(path for path in found if source.name(path).startswith(inside))


def ruff_check() -> list[str]:
    """Python is linted with the settings of lab/pyproject.toml."""
    settings = ["--config", REPO / "lab/pyproject.toml", "--config", RUFF_MORE]
    return _said([_ruff(), "check", "-q", "--output-format=concise", *settings, *_python()])


def ruff_format() -> list[str]:
    """Python is formatted by ruff."""
    settings = REPO / "lab/pyproject.toml"
    said = _said([_ruff(), "format", "--check", "--config", settings, *_python()])
    unformatted = [line.split("--> ")[1] for line in said if "--> " in line]
    listed = [line for line in said if line.startswith("Would reformat: ")]
    return unformatted or listed or said


# -- licenses ------------------------------------------------------------------

REUSE = "6.2.0"
# Files with such names, and scripts. Fragments of a kernel's configuration are no sources.
SOURCES = (
    *(".py", ".rs", ".c", ".h", ".go", ".pml", ".sh"),
    *(".toml", ".conf", ".service", ".yaml", ".ini", ".spec"),
)


def reuse() -> list[str]:
    """Each file says under which license it is, in the form of reuse.software."""
    return _said([venv("reuse", f"reuse=={REUSE}") / "bin/reuse", "lint", "--lines"])


def licensed() -> list[str]:
    """Return the sources that do not say it themselves: REUSE.toml is for what has no comments."""
    found = []
    for path in source.files():
        head = path.read_bytes()[:400]
        if (path.suffix in SOURCES or head.startswith(b"#!")) and b"SPDX-License-Identifier" not in head:
            found.append(f"{source.name(path)}: no line SPDX-License-Identifier at its beginning")
    return found


# -- shell ---------------------------------------------------------------------

# SC2187: ash (busybox) is checked as dash, which is near enough.
SHELLCHECK_IGNORED = "SC2187"


def shellcheck() -> list[str]:
    """Shell scripts, found by their first line."""
    program = need("shellcheck")
    return _said([program, "-f", "gcc", "-e", SHELLCHECK_IGNORED, *source.scripts("sh|bash|dash|ash")])


# -- C: the kernel's own checkpatch ----------------------------------------------

# What it finds wrong in general and we do on purpose.
CHECKPATCH_IGNORED = {
    "COMPLEX_MACRO": "loops of the shim, and arguments of functions that differ between kernels",
    "MACRO_ARG_REUSE": "the same, and bounds of a ring's size",
    "BIT_MACRO": "abi/ is compiled in user space too",
    "MEMORY_BARRIER": "pairs are named once, in spec/protocol.md section 4 and atop ring.c",
    "MULTIPLE_ASSIGNMENTS": "hs->pinned = hs->reason = reason says that they are one",
    "LONG_LINE_STRING": "a message that people may search for stays on one line",
    "UNCOMMENTED_DEFINITION": "a struct's head says what its locks hold",
    "FILE_PATH_CHANGES": "we have no MAINTAINERS file",
}
# In programs of user space, which are no kernel code.
CHECKPATCH_USER = {
    "PREFER_KERNEL_TYPES": "stdint.h",
    "CAMELCASE": "LLVMFuzzerTestOneInput",
    "VOLATILE": "sig_atomic_t",
    "PREFER_DEFINED_ATTRIBUTE_MACRO": "there is no linux/compiler.h",
    "AVOID_EXTERNS": "taken for one: __attribute__ on a member",
    "COMPARISON_TO_NULL": "a comparison of truths, (x != NULL) == (y != 0)",
    "TRAILING_STATEMENTS": "tables as a switch; nested loops over a table",
    "OPEN_BRACE": "taken for a function: for EACH(...)",
    "SUSPECT_CODE_INDENT": "nested loops over a table",
}
# Single places where it is wrong: file, type, why.
CHECKPATCH_EXCEPT = {
    ("kmod/ring/env.h", "PREFER_KERNEL_TYPES"): "here they are defined for user space",
    ("kmod/compat/recvmsg.h", "SPACING"): "the macros begin with a comma",
    ("kmod/obs/trace.h", "OPEN_ENDED_LINE"): "as in the kernel's include/trace/events",
    ("kmod/obs/trace.h", "PARENTHESIS_ALIGNMENT"): "the same",
    ("kmod/sock/sock.h", "CONST_STRUCT"): "a copy of its own for each socket",
    ("kmod/sock/wake.h", "WAITQUEUE_ACTIVE"): "a hint alone; the poller looks after it is queued",
    ("kmod/sock/wake.c", "WAITQUEUE_ACTIVE"): "the same: a later sleeper polls then",
    ("kmod/sock/spin.c", "WAITQUEUE_ACTIVE"): "a hint alone: the reader ends its spin",
    ("kmod/switch/switch.c", "MSLEEP"): "longer is fine",
    ("kmod/outsource/outsource.c", "MSLEEP"): "the same",
    ("kmod/outsource/hook.h", "CONST_STRUCT"): "copies, filled when they are made",
    ("kmod/outsource/hook.c", "CONST_STRUCT"): "the same",
    ("kmod/outsource/decide.c", "CAMELCASE"): "the kernel's own name",
    ("kmod/outsource/close.c", "USE_NEGATIVE_ERRNO"): "what a message carries is positive",
    ("kmod/transport/ivshmem/doorbell.c", "JIFFIES_COMPARISON"): "the same jiffy or another",
    ("kmod/transport/shared/storm.c", "JIFFIES_COMPARISON"): "the same jiffy or another",
    ("kmod/transport/transports.h", "TRAILING_SEMICOLON"): "one declaration for each entry of the list",
    ("tests/ring/shim/kernel.h", "NEW_TYPEDEFS"): "the kernel's own names",
    ("tests/ring/shim/domain.h", "NEW_TYPEDEFS"): "the kernel's own names",
    ("tests/ring/shim/domain.h", "MACRO_ARG_PRECEDENCE"): "names, as in the kernel's own macros",
    ("tests/ring/shim/lists.h", "MACRO_ARG_PRECEDENCE"): "names, as in the kernel's own macros",
    ("tests/ring/shim/kernel.h", "ASSIGN_IN_IF"): "xa_for_each() is a loop in one statement",
}


def _checkpatch_program() -> Path:
    """Return checkpatch.pl of Debian's kernel source, kept in the cache with its word lists."""
    folder = paths.cache("checkpatch")
    wanted = ("checkpatch.pl", "spelling.txt", "const_structs.checkpatch")
    if all((folder / name).exists() for name in wanted):
        return folder / wanted[0]
    built = sorted(paths.cache("kernels").glob("debug_*/linux/scripts/checkpatch.pl"))
    with tempfile.TemporaryDirectory(dir=paths.cache("tmp").parent) as temporary:
        scripts = built[-1].parent if built else _unpack_scripts(Path(temporary), wanted)
        folder.mkdir(exist_ok=True)
        for name in wanted:
            shutil.copy(scripts / name, folder / name)
    return folder / wanted[0]


def _unpack_scripts(folder: Path, wanted: Sequence[str]) -> Path:
    package, version = kernelsource.package()
    with step(f"fetching checkpatch from {package} (130 MB, once)"):
        members = [f"*/scripts/{name}" for name in wanted]
        kernelsource.unpack(folder, f"{package}={version}", "--wildcards", *members)
    return folder / "scripts"


def checkpatch() -> list[str]:
    """The kernel's style, strictly, but for what is named above."""
    need("perl")
    program = _checkpatch_program()
    said = _checkpatch(program, source.c_files("kmod", "abi", "bench/module"), [*CHECKPATCH_IGNORED])
    said += _checkpatch(program, source.c_files("tests", "host"), [*CHECKPATCH_IGNORED, *CHECKPATCH_USER])
    found, used = [], set()
    for line in said:
        hit = re.match(r"(\S+?):\d+: \w+:(\w+): ", line)
        if hit and hit.groups() in CHECKPATCH_EXCEPT:
            used.add(hit.groups())
        else:
            found.append(line)
    stale = [place for place in CHECKPATCH_EXCEPT if place not in used]
    words = "is allowed, and not there any more"
    return found + [f"tests/lint/tools.py: {' '.join(place)} {words}" for place in stale]


def _checkpatch(program: Path, sources: list[Path], ignored: list[str]) -> list[str]:
    # Not in the checkout: it leaves a list of names (of the root's include/) where it runs.
    root = program.parent
    (root / "include").mkdir(exist_ok=True)
    words = ["perl", program, "--no-tree", f"--root={root}", "--terse", "--show-types", "--strict"]
    said = _said([*words, "--no-summary", "--ignore", ",".join(ignored), "-f", *sources], root)
    return [line.removeprefix(f"{REPO}/") for line in said]
