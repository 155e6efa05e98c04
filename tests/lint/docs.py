# SPDX-License-Identifier: Apache-2.0 OR MIT
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
ARCHITECTURE = REPO / "ARCHITECTURE.md"


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


# A file of C in a text, by itself or with its folder.
C_FILE = re.compile(r"(?<![\w./-])[\w./-]+\.[ch]\b")


def rooms() -> list[str]:
    """ARCHITECTURE.md names each folder at the top, each crate, and each folder and C file of kmod/."""
    text = ARCHITECTURE.read_text()
    tracked = [path.relative_to(REPO) for path in source.files()]
    kmod = [path for path in tracked if path.parts[0] == "kmod"]
    found = []
    folders = {path.parts[0] for path in tracked if len(path.parts) > 1}
    folders |= {
        f"host/{path.parts[1]}" for path in tracked if path.parts[0] == "host" and len(path.parts) > 2
    }
    folders |= {str(path.parent) for path in kmod}
    found += [f"ARCHITECTURE.md: has no {one}/" for one in sorted(folders) if f"`{one}/" not in text]
    crates = {path.parts[2] for path in tracked if path.parts[:2] == ("host", "crates")}
    rows = {
        name
        for line in text.splitlines()
        if line.startswith("| `")
        for name in CODE.findall(line.split("|")[1])
    }
    found += [f"ARCHITECTURE.md: has no crate {one}" for one in sorted(crates - rows)]
    gone = {name for name in rows if "/" not in name} - crates
    found += [f"ARCHITECTURE.md: there is no crate {one}" for one in sorted(gone)]
    # A row or a paragraph that begins with a folder is about the files in it.
    there: dict[str, set[str]] = {str(folder): set() for folder in {path.parent for path in kmod}}
    for block in re.split(r"\n\n|\n(?=\|)", text):
        if hit := re.match(r"(?:\| |In )`(kmod\b[^`]*)/`", block):
            there[hit[1]].update(C_FILE.findall(" ".join(CODE.findall(block.replace("\n", " ")))))
    for folder, named in sorted(there.items()):
        files = {path.name for path in kmod if str(path.parent) == folder}
        missing = {name for name in files if name.endswith(".c")} - named
        found += [f"ARCHITECTURE.md: has no {folder}/{name}" for name in sorted(missing)]
        found += [f"ARCHITECTURE.md: there is no {folder}/{name}" for name in sorted(named - files)]
    for name in sorted({name for name in C_FILE.findall(text) if "/" in name}):
        if not any((REPO / folder / name).exists() for folder in ("", "kmod", "abi")):
            found.append(f"ARCHITECTURE.md: there is no {name}")
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
