"""Growth of connections, of VMs, of CPUs: the sum that they move, the slowest requests, and fairness.

Each connection has one request in flight, see `programs/crowd.c`. A thousand of them are
to move four fifths of what ten do, at least, and all of them the same. Clients in several
VMs start one after the other, within some hundredths of their time.
"""

from __future__ import annotations

import contextlib
import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from hallway_lab import measure, programs
from hallway_lab.measure import Mesh, Stand
from hallway_lab.programs import Run
from hallway_lab.results import figure
from hallway_lab.sample import Row, Samples
from hallway_lab.vm import VM, Job

from .group import Group

PORT = 7020
REQUEST = 16 << 10
COUNTS = (1, 10, 100, 1000)
FEW, MANY = 10, 1000
VMS = (2, 3, 4, 6)
CPUS = (1, 2, 4)
KEPT = 0.8  # of what few connections move, many do at least
FAIR = 0.95  # Jain's index
SHARE = 0.8  # the first requests of each connection go over TCP
SECONDS = 8  # at least: in the first ones many connections wait for rings
CONNECTIONS = "growth-connections"

Link = tuple[VM, VM, int]  # a client, its server, and the server's port


class Growth(Group):
    """Scenarios in which clients in VMs have many connections to servers in others."""

    kind = "growth"
    mesh: Stand

    def __init__(self, seconds: int) -> None:
        super().__init__(max(seconds, SECONDS))
        self._servers: dict[tuple[str, int], Job] = {}

    def is_met(self, samples: Samples, everything: Sequence[Samples]) -> bool:
        """Tell whether a row is fair, and has what is promised."""
        return super().is_met(samples, everything) and _fairness(samples) >= FAIR

    @abstractmethod
    def links(self, *words: Any) -> list[Link]:
        """Return which clients call which servers in a row with these words."""

    def _row(self, key: str, title: str, connections: int, *words: Any, target: float = 0) -> Row:
        """Describe a row; each link has that number of connections."""

        def command(port: object, address: str = "ADDRESS") -> str:
            return f"crowd -c {address} {port} {REQUEST} {connections} {self.seconds}"

        def run() -> Run:
            links = self.links(*words)
            for _, server, port in links:
                self._serve(server, port)
            jobs = [client.spawn(f"/hallway/{command(port, server.ip4)}") for client, server, port in links]
            # All end before the failure of one counts: the next row has the VMs for itself.
            for job in jobs:
                job.wait(self.seconds + 120)
            said = [json.loads(job.result().out) for job in jobs]
            return Run(
                sum(one["megabytes_per_second"] for one in said),
                up=sum(int(one["all"]) for one in said),
                more={
                    "p99, ms": max(one["p99_us"] for one in said) / 1e3,
                    "fairness": jain(said, connections),
                },
            )

        return Row(key, title, "MB/s", run, command(PORT), target, share=SHARE)

    def _serve(self, vm: VM, port: int) -> None:
        server = self._servers.get((vm.name, port))
        if not server or server.poll():
            command = f"/hallway/crowd -s {port} {REQUEST}"
            self._servers[vm.name, port] = programs.serve(vm, command, port)


class Connections(Growth):
    """From one connection between two VMs to a thousand."""

    @contextlib.contextmanager
    def standing(self, kernel: str) -> Iterator[Stand]:
        """Boot the VMs."""
        with measure.standing(kernel) as self.mesh:
            yield self.mesh

    def rows(self) -> list[Row]:
        """All scenarios, in the report's order."""
        return [self._row(f"{CONNECTIONS}-{count}", _counted(count, "connection"), count) for count in COUNTS]

    def links(self, *_words: Any) -> list[Link]:
        """Return the one link."""
        return [(self.mesh.client, self.mesh.server, PORT)]

    def is_met(self, samples: Samples, everything: Sequence[Samples]) -> bool:
        """Tell whether a row is fair, and many connections move what few do."""
        if not super().is_met(samples, everything):
            return False
        if samples.row.key != f"{CONNECTIONS}-{MANY}":
            return True
        few = next((one.hallway for one in everything if one.row.key == f"{CONNECTIONS}-{FEW}"), [])
        return bool(few) and figure("", *samples.hallway).median >= KEPT * figure("", *few).median


class Members(Growth):
    """From two VMs to six: all but one call that one, or each calls the next."""

    @contextlib.contextmanager
    def standing(self, kernel: str) -> Iterator[Stand]:
        """Boot as many VMs as the largest row has."""
        with measure.standing(kernel, Mesh, count=max(VMS)) as self.mesh:
            yield self.mesh

    def rows(self) -> list[Row]:
        """All scenarios, in the report's order."""
        return [
            self._row(f"growth-{shape}-{count}", f"{shape} of {count} VMs", FEW, shape, count, target=1)
            for shape in ("star", "ring")
            for count in VMS
        ]

    def links(self, *words: Any) -> list[Link]:
        """Return the links of this shape between this number of VMs."""
        shape, count = words
        vms = self.mesh.site.vms[:count]
        if shape == "star":
            return [(vm, vms[0], PORT) for vm in vms[1:]]
        return [(vm, vms[(number + 1) % count], PORT) for number, vm in enumerate(vms)]


class Cpus(Growth):
    """Two VMs with several CPUs each, and as many clients and servers."""

    def __init__(self, seconds: int, cpus: int) -> None:
        super().__init__(seconds)
        self._cpus = cpus

    @contextlib.contextmanager
    def standing(self, kernel: str) -> Iterator[Stand]:
        """Boot the VMs."""
        with measure.standing(kernel, cpus=self._cpus) as self.mesh:
            yield self.mesh

    def rows(self) -> list[Row]:
        """The one scenario."""
        title = f"2 VMs of {_counted(self._cpus, 'CPU')}, as many programs"
        return [self._row(f"growth-cpus-{self._cpus}", title, FEW, target=1)]

    def links(self, *_words: Any) -> list[Link]:
        """Return a link for each CPU."""
        return [(self.mesh.client, self.mesh.server, PORT + number) for number in range(self._cpus)]


def groups(seconds: int) -> list[Growth]:
    """Return all groups, in the report's order."""
    return [Connections(seconds), Members(seconds), *(Cpus(seconds, count) for count in CPUS)]


def jain(said: Sequence[dict[str, float]], connections: int) -> float:
    """Return Jain's index of what all connections moved, by what each client said of its own.

    It is 1 if all moved the same, and 1/n if one of n moved all (R. Jain et al., DEC-TR-301, 1984).
    """
    total = sum(one["requests"] for one in said)
    return total * total / (len(said) * connections * sum(one["squares"] for one in said))


def _fairness(samples: Samples) -> float:
    return figure("", *samples.more["fairness, Hallway"]).median


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count > 1 else ''}"
