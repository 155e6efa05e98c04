# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Python programs and libraries of fixed versions, in the cache.

Each set of requirements is a virtual environment of its own, made once.
"""

from __future__ import annotations

import shutil
import site
import sys
from pathlib import Path

from . import paths
from .sh import LabError, run, step


def venv(name: str, *requirements: str) -> Path:
    """Return the folder of a virtual environment with these packages."""
    folder = paths.cache("venv", f"{name}-{paths.key(sys.version, *requirements)}")
    with paths.lock(f"venv-{name}"):
        if not (folder / ".complete").exists():
            with step(f"fetching {', '.join(requirements)}"):
                _make(folder, requirements)
    return folder


def _make(folder: Path, requirements: tuple[str, ...]) -> None:
    for old in [folder, *folder.parent.glob(f"{folder.name.rpartition('-')[0]}-*")]:
        shutil.rmtree(old, ignore_errors=True)
    try:
        run([sys.executable, "-m", "venv", folder])
    except LabError as failure:
        raise LabError(f"{failure}\nDebian's package python3-venv is needed: run `./lab/run setup`") from None
    run([folder / "bin/pip", "-q", "--disable-pip-version-check", "install", *requirements])
    (folder / ".complete").touch()


def use(name: str, *requirements: str) -> None:
    """Let this process import these packages, from a virtual environment with them."""
    site.addsitedir(str(next(venv(name, *requirements).glob("lib/python*/site-packages"))))
