# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Packages fetched and unpacked, never installed.

Kernels, their headers and a newer QEMU come from suites that the machine may
not have enabled (backports, unstable). A private apt configuration in the
cache knows them; the mirror is whatever the machine itself already uses, so
that proxies and local mirrors keep working. Versions are discovered through
meta-packages and never written down here.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import paths
from .sh import LabError, run, step

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
STALE_AFTER = 7 * 24 * 3600
SUITES = {
    "stable": ("bookworm", "bookworm-updates", "bookworm-security"),
    "backports": ("bookworm", "bookworm-updates", "bookworm-security", "bookworm-backports"),
    "unstable": ("sid",),
}


@dataclass(frozen=True)
class Source:
    """One `deb` entry of the machine's apt configuration."""

    uri: str
    suite: str


def machine_sources() -> list[Source]:
    """Read the machine's own apt sources, in both of apt's formats."""
    root = Path("/etc/apt")
    found: list[Source] = []
    lists = [root / "sources.list", *sorted(root.glob("sources.list.d/*.list"))]
    for path in (p for p in lists if p.exists()):
        for line in path.read_text().splitlines():
            hit = re.match(r"\s*deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+(\S+)", line)
            if hit:
                found.append(Source(hit[1].rstrip("/"), hit[2]))
    for path in sorted(root.glob("sources.list.d/*.sources")):
        found += _deb822(path.read_text())
    return found


def _deb822(text: str) -> list[Source]:
    found = []
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for stanza in re.split(r"\n\s*\n", plain):
        unfolded = re.sub(r"\n[ \t]+", " ", stanza)
        field = {
            name.lower(): value.split()
            for name, value in re.findall(r"^([\w-]+):[ \t]*(.*)$", unfolded, re.M)
        }
        if "deb" not in field.get("types", []) or field.get("enabled") == ["no"]:
            continue
        found += [
            Source(uri.rstrip("/"), suite)
            for uri in field.get("uris", [])
            for suite in field.get("suites", [])
        ]
    return found


def mirrors() -> tuple[str, str | None]:
    """Return the URIs of the Debian archive and of its security archive."""
    sources = machine_sources()
    main = [s.uri for s in sources if re.fullmatch(r"(bookworm|stable)", s.suite)]
    security = [s.uri for s in sources if re.fullmatch(r"(bookworm|stable)-security", s.suite)]
    if not main:
        raise LabError("no Debian 12 (bookworm) source in /etc/apt: the lab needs one to fetch from")
    return main[0], security[0] if security else None


def source_lines(box: str) -> list[str]:
    """Return one-line apt sources for the suites of `box`."""
    main, security = mirrors()
    lines = []
    for suite in SUITES[box]:
        uri = security if suite.endswith("-security") else main
        if uri:
            lines.append(f"deb [signed-by={KEYRING}] {uri} {suite} main")
    return lines


class AptBox:
    """A private apt that sees the suites of one box and installs nothing.

    Several processes may use one box: apt refuses a folder that another apt has
    locked instead of waiting, so every method holds the lock of its box.
    """

    def __init__(self, box: str) -> None:
        if box not in SUITES:
            raise LabError(f"no such apt box: {box}")
        self.box = box
        self.root = paths.cache("apt", box, "apt.conf").parent
        with self._locked():
            self._configure()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with paths.lock(f"apt-{self.box}"):
            yield

    def _configure(self) -> None:
        for folder in ("lists/partial", "archives/partial", "etc/parts"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        (self.root / "status").touch()
        sources = "\n".join(source_lines(self.box)) + "\n"
        listing = self.root / "etc/sources.list"
        if not listing.exists() or listing.read_text() != sources:
            listing.write_text(sources)
            (self.root / "updated").unlink(missing_ok=True)
        (self.root / "apt.conf").write_text(
            f'Dir::Etc::SourceList "{listing}";\n'
            f'Dir::Etc::SourceParts "{self.root}/etc/parts";\n'
            f'Dir::Etc::Preferences "/dev/null";\n'
            f'Dir::Etc::PreferencesParts "{self.root}/etc/parts";\n'
            f'Dir::State::Lists "{self.root}/lists";\n'
            f'Dir::State::status "{self.root}/status";\n'
            f'Dir::Cache "{self.root}";\n'
            'APT::Architecture "amd64";\n'
            'APT::Sandbox::User "root";\n'
            'Acquire::Languages "none";\n'
            'Acquire::Retries "3";\n'
        )

    def _apt(self, tool: str, *words: str, cwd: Path | None = None) -> str:
        return run([tool, *words], cwd=cwd, env={"APT_CONFIG": str(self.root / "apt.conf")})

    def update(self) -> None:
        """Fetch the package lists unless they are recent."""
        with self._locked():
            self._update()

    def _update(self) -> None:
        stamp = self.root / "updated"
        if stamp.exists() and time.time() - stamp.stat().st_mtime < STALE_AFTER:
            return
        with step(f"fetching package lists ({self.box})"):
            # Without this word a list that could not be fetched is a warning, and exit code 0.
            self._apt("apt-get", "update", "-q", "--error-on=any")
            stamp.touch()

    def candidate(self, package: str, suite: str | None = None) -> str:
        """Return the newest version of `package`, of one suite if given."""
        with self._locked():
            self._update()
            table = self._apt("apt-cache", "madison", package)
        for line in table.splitlines():
            cells = [cell.strip() for cell in line.split("|")]
            offered = len(cells) == 3 and "Packages" in cells[2]
            if offered and (suite is None or f" {suite}/" in cells[2]):
                return cells[1]
        raise LabError(f"package {package} not found in {suite or ', '.join(SUITES[self.box])}")

    def depends(self, package: str, version: str, pattern: str) -> list[str]:
        """Return the dependencies of a package whose names match `pattern`."""
        with self._locked():
            record = self._apt("apt-cache", "show", f"{package}={version}")
        line = re.search(r"^Depends: (.*)$", record, re.M)
        names = re.findall(r"(?:^|, |\| )([a-z0-9][a-z0-9.+-]+)", line[1] if line else "")
        return [name for name in names if re.fullmatch(pattern, name)]

    def unpack(self, target: Path, packages: list[str]) -> None:
        """Download `packages` (name or name=version) and unpack them to `target`."""
        with self._locked():
            self._update()
            pool = self.root / "pool"
            shutil.rmtree(pool, ignore_errors=True)
            pool.mkdir()
            self._apt("apt-get", "download", "-q", *packages, cwd=pool)
            target.mkdir(parents=True, exist_ok=True)
            for deb in sorted(pool.glob("*.deb")):
                run(["dpkg", "-x", deb, target])
            shutil.rmtree(pool)
