"""Whether a program passes: its content was right, and its bytes went through rings.

Steady: rings carry SHARE of what the program moves, each way. Switching: the
carrier changes all the time beneath the program, which is used again and again
until that has happened often enough. In both, the two VMs count the same bytes,
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

from .stage import Payload, Program, Stage

STEADY, SWITCHING = "steady", "switching"
MODES = (STEADY, SWITCHING)
SWITCHES = 40  # directions that moved, up or down, at the least
MOVES = ("tx_promoted", "tx_demoted")
LIMIT = 240  # seconds of using a program again and again


@dataclass
class Outcome:
    """How a program fared in one mode."""

    uses: int = 0
    switches: int = 0
    seconds: float = 0
    ledger: Ledger | None = None
    faults: list[str] = field(default_factory=list)


def run(
    program: Program, stage: Stage, stand: Stand, mode: str, seed: int, switches: int = SWITCHES
) -> Outcome:
    """Use a program, whose server runs, in one mode; whatever goes wrong is in the outcome."""
    outcome = Outcome()
    both = (stage.client, stage.server)
    begin = time.monotonic()
    try:
        delta = Delta(*both)
        with stand.meter() as traffic, autopsy(*both):
            if mode == STEADY:
                moved = _use(program, stage, outcome)
            else:
                with _toggling(seed, program.pause_ms, *both):
                    moved = _use(program, stage, outcome)
                    while _switches(delta, *both) < switches and time.monotonic() - begin < LIMIT:
                        more = _use(program, stage, outcome)
                        moved = Payload(moved.up + more.up, moved.down + more.down)
        needed = SHARE if mode == STEADY else 0
        _hold(outcome, judge(traffic, moved.up, moved.down, needed), delta, *both)
        if mode == SWITCHING and outcome.switches < switches:
            outcome.faults.append(f"only {outcome.switches} switches in {outcome.uses} uses, not {switches}")
    except (LabError, AssertionError) as failure:
        outcome.faults.append(str(failure))
    outcome.seconds = time.monotonic() - begin
    return outcome


def _use(program: Program, stage: Stage, outcome: Outcome) -> Payload:
    outcome.uses += 1
    return program.use(stage)


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


def _hold(outcome: Outcome, ledger: Ledger, delta: Delta, *vms: VM) -> None:
    outcome.ledger = ledger
    outcome.faults += ledger.faults
    for vm in vms:
        moved = delta.of(vm)
        outcome.faults += [f"{vm.name}: {line}" for line in odd(moved)]
        # Who closes with bytes unread resets the connection, as with TCP.
        if moved["resets"] and not moved["tx_bytes_unread"]:
            outcome.faults.append(f"{vm.name}: {moved['resets']} sockets were reset")
    outcome.switches = _switches(delta, *vms)
    if not any(way.share for way in (ledger.up, ledger.down)):
        outcome.faults.append("no payload went through rings")
