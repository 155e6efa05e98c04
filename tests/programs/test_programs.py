# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Every program, on steady rings and while its carriers switch."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from hallway_lab import programs, topology
from hallway_lab.measure import Stand
from hallway_lab.results import figure
from hallway_tests import documents, domains, guests
from hallway_tests.pair import name_logs
from hallway_tests.record import Outcome
from hallway_tests.suite import wait_for

from . import browser, databases, files, runtimes, shells, streams, web
from .judge import CARRIERS, SWITCHING, use
from .program import IMAGE, MEMORY_MIB, Program, Vms

# Kim et al., "Inter-domain Socket Communications Supporting High Performance and
# Full Binary Compatibility on Xen", VEE 2008, Table 1.
XWAY = {
    **dict.fromkeys(("SCP", "SSH", "VSFTPD", "TELNET", "FIREFOX", "WGET", "APACHE", "PROFTPD"), "pass"),
    **{"NETPERF": "pass (netperf)", "MYSQL": "pass (MySQL)", "SAMBA": "failed"},
}


@dataclass
class Between:
    """Two VMs, or domains of Xen, in which the module promotes each connection at its first byte."""

    vms: Vms
    stand: Stand

    def healthy(self) -> None:
        """Fail if a guest is gone or its kernel complained."""
        guests.healthy(self.vms.client, self.vms.server)


@contextlib.contextmanager
def booted(kernel: str, share: Path, logs: Path) -> Iterator[Between]:
    """Run two VMs with all programs for the length of the block."""
    site = topology.Site(topology.Daemon())
    site.daemon.log = logs / "hallwayd.log"
    site.daemon.start()
    options = {"share": share, "image": IMAGE, "memory_mib": MEMORY_MIB}
    try:
        vms = [name_logs(site.vm(number, kernel, **options), logs) for number in (1, 2)]
        with site.join(*vms):
            for vm in vms:
                guests.settle_in(vm)
                guests.insmod(vm, **guests.AT_ONCE)
            guests.wait_members(*vms)
            yield Between(Vms(*vms), Stand(site))
    finally:
        site.daemon.kill(15)


@contextlib.contextmanager
def booted_on_xen(kernel: str, share: Path, logs: Path, kind: str) -> Iterator[Between]:
    """Run two domains of Xen with all programs for the length of the block."""
    options = {"domain_image": IMAGE, "mib": MEMORY_MIB, "kind": kind}
    with domains.booted(kernel, share, logs, guests.slowness(kernel), **options) as pair:
        pair.load(**guests.AT_ONCE)
        yield Between(Vms(*pair.both), Stand(topology.Site(None, list(pair.both))))


@pytest.fixture
def between(
    request: pytest.FixtureRequest, site: Callable[[object], Between], kernel: str, share: Path
) -> Between:
    """Return the two VMs, or domains, of this test's group."""
    if kind := request.config.option.xen:
        return site(lambda logs: booted_on_xen(kernel, share, logs, kind))
    return site(lambda logs: booted(kernel, share, logs))


def _rows() -> Iterator[object]:
    # Programs of a file share their VMs; files run side by side.
    for module in (shells, web, browser, databases, files, streams, runtimes):
        for program in module.PROGRAMS:
            marks = [pytest.mark.xdist_group(module.__name__.replace(".", "-"))]
            if program.xway:
                marks.append(pytest.mark.xen(image=IMAGE))
            yield pytest.param(program, id=program.key, marks=marks)


@pytest.mark.record("programs")
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.needs(f"image {IMAGE}", "programs.layout:lay_out")
@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("program", [*_rows()])
def test_program(
    request: pytest.FixtureRequest,
    program: Program,
    carrier: str,
    between: Between,
    rng: Random,
    outcome: Outcome,
) -> None:
    """The program works, its content is right, and its bytes went through rings."""
    outcome.key, outcome.name = f"{program.key}-{carrier}", program.title
    if request.config.option.xen:
        outcome.key, outcome.name = f"xen-{outcome.key}", f"{program.title}, domains of Xen"
    outcome.figures |= {"carrier": carrier, "what is done": program.done, "XWAY": XWAY.get(program.xway, "")}
    with program.serve(between.vms):
        used = use(program, between.vms, between.stand, carrier, rng.getrandbits(30))
    if carrier == SWITCHING:
        outcome.figures["switches"] = figure("", used.switches)
    outcome.details["uses"] = used.count
    if used.ledger:
        outcome.figures |= used.ledger.figures()
    outcome.check(used.faults)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.xdist_group(shells.__name__.replace(".", "-"))
@pytest.mark.needs(f"image {IMAGE}", "programs.layout:lay_out")
def test_bpftrace(between: Between) -> None:
    """Each line for bpftrace in docs/tracing.md shows what happens to a connection."""
    client, server = between.vms.client, between.vms.server
    for line in documents.run_by("programs/test_programs.py::test_bpftrace"):
        job = client.spawn(f"exec {line} > /tmp/traced 2>&1")
        wait_for(lambda: "Attaching" in client.run("cat /tmp/traced").out, "bpftrace looks", 120)
        iperf = programs.serve(server, "iperf3 -s -1", 5201)
        client.run(f"iperf3 -c {server.ip4} -n 1M", timeout=120)
        iperf.wait(60)
        client.run("pkill -INT -x bpftrace")
        job.wait(60)
        said = client.run("cat /tmp/traced").out
        assert re.search(r"^@\w+\[\d+\]: \d+$", said, re.M), f"{line}: {said}"
