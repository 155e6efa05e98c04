# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Subjects of commits: `git log --oneline` is read by people."""

from __future__ import annotations

import re
import subprocess

from hallway_lab.paths import REPO

LONGEST = 72  # characters
LAST = 20  # commits that are looked at where nothing says which are new
# "daemon: Read the configuration again", "hallway release, hallway resume: Keep ..."
SUBJECT = re.compile(r"\w[\w./, -]*: \S|Release \d")


def _git(*words: str) -> list[str]:
    """Return the lines of a git command; none where it fails, as without history."""
    done = subprocess.run(["git", *words], cwd=REPO, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def subjects() -> list[str]:
    """A new commit's subject is short, and begins with the part that changes."""
    if _git("rev-parse", "--show-prefix") != [""]:
        return []  # the history is that of a folder around this one, or there is none
    new = _git("rev-parse", "--verify", "-q", "origin/main")
    chosen = ["origin/main..HEAD"] if new else [f"-{LAST}"]
    found = []
    for line in _git("log", "--no-merges", "--format=%h %s", *chosen):
        commit, _, subject = line.partition(" ")
        if len(subject) > LONGEST:
            found.append(f"{commit}: {len(subject)} characters, not {LONGEST}: {subject}")
        if not SUBJECT.match(subject):
            found.append(f"{commit}: does not begin with the part that changes: {subject}")
    return found
