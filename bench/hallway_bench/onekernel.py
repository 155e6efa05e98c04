# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Scenarios within one kernel: both ends of each connection are in it, and `programs/native.c` runs them.

The module's loopback transport carries connections to 127.0.0.1. Beside TCP and rings: AF_UNIX and pipes.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator
from typing import Protocol

from hallway_lab.measure import COUNTED, Direction, Traffic, direction
from hallway_lab.programs import Run
from hallway_lab.sample import Row
from hallway_lab.uml import Uml
from hallway_lab.vm import VM

from .group import Group

PROGRAM = "native"
ALWAYS = "loopback=1 promote_bytes=0 promote_ms=0"  # what the module is loaded with
UNIX, PIPE = "AF_UNIX", "pipe"
SIZES = ((64, "64 B"), (1 << 10, "1 KB"), (16 << 10, "16 KB"), (64 << 10, "64 KB"))


class Judge(Protocol):
    """What says at the end whether the kernel complained."""

    def judge(self) -> None:
        """Fail if it did."""


class Stand:
    """The kernel with the module, which carries its own connections; `hallway` is the command there."""

    def __init__(self, site: Judge, client: VM | Uml, hallway: str) -> None:
        self.site, self.client, self._hallway = site, client, hallway

    def switch(self, on: bool) -> None:
        """Turn Hallway on or off."""
        self.client.run(f"{self._hallway} {'on' if on else 'off'}")

    def spin(self, microseconds: int | None = None) -> None:
        """Leave it: readers of connections within a kernel do not spin."""

    @contextlib.contextmanager
    def meter(self) -> Iterator[Traffic]:
        """Count the bytes of what happens in the block: those of both directions are one."""
        before = self._counters()
        traffic = Traffic()
        yield traffic
        after = self._counters()
        moved = {name: after[name] - before[name] for name in COUNTED}
        traffic.up, traffic.down = direction(moved, moved), Direction(0, 0, 0, 0, 0)

    def _counters(self) -> dict[str, int]:
        return json.loads(self.client.run(f"{self._hallway} counters --json").out)


class OneKernel(Group):
    """Scenarios within the kernel of a stand, which has the program at a path."""

    stand: Stand
    program: str

    def make_row(self, where: str, title: str, operation: str, size: int, target: float) -> Row:
        """Return a row of an operation, see `programs/native.c`."""
        run = functools.partial(self.measure, where=where, operation=operation, size=size)
        return Row(
            key=f"{self.kind}-{where}-{operation}-{size}",
            title=title,
            unit="MB/s" if operation == "stream" else "ns",
            run=functools.partial(run, "tcp"),
            command=f"{PROGRAM} {where} CARRIER {operation} {size} {self.seconds}",
            target=target,
            lower_is_better=operation != "stream",
            beside=((UNIX, functools.partial(run, "unix")), (PIPE, functools.partial(run, "pipe"))),
        )

    def measure(self, carrier: str, *, where: str, operation: str, size: int, under: str = "") -> Run:
        """Run the program; `under` is a command that runs it."""
        words = f"{under} {self.program} {where} {carrier} {operation} {size} {self.seconds}"
        said = json.loads(self.stand.client.run(words, timeout=self.seconds + 60).out)
        return Run(said["megabytes_per_second" if operation == "stream" else "ns"], up=said["bytes"])
