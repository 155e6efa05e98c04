# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A host of VMs that is itself a VM: systemd, libvirt and AppArmor of Debian, as users have them.

`libvirt.py` runs a libvirtd on the machine itself, as root and unconfined: its guests are as fast as
others. Here libvirt and AppArmor have Debian's configuration: systemd starts all, libvirtd and QEMU
have users and profiles of their own, and Hallway comes as a package. In exchange, the VMs of this
host are emulated twice.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from . import emulator
from .vm import VM, Config

NUMBER = 8
ANOTHER = 9  # of the host to which its VMs migrate
PATIENCE = 300  # seconds: of an emulated program with many libraries


class VirtHost(VM):
    """Such a host. It sees the folder `share` as /hallway."""

    def __init__(self, kernel: str, share: Path, number: int = NUMBER) -> None:
        config = Config(
            number=number,
            kernel=kernel,
            image="libvirt",
            share=share,
            cpus=2,
            memory_mib=2048,
            qemu=emulator.FAST,
            reboots=True,
            boot_timeout=PATIENCE,
            cmdline="lab.systemd",
        )
        super().__init__(config)
        self.name = "virthost" if number == NUMBER else f"virthost{number}"

    def call(self, *words: str | Path) -> str:
        """Run a program; return what it says."""
        return self.run(shlex.join(map(str, words)), timeout=PATIENCE).out

    def virsh(self, *words: str | Path) -> str:
        """Have virsh do something; return what it says."""
        return self.call("virsh", "--quiet", *words)

    def reboot(self) -> None:
        """Shut it down, and boot it again."""
        self.run("systemctl --no-block reboot")
        self.expect_boot()
        self.wait_boot()
