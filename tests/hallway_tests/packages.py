# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The packages, built once for the tests that install them, and roots to install them in."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hallway_lab import kernels, paths, provision
from hallway_lab.aptbox import AptBox
from hallway_lab.paths import REPO
from hallway_lab.sh import run

RPMS = REPO / "out/rpm"
RPM_TOOLS = ("rpm", "dkms", "libvirt0")
MODULES = ["hallway.ko", "hallway_vsock.ko"]
TOOLS = ("debhelper", "dh-dkms", "dkms", "libvirt0", "ansible-core", "python3-apt", "curl")
DEBS = REPO / "out/deb"
LIBVIRT = REPO / "out/libvirt"  # its package, unpacked
KERNEL = "6.1"  # which the guest's package is built for
ROLE = REPO / "packaging/ansible/hallway"
PLAY = (
    *("env", "HOME=/tmp", "LC_ALL=C.UTF-8"),
    *("ansible-playbook", "-i", "localhost,", "-c", "local", "/tmp/play.yml"),
)


def play(role: str, *, gather_facts: bool = True, **words: object) -> str:
    """Return what PLAY runs: Ansible's role, which is at that path, with these variables."""
    roles = [{"role": role, **words}]
    return json.dumps([{"hosts": "localhost", "gather_facts": gather_facts, "roles": roles}])


def prepare(_kernel: str) -> None:
    """Build the packages, and fetch the headers for the module: see `needs`."""
    kernels.kernel(KERNEL)
    provision.need(*TOOLS)
    # Without those of other versions.
    shutil.rmtree(DEBS, ignore_errors=True)
    with paths.lock("host"):
        run(["make", "-s", "deb"], cwd=REPO)


def prepare_rpm(_kernel: str) -> None:
    """Build those for distributions with rpm."""
    kernels.kernel(KERNEL)
    provision.need(*RPM_TOOLS)
    shutil.rmtree(RPMS, ignore_errors=True)
    with paths.lock("host"):
        run(["make", "-s", "rpm"], cwd=REPO)


def prepare_libvirt_units(_kernel: str) -> None:
    """Fetch libvirt's units for systemd; nothing is installed."""
    with paths.lock("libvirt-units"):
        if not (libvirt_units() / "libvirtd.socket").exists():
            AptBox("stable").unpack(LIBVIRT, ["libvirt-daemon-system"])


def libvirt_units() -> Path:
    """Return the folder of libvirt's units."""
    return LIBVIRT / "lib/systemd/system"


class Root:
    """A root that is like this machine's, and changes alone."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, *words: str | Path) -> str:
        """Run a program in it."""
        env = {"DEBIAN_FRONTEND": "noninteractive", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        return run(["chroot", self.path, *words], env=env)

    def install(self, package: str) -> str:
        """Have apt install a package, of a file."""
        (deb,) = DEBS.glob(f"{package}_*.deb")
        (self.path / "tmp" / deb.name).write_bytes(deb.read_bytes())
        return self.run("apt-get", "install", "-y", "--no-install-recommends", f"/tmp/{deb.name}")


@contextlib.contextmanager
def root() -> Iterator[Root]:
    """Have such a root for the length of the block."""
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        places = {name: Path(scratch, name) for name in ("upper", "work", "root")}
        for place in places.values():
            place.mkdir()
        merged = places["root"]
        options = f"lowerdir=/,upperdir={places['upper']},workdir={places['work']}"
        subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", merged], check=True)
        stack.callback(subprocess.run, ["umount", "-R", merged], check=True)
        for name in ("proc", "sys", "dev"):
            subprocess.run(["mount", "--rbind", f"/{name}", merged / name], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", merged / "tmp"], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", merged / "run"], check=True)
        yield Root(merged)


def headers(root: Root) -> Path:
    """Give a root the headers of the lab's kernel. Returns the folder of its modules."""
    kernel = kernels.kernel(KERNEL)
    folder = root.path / "lib/modules" / kernel.version
    folder.mkdir(parents=True)
    # The headers' own links lead into the lab's cache, which is below another root here.
    cache = root.path / str(paths.cache("kernels", "x").parent).lstrip("/")
    cache.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "--bind", paths.cache("kernels", "x").parent, cache], check=True)
    (folder / "build").symlink_to(kernel.build_dir)
    for name in ("modules.order", "modules.builtin"):
        (folder / name).write_text("")
    return folder


def built(folder: Path) -> list[str]:
    """Return the names of the modules that DKMS has built for a kernel."""
    return sorted(path.name for path in folder.rglob("*.ko*"))
