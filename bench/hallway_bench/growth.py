"""From one connection to a thousand: their sum, the slowest requests, and how fair it is.

Each connection has one request in flight, see `programs/crowd.c`. A thousand of them are
to move four fifths of what ten do, at least, and all of them the same.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from functools import cached_property

from hallway_lab import measure, programs
from hallway_lab.measure import Stand
from hallway_lab.programs import Run
from hallway_lab.results import figure
from hallway_lab.sample import Row, Samples

from .group import Group

PORT = 7020
REQUEST = 16 << 10
COUNTS = (1, 10, 100, 1000)
FEW, MANY = 10, 1000
KEPT = 0.8  # of what few connections move, many do at least
FAIR = 0.95  # Jain's index
SHARE = 0.8  # the first requests of each connection go over TCP
SECONDS = 8  # at least: in the first ones many connections wait for rings


class Growth(Group):
    """The scenarios with many connections between two VMs."""

    kind = "growth"
    stand: Stand

    def __init__(self, seconds: int) -> None:
        super().__init__(max(seconds, SECONDS))

    @contextlib.contextmanager
    def standing(self, kernel: str) -> Iterator[Stand]:
        """Boot the VMs."""
        with measure.standing(kernel) as self.stand:
            yield self.stand

    def rows(self) -> list[Row]:
        """All scenarios, in the report's order."""
        return [self._crowd(count) for count in COUNTS]

    def is_met(self, samples: Samples, everything: Sequence[Samples]) -> bool:
        """Tell whether a row's figures are those that are promised."""
        if samples.ratio is None:
            return False
        fair = figure("", *samples.more["fairness, Hallway"]).median >= FAIR
        if samples.row.key != _key(MANY):
            return fair
        few = next((one.hallway for one in everything if one.row.key == _key(FEW)), [])
        if not few:
            return False
        return fair and figure("", *samples.hallway).median >= KEPT * figure("", *few).median

    def _crowd(self, count: int) -> Row:
        words = f"{PORT} {REQUEST} {count} {self.seconds}"

        def run() -> Run:
            assert self._server
            command = f"/hallway/crowd -c {self.stand.server.ip4} {words}"
            said = json.loads(self.stand.client.run(command, timeout=self.seconds + 120).out)
            return Run(
                said["megabytes_per_second"],
                up=int(said["all"]),
                more={"p99, ms": said["p99_us"] / 1e3, "fairness": said["fairness"]},
            )

        title = f"{count} connections" if count > 1 else "1 connection"
        return Row(_key(count), title, "MB/s", run, f"crowd -c ADDRESS {words}", share=SHARE)

    @cached_property
    def _server(self) -> object:
        return programs.serve(self.stand.server, f"/hallway/crowd -s {PORT} {REQUEST}", PORT)


def _key(count: int) -> str:
    return f"growth-{count}"
