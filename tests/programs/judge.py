# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Whether a program passes: its content is right, and its bytes went through rings.

Steady: rings carry SHARE of what the program moves, each way. Switching: all
connections move between TCP and rings while the program is used, again and
again until enough directions moved. In both, the two VMs count the same bytes,
and nothing odd happens.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from hallway_lab.ledger import SHARE, Ledger, judge
from hallway_lab.measure import Stand
from hallway_lab.sh import LabError
from hallway_lab.vm import VM
from hallway_tests.guests import Delta, autopsy, jobs_end, odd

from .program import Payload, Program, Vms

STEADY, SWITCHING = "steady", "switching"
CARRIERS = (STEADY, SWITCHING)
SWITCHES = 40  # directions that were promoted or demoted, at the least
MOVES = ("tx_promoted", "tx_demoted")
LIMIT = 240  # seconds of using a program again and again


@dataclass
class Use:
    """What happened while a program was used on one carrier."""

    count: int = 0
    switches: int = 0
    ledger: Ledger | None = None
    faults: list[str] = field(default_factory=list)


def use(program: Program, vms: Vms, stand: Stand, carrier: str, seed: int, switches: int = SWITCHES) -> Use:
    """Use a program, whose server runs, on one carrier; what goes wrong is in the result."""
    result = Use()
    both = (vms.client, vms.server)
    begin = time.monotonic()
    try:
        delta = Delta(*both)
        with stand.meter() as traffic, autopsy(*both):
            if carrier == STEADY:
                moved = _use_once(program, vms, result)
            else:
                with _toggling(seed, program.pause_ms, *both):
                    moved = _use_once(program, vms, result)
                    while _switches(delta, *both) < switches and time.monotonic() - begin < LIMIT:
                        more = _use_once(program, vms, result)
                        moved = Payload(moved.up + more.up, moved.down + more.down)
        needed = SHARE if carrier == STEADY else 0
        _judge(result, judge(traffic, moved.up, moved.down, needed), delta, *both)
        if carrier == SWITCHING and result.switches < switches:
            result.faults.append(f"only {result.switches} switches in {result.count} uses, not {switches}")
    except (LabError, AssertionError) as failure:
        result.faults.append(str(failure))
    return result


def _use_once(program: Program, vms: Vms, result: Use) -> Payload:
    result.count += 1
    return program.use(vms)


@contextlib.contextmanager
def _toggling(seed: int, pause_ms: int, *vms: VM) -> Iterator[None]:
    """Switch Hallway off and on in both VMs at random moments; it is on at the end."""
    jobs = [vm.spawn(f"toggle {seed + n} {pause_ms} hallway off on") for n, vm in enumerate(vms)]
    try:
        yield
    finally:
        for vm in vms:
            vm.run("pkill -TERM -x toggle", check=False)
        jobs_end(*jobs)


def _switches(delta: Delta, *vms: VM) -> int:
    return sum(delta.of(vm)[name] for vm in vms for name in MOVES)


def _judge(result: Use, ledger: Ledger, delta: Delta, *vms: VM) -> None:
    result.ledger = ledger
    result.faults += ledger.faults
    for vm in vms:
        moved = delta.of(vm)
        result.faults += [f"{vm.name}: {line}" for line in odd(moved)]
        # A program that closes with bytes unread resets the connection, as with TCP.
        if moved["resets"] and not moved["tx_bytes_unread"]:
            result.faults.append(f"{vm.name}: {moved['resets']} sockets were reset")
    result.switches = _switches(delta, *vms)
    if not any(way.share for way in (ledger.up, ledger.down)):
        result.faults.append("no payload went through rings")
