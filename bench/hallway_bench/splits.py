# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Benchmarks of one VM that sends messages to two others at once by tunnels, and over TCP.

Figure 7 of "IDTS: Inter-domain Tunnel Scheduling" (see docs/tunnels.md) is of this kind: two programs send,
one to each receiver, and their messages have 2,048 bytes together. In the first and the last row all of these
are for one receiver.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator, Sequence

from hallway_lab import measure, tunnels
from hallway_lab.measure import Mesh, Stand
from hallway_lab.programs import Run
from hallway_lab.results import figure
from hallway_lab.sample import Row, Samples

from .group import Group
from .scenarios import STREAM_PORT
from .tunnels import PACKETS_PORT

TOGETHER = 2048
# Bytes of a message to the first receiver.
FIRST = (2048, 1792, 1280, 768, 256, 0)
KEPT = 0.95  # of what one receiver gets, two get at least
OFF = 0.1  # by this part shares may differ from what is offered
OFFERED = "of offered"


class Splits(Group):
    """The scenarios between three VMs; servers start when needed."""

    kind = "tunnels"
    stand: Stand

    @contextlib.contextmanager
    def standing(self, kernel: str) -> Iterator[Stand]:
        """Boot the VMs, with the module of tunnels."""
        with measure.standing(kernel, kind=Mesh, count=3) as self.stand:
            for vm in self.stand.vms:
                tunnels.load(vm)
            yield self.stand

    def rows(self) -> list[Row]:
        """All scenarios, in the report's order."""
        return [
            Row(
                f"tunnel-split-{first}",
                f"one VM → two: messages of {first} B and {TOGETHER - first} B",
                "MB/s",
                functools.partial(self._run, first),
                f"stream -c packet:CID PORT {first} {self.seconds} & stream -c packet:CID PORT"
                f" {TOGETHER - first} {self.seconds}",
                1.0,
            )
            for first in FIRST
        ]

    def is_met(self, samples: Samples, everything: Sequence[Samples]) -> bool:
        """Tell whether two receivers get what one does, and each what was offered to it."""
        if not super().is_met(samples, everything):
            return False
        alone = [
            figure("", *one.hallway).median
            for one in everything
            if one.row.key in (f"tunnel-split-{TOGETHER}", "tunnel-split-0") and one.hallway
        ]
        if not alone or figure("", *samples.hallway).median < KEPT * min(alone):
            return False
        return abs(figure("", *samples.more[f"{OFFERED}, Hallway"]).median - 1) <= OFF

    def _run(self, first: int) -> Run:
        receivers = self.stand.vms[1:]
        sizes = [(vm, size) for vm, size in zip(receivers, (first, TOGETHER - first), strict=True) if size]
        jobs = []
        for vm, size in sizes:
            kind, port, sockets = (
                ("packet", PACKETS_PORT, "--vsock") if self.stand.on else ("tcp", STREAM_PORT, "--tcp")
            )
            self._servers.need(vm, f"/hallway/stream -s {kind}:{port}", port, sockets)
            where = f"packet:{tunnels.cid(vm)}" if self.stand.on else f"nodelay:{vm.ip4}"
            jobs.append(self.stand.client.spawn(f"/hallway/stream -c {where} {port} {size} {self.seconds}"))
        # All end before the failure of one counts: the next row has the VMs for itself.
        for job in jobs:
            job.wait(self.seconds + 60)
        said = [json.loads(job.result().out) for job in jobs]
        moved = [int(one["bytes"]) for one in said]
        return Run(
            sum(one["megabytes_per_second"] for one in said),
            up=sum(moved),
            more={OFFERED: moved[0] / sum(moved) / (sizes[0][1] / TOGETHER)},
        )
