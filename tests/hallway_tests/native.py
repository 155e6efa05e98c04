# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What tests within a kernel of User Mode Linux need, fetched and built while there is a network."""

from __future__ import annotations

from hallway_lab import kernels
from hallway_lab.prepare import Step, host_step, module_step, run_steps

KERNEL = "uml"


def prepare(_kernel: str) -> None:
    """Have the kernel, the module and the CLI: see `needs`."""
    run_steps([Step(f"kernel {KERNEL}", lambda: kernels.kernel(KERNEL)), module_step(KERNEL), host_step()])
