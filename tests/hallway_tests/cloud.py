# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A guest as clouds have them, which gets Hallway by packaging/cloud-init.yaml at its first boot."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from hallway_lab import kernels, paths, topology
from hallway_lab.emulator import FAST
from hallway_lab.sh import run
from hallway_lab.vm import VM

from . import pair
from .packages import DEBS
from .pair import Pair

NUMBER = 4
SEED = "cidata"  # the label by which cloud-init finds its disk
BUILT = 1500  # seconds: a guest's emulated compiler is slow

# What a cloud adds. Here the root disk cannot grow, and there is no archive but an empty one.
VENDOR_DATA = """#cloud-config
resize_rootfs: false
growpart: {mode: "off"}
locale: false
ssh_deletekeys: false
apt:
  sources_list: "deb [trusted=yes] file:/hallway ./"
"""

GROUP = """
[[group]]
name = "default"
isolation = "shared"
size = "64M"
"""


def _user_data(deb: Path, build_dir: Path) -> str:
    """Return packaging/cloud-init.yaml for this deb, which the guest reads from /hallway.

    No server has headers for the lab's kernel: they come from there, too.
    """
    text = (paths.REPO / "packaging/cloud-init.yaml").read_text()
    link = f'ln -s {build_dir} "/lib/modules/$(uname -r)/build"'
    for line, here in (
        ('apt-get install -y "linux-headers-$(uname -r)"', f"tar -C / -xf /hallway/headers.tar && {link}"),
        ("http://SERVER/", "file:///hallway/"),
        ("SHA256", hashlib.sha256(deb.read_bytes()).hexdigest()),
    ):
        assert line in text, f"cloud-init.yaml: no {line}"
        text = text.replace(line, here)
    return text


def lay_out(kernel: str) -> tuple[Path, Path]:
    """Lay out what the guest sees as /hallway, and the folder of cloud-init's disk."""
    chosen = kernels.kernel(kernel)
    share, seed = (paths.out("cloud", kernel, name, "x").parent for name in ("share", "seed"))
    for folder in (share, seed):
        shutil.rmtree(folder)
        folder.mkdir()
    (deb,) = DEBS.glob("hallway-guest_*.deb")
    shutil.copy(deb, share / "hallway-guest.deb")
    # The whole folder of this kernel's headers: they lead to each other.
    tree = next(parent for parent in chosen.build_dir.parents if parent.parent == paths.cache("kernels"))
    headers = Path(str(tree).lstrip("/"), "usr")
    run(["tar", "-C", "/", "-cf", share / "headers.tar", headers])
    (seed / "user-data").write_text(_user_data(deb, chosen.build_dir))
    (seed / "meta-data").write_text("instance-id: first\n")
    (seed / "vendor-data").write_text(VENDOR_DATA)
    (share / "Packages").write_text("")
    return share, seed


@contextlib.contextmanager
def booted(kernel: str, share: Path, logs: Path, slow: float) -> Iterator[Pair]:
    """Boot a VM of the lab and this guest, until its first boot is over, for the length of the block."""
    own, seed = lay_out(kernel)
    shutil.copytree(share, own, dirs_exist_ok=True)
    monitors = [Path(os.environ["TMPDIR"]) / f"cloud{number}.qmp" for number in (1, NUMBER)]
    config = Path(os.environ["TMPDIR"]) / "cloud.toml"
    site = topology.Site(topology.Daemon(config=config))
    extra = ["-drive", f"if=none,id=seed,driver=vvfat,dir={seed},label={SEED},read-only=on"]
    extra += ["-device", "virtio-blk-pci,drive=seed"]
    first = site.vm(1, kernel, share=share, qemu=FAST, boot_timeout=120 * slow, monitor=monitors[0])
    guest = site.vm(
        NUMBER,
        kernel,
        share=own,
        qemu=FAST,
        image="cloud",
        cpus=2,
        reboots=True,
        cmdline="lab.systemd",
        boot_timeout=300 * slow,
        monitor=monitors[1],
        extra=extra,
    )
    entries = [topology.describe_vm(vm, "default") for vm in (first, guest)]
    config.write_text(GROUP + "".join(entries))
    with pair.running(site, [first, guest], logs):
        guest.run("cloud-init status --wait", timeout=BUILT * slow, check=False)
        yield Pair(site, first, guest, kernel, slow, logs, share)


def reboot(vm: VM) -> None:
    """Shut a guest down, and boot it again."""
    vm.run("systemctl --no-block reboot")
    vm.expect_boot()
    vm.wait_boot()
