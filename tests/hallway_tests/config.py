# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Parts of hallwayd's configuration for VMs of a test."""

from __future__ import annotations

import json

from hallway_lab.vm import VM

GROUP = """
[[group]]
name = "both"
isolation = "shared"
size = "64M"
"""
VM_WORDS = """
[[vm]]
name = "{vm.name}"
uuid = "{vm.uuid}"
monitor = "{vm.config.monitor}"
groups = {groups}
{more}
"""


def describe(vm: VM, *groups: str, more: str = "") -> str:
    """Return the [[vm]] of a VM in these groups, without any in GROUP, with `more` at its end."""
    return VM_WORDS.format(vm=vm, groups=json.dumps(groups or ("both",)), more=more)
