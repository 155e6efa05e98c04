# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs Rust's test programs: tokio's.

    libtest.py PROGRAM...

Each test has a process of its own: nothing is left of the test before.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import record

SAID = re.compile(r"^test \S+.* \.\.\. (\w+)", re.M)
OUTCOMES = {"ok": record.PASS, "FAILED": record.FAIL, "ignored": record.SKIP}


def worker(book: record.Book, programs: list[str]) -> int:
    """Run each program's tests."""
    for program in programs:
        listed = _said(program, "--list", "--format", "terse")
        for name in re.findall(r"^(\S+): test$", listed, re.M):
            test = f"{Path(program).name}::{name}"
            if book.wants(test):
                book.begin(test)
                said = _said(program, "--exact", name, "--test-threads=1")
                words = SAID.findall(said)
                book.end(test, OUTCOMES.get(words[-1], record.FAIL) if words else record.DIED, said)
    return 0


def _said(*words: str) -> str:
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(words, **both, text=True, errors="replace").stdout


if __name__ == "__main__":
    record.main(worker)
