# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs commands, each of which is a test, or several if it speaks TAP.

    commands.py FILE

FILE holds a list of JSON: a command's name, the command, and whether it speaks
TAP. A command that ends with 4, as the kernel's do, or with 77, as automake's,
was skipped.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import record

SKIPPED = (4, 77)
# "ok 3 tls.12_aes_gcm.send", with SKIP behind it if it was skipped.
TAP = re.compile(r"^(ok|not ok) \d+ (?:- )?(\S+)(?: *# *(SKIP|XFAIL))?")


def worker(book: record.Book, files: list[str]) -> int:
    """Run each file's commands."""
    for file in files:
        for one in json.loads(Path(file).read_text()):
            part = f"{one['name']}::"
            if book.wants(one["name"]) or (one["tap"] and book.wants_part(part)):
                book.begin(one["name"])
                code, said = _run(one["command"], book, one["name"] if one["tap"] else "")
                outcome = record.PASS if code == 0 else record.SKIP if code in SKIPPED else record.FAIL
                book.end(one["name"], outcome, said)
    return 0


def _run(command: str, book: record.Book, tap: str) -> tuple[int, str]:
    """Run a command; write down its parts as they end."""
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    child = subprocess.Popen(["bash", "-c", command], **both, text=True, errors="replace")
    said, part = [], []
    for line in child.stdout:
        said.append(line)
        part.append(line)
        if tap and (hit := TAP.match(line)):
            ok, test, note = hit.groups()
            outcome = record.SKIP if note == "SKIP" else record.PASS if ok == "ok" else record.FAIL
            book.end(f"{tap}::{test}", outcome, "" if outcome == record.PASS else "".join(part))
            book.begin(tap)
            part = []
    return child.wait(), "".join(said)


if __name__ == "__main__":
    record.main(worker)
