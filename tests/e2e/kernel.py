"""A guest whose kernel starts another one (kexec): to its machine nothing happens."""

from __future__ import annotations

import shutil
from pathlib import Path

from hallway_lab import image
from hallway_lab.vm import VM


def lay_out(share: Path, vm: VM) -> None:
    """Give the guest the kernel that it runs, to start it again."""
    assert vm.kernel.vmlinuz
    shutil.copy(vm.kernel.vmlinuz, share / "vmlinuz")
    shutil.copy(image.initramfs(vm.kernel), share / "initramfs")


def kexec(vm: VM) -> None:
    """Start it; `wait_boot` then waits for the guest to be back."""
    vm.spawn("exec python3 -B /hallway/e2e/kexec.py /hallway/vmlinuz /hallway/initramfs")
    vm.expect_boot()
