"""The packages for Debian, built once for the tests that install them."""

from __future__ import annotations

from hallway_lab import kernels, paths, provision
from hallway_lab.paths import REPO
from hallway_lab.sh import run

TOOLS = ("debhelper", "dh-dkms", "dkms", "libvirt0", "ansible-core", "python3-apt", "curl")
DEBS = REPO / "out/deb"
KERNEL = "6.1"  # which the guest's package is built for


def prepare(_kernel: str) -> None:
    """Build the packages, and fetch the headers for the module: see `needs`."""
    kernels.kernel(KERNEL)
    provision.need(*TOOLS)
    with paths.lock("host"):
        run(["make", "-s", "deb"], cwd=REPO)
