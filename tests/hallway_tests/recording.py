# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a recording of the demo needs, fetched and built while there is a network."""

from __future__ import annotations

from hallway_lab import programs, provision, results, topology
from hallway_lab.prepare import guest_steps, host_step, module_step, run_steps

KERNEL = "6.1"  # of the demo


def prepare(_kernel: str) -> None:
    """Have asciinema, and what the demo prepares: see `needs`."""
    provision.need("asciinema")
    results.prepare()
    programs.unpack_ncat(topology.share_folder(KERNEL))
    run_steps([*guest_steps(KERNEL), module_step(KERNEL), host_step()])
    programs.build_rawstream()
