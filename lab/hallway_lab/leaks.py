# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Memory that a guest's debug kernel has lost."""

from __future__ import annotations

from .vm import VM


def leaks(vm: VM) -> str:
    """Return kmemleak's report on a guest's debug kernel, with `Config.kmemleak`: empty where nothing leaked.

    Memory that nothing points to counts only when it is some seconds old and
    two scans agree, since a pointer may be in a register during one of them.
    """
    report = "/sys/kernel/debug/kmemleak"
    scan = f"echo scan > {report}"
    script = f"sleep 5; {scan} && sleep 1; {scan} && cat {report}"
    return vm.run(script, timeout=300).out
