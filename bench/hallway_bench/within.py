# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Scenarios within one VM, beside what programs of one VM use: AF_UNIX, pipes, and TCP joined by a sockmap.

There the module's loopback transport carries connections. SMC's loopback would be another contender:
Debian's kernels are built without it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator

from hallway_lab import topology
from hallway_lab.programs import Run
from hallway_lab.sample import Row

from . import bounds
from .bounds import BOUND
from .onekernel import ALWAYS, PROGRAM, SIZES, OneKernel, Stand

SOCKMAP = "sockmap"
JOINED = f"/hallway/{SOCKMAP} /sys/fs/cgroup"


class Within(OneKernel):
    """The scenarios within a VM."""

    kind = "within"
    program = f"/hallway/{PROGRAM}"

    @contextlib.contextmanager
    def standing(self, kernel: str) -> Iterator[Stand]:
        """Boot the VM with the module."""
        with topology.pair(kernel, load=False, count=1) as site:
            vm = site.vms[0]
            vm.run(f"insmod /hallway/hallway.ko {ALWAYS}")
            self.stand = Stand(site, vm, "hallway")
            yield self.stand

    def rows(self) -> list[Row]:
        """All scenarios, in the report's order."""
        return [
            *(self._row(f"stream, writes of {text}", "stream", size) for size, text in SIZES),
            self._row("round trip of 1 B, asleep", "asleep", 1),
        ]

    def _row(self, title: str, operation: str, size: int) -> Row:
        row = self.make_row("user", title, operation, size, 1.0)
        run = functools.partial(
            self.measure, "tcp", where="user", operation=operation, size=size, under=JOINED
        )
        return dataclasses.replace(
            row,
            beside=(*row.beside, (SOCKMAP, run), (BOUND, functools.partial(self._bound, operation, size))),
        )

    def _bound(self, operation: str, size: int) -> Run:
        if operation == "stream":
            return bounds.copies(self.stand.client, size, self.seconds)
        return bounds.wakes_within(self.stand.client, self.seconds)
