# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Our files, and C without its comments."""

from __future__ import annotations

import re
from pathlib import Path

from hallway_lab.paths import REPO
from hallway_lab.sh import run


def files(*folders: str) -> list[Path]:
    """Return the files of the repository below `folders` that are not ignored."""
    listed = run(["git", "ls-files", "-co", "--exclude-standard", "-z", "--", *folders], cwd=REPO)
    found = {REPO / name for name in listed.split("\0") if name}
    return sorted(path for path in found if path.is_file())


def c_files(*folders: str) -> list[Path]:
    """Return the C sources and headers below `folders`."""
    return [path for path in files(*folders) if path.suffix in (".c", ".h")]


def scripts(interpreter: str) -> list[Path]:
    """Return the files whose first line names `interpreter`, a pattern."""
    first = re.compile(rb"#!.*[/ ](" + interpreter.encode() + rb")\b")
    found = []
    for path in files():
        with path.open("rb") as handle:
            if first.match(handle.readline(200)):
                found.append(path)
    return found


def name(path: Path) -> str:
    """Return how a finding names the file."""
    return str(path.relative_to(REPO))


def code(path: Path) -> str:
    """Return C code with comments and strings blanked out, line by line as it was."""
    pattern = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
    text = path.read_text()
    return re.sub(pattern, lambda hit: re.sub(r"[^\n]", " ", hit[0]), text, flags=re.S)


def line_of(text: str, position: int) -> int:
    """Return the number of the line at `position`."""
    return text.count("\n", 0, position) + 1
