# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Growth of connections, of VMs, of CPUs: the sum that they move, the slowest requests, and fairness.

And of programs that do nothing but connect: how many connections a second they have together.

Each connection has one request in flight, see `programs/crowd.c`. A thousand of them are
to move four fifths of what ten do, at least, and all of them the same. Clients in several
VMs start one after the other, within some hundredths of their time. Idle connections are
measured by the CPU time that they cost.
"""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hallway_lab import measure
from hallway_lab.measure import Mesh, Stand, Times
from hallway_lab.programs import Run
from hallway_lab.results import figure
from hallway_lab.sample import Row, Samples
from hallway_lab.sh import LabError
from hallway_lab.vm import VM, Job

from .group import Group

PORT = 7020
IDLE_PORT = 7030
REQUEST = 16 << 10
COUNTS = (1, 10, 100, 1000)
FEW, MANY = 10, 1000
IDLE = 10_000
SETTLE = 5  # seconds
POINTS = 0.5  # percent of a CPU that samples of an idle guest differ by
RATE_PORT = 7040
CALLERS = (1, 4, 16)
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
    stand: Stand

    def __init__(self, seconds: int, stand: type[Stand] = Stand, **options: Any) -> None:
        super().__init__(max(seconds, SECONDS))
        self._boot = functools.partial(measure.standing, kind=stand, **options)

    @contextlib.contextmanager
    def standing(self, kernel: str) -> Iterator[Stand]:
        """Boot the VMs."""
        with self._boot(kernel) as self.stand:
            yield self.stand

    def is_met(self, samples: Samples, everything: Sequence[Samples]) -> bool:
        """Tell whether a row is fair, and has what is promised."""
        return super().is_met(samples, everything) and _fairness(samples) >= FAIR

    def _row(
        self, key: str, title: str, connections: int, links: Callable[[], list[Link]], target: float = 0
    ) -> Row:
        """Describe a row; each link has that number of connections."""

        def command(port: object, address: str = "ADDRESS") -> str:
            return f"crowd -c {address} {port} {REQUEST} {connections} {self.seconds}"

        def run() -> Run:
            links_now = links()
            for _, server, port in links_now:
                self._servers.need(server, f"/hallway/crowd -s {port} {REQUEST}", port)
            jobs = [
                client.spawn(f"/hallway/{command(port, server.ip4)}") for client, server, port in links_now
            ]
            said = _finish(jobs, self.seconds + 120)
            return Run(
                sum(one["megabytes_per_second"] for one in said),
                up=sum(int(one["all"]) for one in said),
                more={
                    "p99, ms": max(one["p99_us"] for one in said) / 1e3,
                    "fairness": jain(said, connections),
                },
            )

        return Row(key, title, "MB/s", run, command(PORT), target, share=SHARE)

    def _links_of_two(self, count: int = 1) -> list[Link]:
        """Return that number of links from the first VM to the second one."""
        return [(self.stand.client, self.stand.server, PORT + number) for number in range(count)]


class Connections(Growth):
    """From one connection between two VMs to a thousand."""

    def rows(self) -> list[Row]:
        """All scenarios, in the report's order."""
        return [
            self._row(f"{CONNECTIONS}-{count}", _counted(count, "connection"), count, self._links_of_two)
            for count in COUNTS
        ]

    def is_met(self, samples: Samples, everything: Sequence[Samples]) -> bool:
        """Tell whether a row is fair, and many connections move what few do."""
        if not super().is_met(samples, everything):
            return False
        if samples.row.key != f"{CONNECTIONS}-{MANY}":
            return True
        few = next((one.hallway for one in everything if one.row.key == f"{CONNECTIONS}-{FEW}"), [])
        return bool(few) and figure("", *samples.hallway).median >= KEPT * figure("", *few).median


class Rates(Growth):
    """From one program that connects all the time to sixteen, each with a server of its own."""

    def rows(self) -> list[Row]:
        """All scenarios, in the report's order."""
        return [
            Row(
                f"growth-rate-{count}",
                f"connect + accept + close, {_counted(count, 'program')}",
                "1/s",
                functools.partial(self._connect, count),
                f"connrate -c ADDRESS {RATE_PORT} {self.seconds}",
                target=0.9,
                carries=False,
            )
            for count in CALLERS
        ]

    def _connect(self, count: int) -> Run:
        client, server = self.stand.client, self.stand.server
        ports = range(RATE_PORT, RATE_PORT + count)
        for port in ports:
            self._servers.need(server, f"/hallway/connrate -s {port}", port)
        words = f"/hallway/connrate -c {server.ip4}"
        jobs = [client.spawn(f"{words} {port} {self.seconds}") for port in ports]
        return Run(sum(one["per_second"] for one in _finish(jobs, self.seconds + 60)))

    def is_met(self, samples: Samples, everything: Sequence[Samples]) -> bool:
        """Tell whether a row has what is promised."""
        return Group.is_met(self, samples, everything)


class Idle(Growth):
    """Ten thousand connections between two VMs that carry nothing: the guests' CPUs have nothing to do.

    They are attached, and on TCP: a ring is earned by use, and freed when it idles.
    """

    def rows(self) -> list[Row]:
        """The one scenario."""
        command = f"idle -c ADDRESS {IDLE_PORT} {IDLE}"
        title = f"{_counted(IDLE, 'connection')}, attached, idle"
        return [
            Row(
                f"growth-idle-{IDLE}",
                title,
                "% of a CPU",
                self._busy,
                command,
                lower_is_better=True,
                carries=False,
            )
        ]

    def _attached(self) -> list[int]:
        said = [json.loads(vm.run("hallway counters --json").out) for vm in self.stand.vms]
        return [one["attached"] - one["detached"] for one in said]

    def _check_all(self, before: list[int]) -> None:
        """Fail unless all connections are there, and attached with Hallway on."""
        for vm, old, new in zip(self.stand.vms, before, self._attached(), strict=True):
            sockets = vm.get("/proc/net/sockstat").split("TCP: inuse ")[1].split()[0]
            if int(sockets) < IDLE or (self.stand.on and new - old < IDLE):
                raise LabError(f"{vm.name} has {sockets} sockets, and attached {new - old} of {IDLE}")

    def _busy(self) -> Run:
        """Return the part of the time in which the CPU of the busier guest ran."""
        client, server = self.stand.client, self.stand.server
        before = self._attached()
        try:
            server.run(f"/hallway/idle -s {IDLE_PORT}")
            client.run(f"/hallway/idle -c {server.ip4} {IDLE_PORT} {IDLE}", timeout=300)
            # What the connections' begin has left to be done, such as delayed acknowledgements.
            time.sleep(SETTLE)
            begin = [Times.parse(vm.get("/proc/stat")) for vm in self.stand.vms]
            time.sleep(self.seconds)
            end = [Times.parse(vm.get("/proc/stat")) for vm in self.stand.vms]
            self._check_all(before)
        finally:
            for vm in (client, server):
                vm.run("pkill -x idle; while pgrep -x idle; do sleep 0.1; done", timeout=60)
        return Run(100 * max((late - early).busy for early, late in zip(begin, end, strict=True)))

    def is_met(self, samples: Samples, everything: Sequence[Samples]) -> bool:
        """Tell whether Hallway adds nothing that can be measured."""
        if not samples.tcp or not samples.hallway:
            return False
        tcp, hallway = (figure("", *part).median for part in (samples.tcp, samples.hallway))
        return hallway <= tcp + POINTS


class Members(Growth):
    """From two VMs to six: all but one call that one, or each calls the next."""

    def __init__(self, seconds: int) -> None:
        super().__init__(seconds, Mesh, count=max(VMS))

    def rows(self) -> list[Row]:
        """All scenarios, in the report's order."""
        return [
            self._row(
                f"growth-{shape}-{count}",
                f"{shape} of {count} VMs",
                FEW,
                functools.partial(links, count),
                target=1,
            )
            for shape, links in (("star", self._star), ("ring", self._ring))
            for count in VMS
        ]

    def _star(self, count: int) -> list[Link]:
        vms = self.stand.vms[:count]
        return [(vm, vms[0], PORT) for vm in vms[1:]]

    def _ring(self, count: int) -> list[Link]:
        vms = self.stand.vms[:count]
        return [(vm, vms[(number + 1) % count], PORT) for number, vm in enumerate(vms)]


class Cpus(Growth):
    """Two VMs with several CPUs each, and as many clients and servers."""

    def __init__(self, seconds: int, cpus: int) -> None:
        super().__init__(seconds, cpus=cpus)
        self._cpus = cpus

    def rows(self) -> list[Row]:
        """The one scenario."""
        title = f"2 VMs of {_counted(self._cpus, 'CPU')}, as many programs"
        links = functools.partial(self._links_of_two, self._cpus)
        return [self._row(f"growth-cpus-{self._cpus}", title, FEW, links, target=1)]


def groups(seconds: int) -> list[Growth]:
    """Return all groups, in the report's order."""
    return [
        *(Connections(seconds), Rates(seconds), Idle(seconds), Members(seconds)),
        *(Cpus(seconds, count) for count in CPUS),
    ]


def jain(said: Sequence[dict[str, float]], connections: int) -> float:
    """Return Jain's index of what all connections moved, by what each client said of its own.

    It is 1 if all moved the same, and 1/n if one of n moved all (R. Jain et al., DEC-TR-301, 1984).
    """
    total = sum(one["requests"] for one in said)
    return total * total / (len(said) * connections * sum(one["squares"] for one in said))


def _finish(jobs: Sequence[Job], timeout: float) -> list[dict[str, float]]:
    """Wait for clients, and return what each reports.

    All end before the failure of one counts: the next row has the VMs for itself.
    """
    for job in jobs:
        job.wait(timeout)
    return [json.loads(job.result().out) for job in jobs]


def _fairness(samples: Samples) -> float:
    return figure("", *samples.more["fairness, Hallway"]).median


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count > 1 else ''}"
