# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Benchmarks of two papers between two domains of Xen, as theirs were; see papers.py and paperprograms.py.

As there, TCP goes through xen-netfront. Beside is libxenvchan, by which programs that know of it share memory
between domains.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager

from hallway_lab import domains, paths, topology, xen
from hallway_lab.aptbox import AptBox
from hallway_lab.measure import Stand

from . import tiers
from .compiling import compile_program
from .paperprograms import MEMORY_MIB, PaperPrograms
from .papers import Papers, Parse, Ways

VCHAN = "libxenvchan"
VCHAN_MODULES = "xen-gntalloc xen-gntdev xen-evtchn"
VCHAN_LIBRARIES = ("xenvchan", "xengnttab", "xenevtchn", "xenstore", "xentoolcore", "xentoollog")


class Domains(Papers):
    """The scenarios between two domains."""

    kind = "xen"

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

    def _others(self, parse: Parse, what: str, size: int) -> Ways:
        return ((VCHAN, lambda: parse(self._by_vchan(what, size))),)

    def _by_vchan(self, what: str, size: int) -> dict[str, float]:
        client, server = self.stand.client, self.stand.server
        self._servers.need(server, f"/hallway/vchan -s {client.domid}", 0, "")
        command = f"/hallway/vchan -c {server.domid} {what} {size} {self.seconds}"
        return json.loads(client.run(command, timeout=self.seconds + 60).out)


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
