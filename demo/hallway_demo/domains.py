"""The rows of the demo's table between two domains of Xen."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from hallway_lab import paths, topology, xen
from hallway_lab.measure import Stand

from .rows import Programs


class Domains(Programs):
    """The same programs between two domains of Xen: xen-netfront beside Hallway."""

    @contextlib.contextmanager
    def standing(self, kernel: str) -> Iterator[Stand]:
        """Boot Xen, dom0 and the domains."""
        with xen.running(kernel, topology.share_folder(kernel), paths.out("vm", "x").parent) as machine:
            for domain in machine.domains:
                domain.run("insmod /hallway/hallway.ko")
            self.stand = Stand(topology.Site(None, list(machine.domains)))
            self.stand.await_members(120)
            yield self.stand
