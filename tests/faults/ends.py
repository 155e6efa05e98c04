# SPDX-License-Identifier: Apache-2.0 OR MIT
"""How guests end."""

from __future__ import annotations

from hallway_lab.vm import VM


def panic(vm: VM) -> None:
    """Have a guest's kernel panic; its QEMU ends with it."""
    vm.spawn("echo c > /proc/sysrq-trigger")


def power_off(vm: VM) -> None:
    """Have a guest's kernel shut its devices down, and its machine."""
    vm.spawn("echo o > /proc/sysrq-trigger")
