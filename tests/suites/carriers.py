# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The carriers that a suite runs over: TCP alone, rings, both by turns, and sockets of the host.

Each run of a suite loads the module and unloads it, so that its counters are
the suite's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from hallway_lab.outsourcing import has_arrived
from hallway_lab.vm import VM
from hallway_tests.guests import counters, insmod, odd, rmmod
from hallway_tests.suite import check, wait_for

OFF, STEADY, SWITCHING, OUTSOURCED = "off", "steady", "switching", "outsourced"
CARRIERS = (STEADY, SWITCHING)
# The counter of what went by a carrier.
BYTES = {STEADY: "tx_bytes_ring", SWITCHING: "tx_bytes_ring", OUTSOURCED: "tx_bytes_outsourced"}
# Each connection within the guest is offered a ring before its first byte, which
# waits a while for the answer: most connections of tests send only once.
PARAMS = {"loopback": 1, "promote_bytes": 0, "promote_ms": 0, "promote_wait_ms": 40}
TOGGLE_MS = 200  # the longest pause between two switches of all connections


@dataclass
class Traffic:
    """What the module counted during a run."""

    counters: dict[str, int] = field(default_factory=dict)
    switches: int = 0

    @property
    def faults(self) -> list[str]:
        """What it should not have counted."""
        return odd(self.counters) if self.counters else []


@contextlib.contextmanager
def carrier(vm: VM, mode: str, seed: int) -> Iterator[Traffic]:
    """Have the guest's connections on a carrier for the length of the block."""
    traffic = Traffic()
    if mode == OFF:
        yield traffic
        return
    if mode == OUTSOURCED:
        vm.run("dmesg -C")
        insmod(vm)
        wait_for(lambda: has_arrived(vm), "the outsourcer arrives", 60)
    else:
        insmod(vm, **PARAMS)
    toggle = vm.spawn(f"toggle {seed} {TOGGLE_MS} hallway off on") if mode == SWITCHING else None
    yield traffic
    if toggle:
        vm.run("pkill -TERM -x toggle", check=False)
        done = toggle.wait()
        check(done.code == 0, f"toggle: {done.err}")
        traffic.switches = 2 * int(done.out)
    traffic.counters = counters(vm)
    rmmod(vm)
