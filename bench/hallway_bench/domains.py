# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Benchmarks of two papers between two domains of Xen, as theirs were; see papers.py and paperprograms.py.

As there, TCP goes through xen-netfront. Beside is libxenvchan, by which programs that know of it share memory
between domains. A row of its own is the pause of a domain that is saved and goes on.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager

from hallway_lab import domains, paths, topology, xen
from hallway_lab.aptbox import AptBox
from hallway_lab.measure import Stand
from hallway_lab.programs import Run
from hallway_lab.sample import Row
from hallway_lab.sh import LabError
from hallway_lab.vm import VM

from . import tiers
from .compiling import compile_program
from .paperprograms import MEMORY_MIB, PaperPrograms
from .papers import PORTS, Papers, Parse, Ways

VCHAN = "libxenvchan"
VCHAN_MODULES = "xen-gntalloc xen-gntdev xen-evtchn"
VCHAN_LIBRARIES = ("xenvchan", "xengnttab", "xenevtchn", "xenstore", "xentoolcore", "xentoollog")
# Round trips while a domain is saved.
MESSAGE = 1 << 10
ENOUGH = 1 << 20  # bytes: on rings by then
LONG = 600  # seconds: they are interrupted sooner


class Domains(Papers):
    """The scenarios between two domains."""

    kind = "xen"
    spin_us = 1000  # here the four system calls of a round trip take longer than the default

    def prepare(self, kernel: str) -> None:
        """Fetch Xen, pack what boots on it, and compile what speaks libxenvchan."""
        xen.prepare(kernel)
        tree = paths.out("bench", "libxen")
        AptBox("stable").unpack(tree, ["libxen-dev"])
        libraries = [f"-l{name}" for name in VCHAN_LIBRARIES]
        folder = tree / "usr/lib/x86_64-linux-gnu"
        self._vchan = compile_program("vchan", f"-I{tree}/usr/include", f"-L{folder}", *libraries)

    @contextlib.contextmanager
    def standing(self, kernel: str) -> Iterator[Stand]:
        """Boot Xen, dom0 and the domains."""
        shutil.copy(self._vchan, topology.share_folder(kernel))
        with domains.standing(kernel) as self.stand:
            for vm in self.stand.vms:
                vm.run(f"modprobe -a {VCHAN_MODULES}")
            yield self.stand

    def rows(self) -> list[Row]:
        """All scenarios, in the report's order."""
        return [*super().rows(), self._checkpoint()]

    def _checkpoint(self) -> Row:
        port = PORTS["pingpong"]
        command = f"pingpong -c ADDRESS {port} {MESSAGE} {LONG}"

        def run() -> Run:
            client, server = self.stand.client, self.stand.server
            self._servers.need(server, f"/hallway/pingpong -s {port}", port)
            trips = client.spawn(f"exec /hallway/{command.replace('ADDRESS', server.ip4)}")
            try:
                _await_bytes(client, port)
                server.checkpoint()
            finally:
                ended = trips.poll()
                trips.kill(signal.SIGINT)
            said = json.loads(trips.result().out)
            if self.stand.on:
                self.stand.await_members(60)
            if ended:
                raise LabError(f"the round trips ended before the domain was saved: {said}")
            moved = int(said["round_trips"]) * MESSAGE
            return Run(said["max_us"] / 1e3, up=moved, down=moved)

        return Row(
            key="xen-checkpoint",
            title="pause of round trips while a domain is saved and goes on",
            unit="ms",
            run=run,
            command=f"{command}, and xl save -c",
            target=0.8,
            lower_is_better=True,
            share=0.5,  # before and after
        )

    def _others(self, parse: Parse, what: str, size: int) -> Ways:
        return ((VCHAN, lambda: parse(self._by_vchan(what, size))),)

    def _by_vchan(self, what: str, size: int) -> dict[str, float]:
        client, server = self.stand.client, self.stand.server
        self._servers.need(server, f"/hallway/vchan -s {client.domid}", 0, "")
        command = f"/hallway/vchan -c {server.domid} {what} {size} {self.seconds}"
        return json.loads(client.run(command, timeout=self.seconds + 60).out)


def _await_bytes(vm: VM, port: int) -> None:
    """Wait until a connection to that port has received some bytes, by either way."""
    deadline = time.monotonic() + 60
    command = f"ss -Htin dport = :{port}"
    while sum(map(int, re.findall(r"bytes_received:(\d+)", said := vm.run(command).out))) < ENOUGH:
        if time.monotonic() > deadline:
            raise LabError(f"no round trips are made: {said}")
        time.sleep(0.2)


class DomainPrograms(PaperPrograms):
    """Programs between two domains."""

    kind = "xen"

    def prepare(self, kernel: str) -> None:
        """Fetch Xen, and what the programs need."""
        xen.prepare(kernel)
        super().prepare(kernel)

    def boot(self, kernel: str) -> AbstractContextManager[Stand]:
        """Boot Xen, dom0 and the domains."""
        return domains.standing(kernel, domain_image=tiers.IMAGE, mib=MEMORY_MIB)

    def address(self) -> str:
        """Return the address by which users outside reach the first domain."""
        return self.stand.client.control
