# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A VM that libvirt runs is saved, restored and migrated."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hallway_tests.guests import Delta, Stream, healthy, members, odd
from hallway_tests.pair import count_on_rings
from hallway_tests.record import Outcome
from hallway_tests.suite import check, wait_for

from .domain import HEARD, PLACED, Domains

# libvirt of Debian 12 is made for its QEMU, and guests of 6.12 need a newer one.
pytestmark = [
    *(pytest.mark.record("faults"), pytest.mark.kernel("6.1"), pytest.mark.xdist_group("faults-libvirt")),
    *(pytest.mark.two_hosts, pytest.mark.needs("libvirt")),
]

STREAMS = 4
AWAY = 3  # seconds for which a VM is saved


@pytest.mark.fault("virsh save and restore, with the hook")
def test_libvirt_restores(domains: Domains, outcome: Outcome, rounds: Iterator[int]) -> None:
    """A VM is saved and restored under load; the hook plugs its region in."""
    saved = Path(os.environ["TMPDIR"]) / "domain.saved"

    def away(_number: int) -> None:
        domains.moves.save(saved)
        time.sleep(AWAY)  # its absence is what is tested
        domains.moves.restore(saved)

    _return_each_round(domains, outcome, rounds, away)
    check("restore" in HEARD.read_text().split(), "the hook of another program was not called")


@pytest.mark.fault("virsh migrate there, or back, with the hook")
def test_libvirt_migrates(domains: Domains, outcome: Outcome, rounds: Iterator[int]) -> None:
    """A VM migrates under load, there and back; the hook of the destination plugs a region in."""
    here, there = domains.libvirts
    _return_each_round(
        domains, outcome, rounds, lambda number: domains.moves.migrate(here if number % 2 else there)
    )
    check("migrate" in HEARD.read_text().split(), "the hook of another program was not called")


def _return_each_round(
    domains: Domains, outcome: Outcome, rounds: Iterator[int], away: Callable[[int], None]
) -> None:
    """Unplug the VM's region, and have the VM go away and come back, each round."""
    moves, stays = domains.moves, domains.stays
    delta = Delta(moves, stays)
    stream = Stream(stays, moves, conns=STREAMS, both="--stall 90")
    _wait_on_rings(domains)
    for number in rounds:
        moves.detach(PLACED)
        check(moves.ip4 not in members(stays), f"{stays.name} still has it as a member")
        away(number)
        with outcome.timed("on rings again after"):
            _wait_on_rings(domains)
        stream.check_running(f"in round {number}")
    stream.stop()
    stream.finish(60)
    for vm in (moves, stays):
        moved = delta.of(vm)
        found = odd(moved, watchdog=False)
        check(not found and not moved["resets"], f"{vm.name}: {found} {moved['resets']}")
        check(moved["tx_bytes_ring"], f"{vm.name} sent nothing through rings")
        outcome.add_ring_bytes(moved["tx_bytes_ring"])
    healthy(moves, stays)


def _wait_on_rings(domains: Domains) -> None:
    wait_for(lambda: count_on_rings(domains.stays, domains.moves) == STREAMS, "all are on rings", 90)
