"""What the documents name is there: files, and what `make help` lists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from hallway_lab.paths import REPO

from . import source

LINK = re.compile(r"\[[^]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
CODE = re.compile(r"`([^`\n]+)`")
README_LINES = 130
MADE = ("out/",)  # exists once something ran
# Where the version stands, and after what.
VERSIONS = {
    "CHANGELOG.md": r"^## (\S+)",
    "debian/changelog": r"^hallway \((\S+)\)",
    "docs/install.md": r"^(?:hallwayd|module hallway) ([0-9.]+)",
    "host/Cargo.toml": r'^version = "(.*)"',
    "host/python/pyproject.toml": r'^version = "(.*)"',
    "kmod/dkms.conf": r'^PACKAGE_VERSION="(.*)"',
    "kmod/main.c": r'^MODULE_VERSION\("(.*)"\)',
    "kmod/tunnel/main.c": r'^MODULE_VERSION\("(.*)"\)',
    "kmod/tunnel/unsupported.c": r'^MODULE_VERSION\("(.*)"\)',
}


def lines() -> Iterator[tuple[Path, int, str]]:
    """Yield each line of the documents, with its place."""
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
    for path, number, line in lines():
        named = [path.parent / link for link in LINK.findall(line) if not re.match(r"\w+:", link)]
        for code in _commands(line):
            word = code.split()[0]
            if word.split("/")[0] in top and "/" in word and not word.startswith(MADE):
                named.append(REPO / word)
        missing = [one for one in named if not any(one.parent.glob(one.name or "."))]
        found += [f"{source.name(path)}:{number}: there is no {one}" for one in missing]
    return found


def targets() -> list[str]:
    """`make help` lists each target."""
    text = (REPO / "Makefile").read_text()
    silent = set(re.findall(r"^([a-z-]+):(?!.*## )", text, re.M))
    return [f"Makefile: `make help` is silent about {name}" for name in sorted(silent)]


def versions() -> list[str]:
    """All places say the same version; the newest one of the changelog counts."""
    found = {name: re.findall(text, (REPO / name).read_text(), re.M) for name, text in VERSIONS.items()}
    release = found["CHANGELOG.md"][0]
    found |= {name: found[name][:1] for name in ("CHANGELOG.md", "debian/changelog")}
    return [
        f"{name} says version {', '.join(said) or 'nothing'}, CHANGELOG.md {release}"
        for name, said in found.items()
        if set(said) != {release}
    ]


def readme() -> list[str]:
    """README.md can be read at one go."""
    count = len((REPO / "README.md").read_text().splitlines())
    return [f"README.md has {count} lines, not {README_LINES}"] if count > README_LINES else []
