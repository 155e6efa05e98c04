# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A guest whose kernel starts another one (kexec); its QEMU notices nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

from hallway_lab import image
from hallway_lab.vm import VM


def lay_out(share: Path, vm: VM) -> None:
    """Copy the kernel that the guest runs to its shared folder."""
    assert vm.kernel.vmlinuz
    shutil.copy(vm.kernel.vmlinuz, share / "vmlinuz")
    shutil.copy(image.initramfs(vm.kernel), share / "initramfs")


def kexec(vm: VM) -> None:
    """Start that kernel; `wait_boot` then waits for the guest."""
    vm.spawn("exec python3 -B /hallway/guest/kexec.py /hallway/vmlinuz /hallway/initramfs")
    vm.expect_boot()
