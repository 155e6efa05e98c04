# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What no carrier can beat: copies, wake-ups, and a word that CPUs share; see `programs/bounds.c`.

And doorbells: see `module/doorbell.c`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from hallway_lab import kernels, modbuild, paths
from hallway_lab.measure import Stand
from hallway_lab.programs import Run
from hallway_lab.sh import run
from hallway_lab.vm import VM

PROGRAM = "bounds"
BOUND = "bound"  # the name of such figures
DOORBELLS = "doorbells"  # that of round trips by these alone
PARAMETERS = "/sys/module/doorbell/parameters"
TRIPS = 2000
PEER = 2  # for each of two VMs: hallwayd counts from itself, which is 1


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


def build_doorbells(kernel: str) -> Path:
    """Build the module that measures doorbells, for VMs of this kernel; it has to be in their folder."""
    built = modbuild.build_module(paths.REPO / "bench/module", kernels.kernel(kernel), label="-bench")
    return built.with_name("doorbell.ko")


def doorbells(stand: Stand) -> Run:
    """Have two VMs ring each other, the handler of an interrupt being all that runs: µs of a round trip.

    Hallway's module is unloaded meanwhile.
    """
    with _without_hallway(stand):
        for vm in stand.vms:
            vm.run(f"echo {PEER} >{PARAMETERS}/peer")
        stand.client.run(f"echo {TRIPS} >{PARAMETERS}/trips", timeout=60)
        return Run(int(stand.client.get(f"{PARAMETERS}/median_ns")) / 1000)


@contextlib.contextmanager
def _without_hallway(stand: Stand) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for vm in stand.vms:
            vm.run("rmmod hallway")
            stack.callback(vm.run, "rmmod doorbell; insmod /hallway/hallway.ko")
            vm.run("insmod /hallway/doorbell.ko")
        yield
    stand.await_members()


def _read(said: str) -> float:
    found: float = json.loads(said)["value"]
    return found
