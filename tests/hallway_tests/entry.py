# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`tests/run`: what happens before pytest runs the tests.

pytest is asked first which tests it would run. What they need is fetched and
built while the machine's network is there; then pytest runs them, and each of
its workers enters a network of its own (site.py). All of it is in one PID
namespace: when the run ends, for any reason, so does every guest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hallway_lab import isolate, paths
from hallway_lab.sh import LabError, guarded
from hallway_lab.venv import venv

from . import needs

TESTS = paths.REPO / "tests"
SEARCH = os.pathsep.join([str(TESTS), str(TESTS.parent / "lab")])  # where pytest finds what is ours
# Options whose value names a file: relative to the folder that the person is in.
FILES = ("--junitxml", "--junit-xml", "--report-log", "--log-file", "--basetemp")
GRACE = 30  # seconds that pytest may take to tell what became of a run that is interrupted


def main() -> int:
    """Run pytest with the words of the command line; return its exit code."""
    isolate.GRACE = GRACE
    return guarded("tests", lambda: _run(located(sys.argv[1:], Path.cwd())))


def _run(words: list[str]) -> int:
    isolate.enter()
    python = interpreter()
    os.chdir(TESTS)
    os.environ["PYTHONPYCACHEPREFIX"] = str(paths.out("pycache"))
    os.environ["PYTHONPATH"] = SEARCH
    pytest = [str(python), "-m", "pytest", "-o", f"cache_dir={paths.out('tests', 'cache')}", *words]
    plan = Path(os.environ["TMPDIR"], "plan.json")
    asked = subprocess.run([*pytest, "-n0", f"--plan={plan}"], capture_output=True, text=True, check=False)
    if not plan.exists():  # help, a list of tests, a mistake: there is nothing to run
        print(asked.stdout, end="")
        print(asked.stderr, end="", file=sys.stderr)
        return asked.returncode
    chosen = json.loads(plan.read_text())
    try:
        needs.prepare(chosen["needs"])
    except LabError as failure:
        raise LabError(
            f"{failure}\nNOT RUN: {len(chosen['groups'])} tests: something that some of them need is missing"
        ) from None
    os.environ["HALLWAY_TEST_PLAN"] = str(plan)
    sys.stdout.flush()
    os.execv(python, pytest)


def interpreter() -> Path:
    """Return the Python that has pytest and its plugins; they are fetched if need be."""
    return venv("pytest", *(TESTS / "requirements.txt").read_text().split()) / "bin/python"


def located(words: Sequence[str], folder: Path) -> list[str]:
    """Return pytest's words with files and folders where this folder's person means them to be."""
    found: list[str] = []
    for word in words:
        before = found[-1] if found else ""
        option, equals, value = word.partition("=")
        if option in FILES and equals:
            found.append(f"{option}={folder / value}")
        elif before in FILES:
            found.append(str(folder / word))
        else:
            found.append(_place(word, folder) if not before.startswith("-") or "/" in word else word)
    return found


def _place(word: str, folder: Path) -> str:
    """Tests are named from tests/, or from the folder that the person is in."""
    path, colons, rest = word.partition("::")
    if word.startswith("-") or (TESTS / path).exists() or not (folder / path).exists():
        return word
    return f"{folder / path}{colons}{rest}"
