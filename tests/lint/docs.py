"""What the documents name is there: files, targets of make, tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from hallway_lab.paths import REPO

from . import source

LINK = re.compile(r"\[[^]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
CODE = re.compile(r"`([^`\n]+)`")
MADE = ("out/",)  # exists once something ran


def _lines() -> Iterator[tuple[Path, int, str]]:
    for path in source.files():
        if path.suffix == ".md":
            for number, line in enumerate(path.read_text().splitlines(), 1):
                yield path, number, line


def _commands(line: str) -> list[str]:
    """Code in a line of prose, or a line of a code block."""
    return CODE.findall(line) or ([line.partition(" # ")[0]] if re.match(r"(make|[a-z]+/run) ", line) else [])


def links() -> list[str]:
    """Links and paths lead to files of the repository."""
    top = {path.relative_to(REPO).parts[0] for path in source.files() if path.parent != REPO}
    found = []
    for path, number, line in _lines():
        named = [path.parent / link for link in LINK.findall(line) if not re.match(r"\w+:", link)]
        for code in _commands(line):
            word = code.split()[0]
            if word.split("/")[0] in top and "/" in word and not word.startswith(MADE):
                named.append(REPO / word)
        missing = [one for one in named if not any(one.parent.glob(one.name or "."))]
        found += [f"{source.name(path)}:{number}: there is no {one}" for one in missing]
    return found


def commands() -> list[str]:
    """Targets of make exist, and so do the tests that `-k` names."""
    targets = set(re.findall(r"^([a-z-]+):", (REPO / "Makefile").read_text(), re.M))
    tests = "\n".join(path.read_text() for path in source.files("tests") if path.suffix in (".py", ".c"))
    found = []
    for path, number, line in _lines():
        place = f"{source.name(path)}:{number}"
        for code in _commands(line):
            target = re.match(r"make ([a-z-]+)$", code.strip())
            if target and target[1] not in targets:
                found.append(f"{place}: make has no target {target[1]}")
            test = re.match(r"(?:tests/run .*)?-k (\w+)", code)
            if test and not re.search(rf"\bdef \w*{test[1]}", tests):
                found.append(f"{place}: no test is called {test[1]}")
    return found


def targets() -> list[str]:
    """`make help` lists each target."""
    text = (REPO / "Makefile").read_text()
    silent = set(re.findall(r"^([a-z-]+):(?!.*## )", text, re.M))
    return [f"Makefile: `make help` is silent about {name}" for name in sorted(silent)]
