# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What no carrier can beat: copies, wake-ups, and a word that CPUs share; see `programs/bounds.c`."""

from __future__ import annotations

import json

from hallway_lab import paths
from hallway_lab.programs import Run
from hallway_lab.sh import run
from hallway_lab.vm import VM

PROGRAM = "bounds"
BOUND = "bound"  # the name of such figures


def copies(vm: VM, size: int, seconds: int) -> Run:
    """Have a program of the VM copy each byte as often as one does that passes through a ring: MB/s."""
    return Run(_read(vm.run(f"/hallway/{PROGRAM} copy {size} {seconds}", timeout=seconds + 30).out))


def wakes_within(vm: VM, seconds: int) -> Run:
    """Have two threads of the VM wake each other: ns of a round trip."""
    return Run(_read(vm.run(f"/hallway/{PROGRAM} wake {seconds}", timeout=seconds + 30).out))


def trips_on_host(how: str, seconds: int) -> Run:
    """Have two threads of the host wake each other, or spin on a word ("line"): µs of a round trip."""
    words = [paths.out("bench", PROGRAM), how, str(seconds)]
    return Run(_read(run(words, timeout=seconds + 30)) / 1000)


def _read(said: str) -> float:
    found: float = json.loads(said)["value"]
    return found
