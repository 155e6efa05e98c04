# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A stream between two VMs that no fault may disturb, and a third VM, which faults happen to."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from hallway_lab import topology
from hallway_lab.vm import VM
from hallway_tests.guests import (
    AT_ONCE,
    Delta,
    Stream,
    autopsy,
    connections,
    insmod,
    members,
    odd,
    settle_in,
    wait_members,
)
from hallway_tests.pair import Pair, count_on_rings
from hallway_tests.record import Outcome
from hallway_tests.suite import check, wait_for

BYSTANDERS = 3  # connections of the stream
# A clock that jumps looks to a kernel like a stuck CPU or task.
MAY_STAND_STILL = "nosoftlockup rcupdate.rcu_cpu_stall_timeout=300 sysctl.kernel.hung_task_timeout_secs=0"
OFF_RINGS = 0.05  # part of a bystander's bytes that TCP may carry: before its rings, and while they grow


@contextlib.contextmanager
def bystander(pair: Pair, outcome: Outcome, *, broken: bool = False, **params: object) -> Iterator[Stream]:
    """Run a stream between the two VMs in the block: it stays on rings, and nothing is held at the end.

    The module is loaded before and unloaded after: it does not unload while ring
    memory or a context is in use. `broken`: rings of other connections may be corrupt.
    """
    pair.load(**AT_ONCE | params)
    start, delta = held(pair.site.daemon, *pair.both), Delta(*pair.both)
    stream = Stream(pair.b, pair.a, conns=BYSTANDERS, both="--stall 60")
    pair.wait_on_rings(BYSTANDERS)
    yield stream
    stream.check_running("though nothing happened to its VMs")
    pair.wait_on_rings(BYSTANDERS)
    for one in [c for c in connections(pair.a) if stream.port in (c["local_port"], c["remote_port"])]:
        for way in (one["tx"], one["rx"]):
            check(way["tcp_bytes"] < OFF_RINGS * way["ring_bytes"], f"TCP carried much of it: {one}")
    stream.stop()
    stream.finish()
    wait_for(lambda: not any(connections(vm) for vm in pair.both), "no connection is left")
    for vm in pair.both:
        moved = delta.of(vm)
        found = odd(moved | {"corrupt_rings": 0} if broken else moved)
        check(not found, f"{vm.name}: {', '.join(found)}")
        check(moved["tx_bytes_ring"], f"{vm.name} sent nothing through rings")
        outcome.add_ring_bytes(moved["tx_bytes_ring"])
    wait_for(lambda: held(pair.site.daemon, *pair.both) == start, f"as much is held as before: {start}")
    pair.unload()
    pair.healthy()


@contextlib.contextmanager
def victim(pair: Pair, **options: Any) -> Iterator[VM]:
    """Boot a third VM for the length of the block; it is a member."""
    third = pair.third(**options)
    with pair.site.join(third):
        settle_in(third)
        insmod(third, **AT_ONCE)
        wait_members(*pair.both, third)
        yield third


def wait_missed(pair: Pair, third: VM) -> None:
    """Wait until neither of the two VMs serves the third one."""
    for vm in pair.both:
        wait_for(lambda: third.ip4 not in members(vm), f"{vm.name} misses it")  # noqa: B023


def wait_on_rings(pair: Pair, third: VM, count: int, timeout: float = 30) -> None:
    """Wait until just `count` connections of the third VM with the first are on rings both ways."""
    with autopsy(pair.a, third):
        wait_for(lambda: count_on_rings(pair.a, third) == count, f"{count} are on rings", timeout)


def held(daemon: topology.Daemon, *vms: VM) -> dict[str, object]:
    """Return what these VMs and the daemon hold."""
    status = daemon.status()
    ours = [vm.uuid for vm in vms]
    shown = [m for region in status["regions"] for m in region["members"] if m["uuid"] in ours]
    return {
        "members": sorted(
            (m["uuid"], m["liveness"], m["channels"]) for m in shown if m["liveness"] != "absent"
        ),
        "QEMUs": len(status["vms"]),
        "descriptors": len(os.listdir(f"/proc/{status['pid']}/fd")),
    }
