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
    client, server = stand.client, stand.server
    with _without_hallway(stand):
        own = {vm.name: vm.get(f"{PARAMETERS}/own").strip() for vm in (client, server)}
        for vm, peer in ((client, server), (server, client)):
            vm.run(f"echo {own[peer.name]} >{PARAMETERS}/peer")
        client.run(f"echo {TRIPS} >{PARAMETERS}/trips", timeout=60)
        return Run(int(client.get(f"{PARAMETERS}/median_ns")) / 1000)


@contextlib.contextmanager
def _without_hallway(stand: Stand) -> Iterator[None]:
    for vm in (stand.client, stand.server):
        vm.run("rmmod hallway && insmod /hallway/doorbell.ko")
    yield
    for vm in (stand.client, stand.server):
        vm.run("rmmod doorbell && insmod /hallway/hallway.ko")
    stand.await_members()


def _read(said: str) -> float:
    found: float = json.loads(said)["value"]
    return found
