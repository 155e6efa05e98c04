# SPDX-License-Identifier: Apache-2.0 OR MIT
"""All checks, one after the other, each with its verdict and its time.

A check returns its findings as lines; none means that it passed. A check that
can not do its work (a tool that can't be had, a build that broke) fails.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

from hallway_lab.sh import LabError

from . import commands, commits, compatibility, docs, generated, imports, module, mutants, rules, tools, words

Check = Callable[[], list[str]]

CHECKS: list[tuple[str, Check]] = [
    ("includes point one way", rules.includes),
    ("no circle of calls in a room of the module", rules.circles),
    ("obs/netlink.h is for main.c alone", rules.netlink),
    ("only switch/ assigns sk_prot", rules.sk_prot),
    ("no patched atomics on memory that VMs share", rules.atomics),
    ("transport/shared knows no region", rules.regions),
    ("a peer fills no log", rules.logs),
    ("imports: no circle in the lab", imports.lab),
    ("imports: between the host's crates", imports.crates),
    ("imports: between the daemon's modules", imports.modules),
    ("imports: no circle in a crate", imports.circles),
    ("imports: between the test suites", imports.suites),
    ("generated files are current", generated.current),
    ("mutants: each can be put in", mutants.fit),
    ("compatibility: rows are sound", compatibility.sound),
    ("docs/compatibility.md is current", compatibility.current),
    ("documents: links and paths", docs.links),
    ("documents: ARCHITECTURE.md names the rooms", docs.rooms),
    ("documents: each command line has its test", commands.listed),
    ("documents: commands and options are there", commands.taken),
    ("documents: make help", docs.targets),
    ("one version everywhere", docs.versions),
    ("README.md is short", docs.readme),
    ("documents: tables have short cells", words.tables),
    ("commits: subjects are short, and name the part", commits.subjects),
    ("words: comments and documents are plain", words.plain),
    ("words: none that the glossary retired", words.retired),
    ("words: doc comments of Rust have a subject", words.subjects),
    ("rustfmt", tools.rustfmt),
    ("clippy", tools.clippy),
    ("ruff check", tools.ruff_check),
    ("ruff format", tools.ruff_format),
    ("licenses: reuse lint", tools.reuse),
    ("licenses: each source names its own", tools.licensed),
    ("shellcheck", tools.shellcheck),
    ("checkpatch", tools.checkpatch),
    ("module on 6.1: W=1, sparse", lambda: module.sparse("6.1")),
    ("module on 6.12: W=1, sparse", lambda: module.sparse("6.12")),
    ("module on 6.1: calls leave by a jump", lambda: module.jumps("6.1")),
    ("module on 6.12: calls leave by a jump", lambda: module.jumps("6.12")),
    ("modules of benchmarks on 6.1: W=1", lambda: module.benchmarks("6.1")),
    ("module compiles with the newest headers", module.newest),
    ("module builds and installs by DKMS", module.dkms),
]


def main() -> int:
    """Run the checks that the command line asks for; return the exit code."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    passed = failed = 0
    for name, check in CHECKS:
        if word not in name:
            continue
        begin = time.monotonic()
        try:
            findings = check()
        except (LabError, OSError, subprocess.SubprocessError) as failure:
            findings = [str(failure)]
        except KeyboardInterrupt:
            return 130
        verdict = "FAILED" if findings else "ok"
        print(f"check: {name}: {verdict} ({time.monotonic() - begin:.1f} s)")
        for line in findings:
            print(f"  {line}")
        sys.stdout.flush()
        passed, failed = (passed, failed + 1) if findings else (passed + 1, failed)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0
