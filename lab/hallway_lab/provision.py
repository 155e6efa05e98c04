# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Distribution packages that the lab needs on the host.

Quick when nothing is missing, and plain about what it installs otherwise. It
never touches what is already there: no upgrade, no removal.
"""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

from . import isolate
from .sh import LabError, run, say, step

PACKAGES = {
    "the VMs": "qemu-system-x86 busybox-static iproute2 openssh-client kmod cpio",
    "their disks": "mmdebstrap e2fsprogs qemu-utils",
    "fetching kernels": "debian-archive-keyring xz-utils zstd dpkg ca-certificates",
    "building the module": "make gcc libc6-dev libelf-dev libssl-dev flex bison bc",
    "building the daemon's way to libvirt": "libvirt-dev pkg-config",
    "checks": "clang libclang-rt-14-dev sparse spin shellcheck perl python3-venv python3-yaml",
    "checks of the host's files": "systemd",
    "shells": "tmux",
    "the static program": "golang-go",
    "peers outside of the VMs": "curl iperf3",
}
# Debian 12's package cargo is too old for the daemon; these are the current
# release, which Debian 12 keeps for its browsers. They conflict with rustup, so
# a machine that has a cargo keeps it.
RUST = ("cargo-web", "rustfmt-web", "rust-web-clippy")


def installed() -> set[str]:
    """Return the names of all installed packages."""
    table = run(["dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Package}\n"])
    return {line.split()[-1] for line in table.splitlines() if line.startswith("ii")}


def missing() -> list[str]:
    """Return the packages that the lab needs and the host lacks."""
    have = installed()
    wanted = [name for names in PACKAGES.values() for name in names.split()]
    wanted += [] if shutil.which("cargo") else RUST
    return [name for name in wanted if name not in have]


def setup() -> None:
    """Install what is missing."""
    check_host()
    wanted = missing()
    if not wanted:
        say("all needed packages are installed")
        return
    install(*wanted)


def need(*packages: str) -> None:
    """Install those of these packages that are missing."""
    have = installed()
    if wanted := [name for name in packages if name not in have]:
        install(*wanted)


def install(*packages: str) -> None:
    """Install distribution packages; once dpkg works, an interruption waits for its end."""
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    words = ["apt-get", "install", "-q", "-y", "--no-install-recommends"]
    with step(f"installing {' '.join(packages)}"):
        run(["apt-get", "update", "-q"], env=env)
        run([*words, "--download-only", *packages], env=env)
        with isolate.put_off():
            run([*words, *packages], env=env)


def check_host() -> None:
    """Refuse a machine that the lab can not run on, saying why."""
    if os.geteuid() != 0:
        raise LabError("please run as root: the lab installs packages, makes networks and runs VMs")
    if platform.machine() != "x86_64":
        raise LabError(f"the lab needs an x86-64 machine, this is {platform.machine()}")
    release = Path("/etc/os-release").read_text()
    if "VERSION_CODENAME=bookworm" not in release:
        raise LabError("the lab needs Debian 12 (bookworm): it fetches kernels and QEMU that match it")
    if not Path("/dev/net/tun").exists():
        raise LabError("/dev/net/tun is missing: the VMs' network needs it (modprobe tun)")
