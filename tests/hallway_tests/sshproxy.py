# SPDX-License-Identifier: Apache-2.0 OR MIT
"""systemd's ssh-proxy, which Debian 12 does not have: the program and the file for ssh of a newer suite."""

from __future__ import annotations

from pathlib import Path

from hallway_lab import image, paths
from hallway_lab.aptbox import AptBox
from hallway_lab.sh import step

PACKAGES = ["systemd", "libsystemd-shared", "libc6"]
PROXY = "usr/lib/systemd/systemd-ssh-proxy"
CONFIG = "usr/lib/systemd/ssh_config.d/20-systemd-ssh-proxy.conf"
LIBRARIES = "usr/lib/x86_64-linux-gnu"


def _folder() -> Path:
    return paths.cache("systemd-ssh-proxy", "x").parent


def prepare(_: str) -> None:
    """Fetch it, once: see `needs`."""
    with paths.lock("systemd-ssh-proxy"):
        done = _folder() / "done"
        if done.exists():
            return
        with step("fetching systemd's ssh-proxy"):
            AptBox("unstable").unpack(_folder(), PACKAGES)
        done.touch()


def command(folder: Path, path: Path) -> list[str]:
    """Return the words by which ssh reaches a guest by the socket at that path, with systemd's own file."""
    place = _folder()
    libraries = f"{place / LIBRARIES}:{place / LIBRARIES}/systemd"
    loader = f"{place / LIBRARIES}/ld-linux-x86-64.so.2 --library-path {libraries}"
    config = folder / "ssh_config"
    config.write_text((place / CONFIG).read_text().replace(f"/{PROXY}", f"{loader} {place / PROXY}"))
    return ["ssh", "-F", str(config), "-i", str(image.ssh_key()), f"vsock-mux{path}"]
