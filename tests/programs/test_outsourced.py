# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Web servers and their clients in two VMs: the host executes the sockets of both."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hallway_lab import outsourcing
from hallway_lab.outsourcing import HOST
from hallway_lab.results import figure
from hallway_tests import guests
from hallway_tests.pair import name_logs
from hallway_tests.record import Outcome

from . import web
from .program import IMAGE, MEMORY_MIB, Payload, Program, Vms

CARRIER = "outsourced"


@dataclass
class Outsourced:
    """Two VMs. Programs of one reach the other by published ports of the host alone."""

    vms: Vms

    def healthy(self) -> None:
        """Fail if a guest is gone or its kernel complained."""
        guests.healthy(self.vms.client, self.vms.server)


def _publish(*ports: int) -> str:
    return f"publish = {json.dumps([f'tcp/{port}={HOST}:{port}' for port in ports])}"


@contextlib.contextmanager
def booted(kernel: str, share: Path, logs: Path) -> Iterator[Outsourced]:
    """Run the VMs for the length of the block."""
    options = {"share": share, "image": IMAGE, "memory_mib": MEMORY_MIB}
    site, server, client = outsourcing.describe_pair(logs, kernel, **options)
    site.daemon.log = logs / "hallwayd.log"
    rules = {name_logs(client, logs): _publish(web.ORIGIN_PORT)}
    with outsourcing.running(site, name_logs(server, logs), _publish(*web.PORTS), siblings=rules):
        for vm in (server, client):
            guests.settle_in(vm)
            guests.insmod(vm)
            outsourcing.await_arrival(vm, outsourcing.has_arrived, "outsourcer")
        client.run(f"echo {HOST} {server.name} >> /etc/hosts")
        yield Outsourced(Vms(client, server, HOST))


@pytest.fixture
def outsourced(site: Callable[[object], Outsourced], kernel: str, share: Path) -> Outsourced:
    """Return the two VMs."""
    return site(lambda logs: booted(kernel, share, logs))


@pytest.mark.record("programs")
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.needs(f"image {IMAGE}", "programs.layout:lay_out")
@pytest.mark.xdist_group("programs-outsourced")
@pytest.mark.parametrize("program", [pytest.param(one, id=one.key) for one in web.PROGRAMS])
def test_program(program: Program, outsourced: Outsourced, outcome: Outcome) -> None:
    """The program works, its content is right, and the host's sockets carried its bytes."""
    outcome.key, outcome.name = f"{program.key}-{CARRIER}", program.title
    outcome.figures |= {"carrier": CARRIER, "what is done": program.done}
    vms = outsourced.vms
    delta = guests.Delta(vms.client, vms.server)
    with program.serve(vms):
        moved = program.use(vms)
    outcome.check([*_find_faults(moved, delta.of(vms.client), delta.of(vms.server), outcome)])


def _find_faults(
    moved: Payload, client: dict[str, int], server: dict[str, int], outcome: Outcome
) -> Iterator[str]:
    for way, least, sender, receiver in (("→", moved.up, client, server), ("←", moved.down, server, client)):
        sent, received = sender["tx_bytes_outsourced"], receiver["rx_bytes_outsourced"]
        outcome.figures[f"outsourced {way}"] = figure("B", received)
        if min(sent, received) < least:
            yield f"{way}: {sent} bytes went into the host and {received} came out, of at least {least}"
