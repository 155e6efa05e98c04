# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Tunnels between VMs that are measured: their module, and CIDs."""

from __future__ import annotations

import json

from .vm import VM


def load(vm: VM) -> None:
    """Load the module, after the core of AF_VSOCK."""
    vm.run("modprobe vsock && insmod /hallway/hallway_vsock.ko")


def cid(vm: VM) -> int:
    """Return the CID by which other VMs reach this one."""
    members = json.loads(vm.run("hallway status --guest --json").out)["members"]
    return next(one["cid"] for one in members if one["self"])
