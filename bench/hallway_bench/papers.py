# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Benchmarks of two papers, between two VMs.

The rows are those of figures, with what the papers say beside: Figures 12 and 16 of "Inter-domain
Socket Communications" (XWAY, VEE 2008), and Figures 7 and 8 of "A Fast and Transparent Communication
Protocol for Co-Resident Virtual Machines" (XenVMC, 2012); for XWAY's Figures 13 and 15 see
paperprograms.py. Beside are programs of one VM, by AF_UNIX and by TCP's loopback. Both papers are about Xen:
for domains of Xen see domains.py.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from hallway_lab import measure
from hallway_lab.measure import Stand
from hallway_lab.programs import Run
from hallway_lab.sample import Row

from . import bounds
from .bounds import BOUND
from .group import Group
from .scenarios import CONNRATE_PORT, PINGPONG_PORT, STREAM_PORT

PORTS = {
    "stream": STREAM_PORT,
    "pingpong": PINGPONG_PORT,
    "connrate": CONNRATE_PORT,
    "lifecycle": 7004,
}
# What the papers say, as ratios to TCP. XWAY: 3.8 Gb/s in writes of 2 KB, TCP on Xen 3.1 1.06 Gb/s.
XWAY_STREAM, XWAY_CONNECT = "XWAY: 3.6×", "XWAY: ⅓×, connect()"
# Fig. 16: bind() and listen() do nothing of its own there.
XWAY_CALLS = {"connect": "⅓×", "accept": "slightly longer", "bind": "1×", "listen": "1×", "close": "½×"}
XENVMC_STREAM, XENVMC_SHORT, XENVMC_LONG = "XenVMC: ≤ 9×", "XenVMC: 2.5 to 3×", "XenVMC: ≤ 6×"
# size of writes, its name, target, what a paper says
WRITES = (
    (1, "1 B", 4.0, ""),
    (64, "64 B", 4.0, ""),
    (1 << 10, "1 KB", 4.0, XENVMC_STREAM),
    (2 << 10, "2 KB", 4.0, XWAY_STREAM),
    (16 << 10, "16 KB", 6.0, XENVMC_STREAM),
    (64 << 10, "64 KB", 4.0, ""),
    (1 << 20, "1 MB", 4.0, ""),
)
TRIPS = (
    (1, "1 B", 3.0, XENVMC_SHORT),
    (1 << 10, "1 KB", 3.0, XENVMC_SHORT),
    (16 << 10, "16 KB", 3.0, XENVMC_LONG),
    (64 << 10, "64 KB", 3.0, XENVMC_LONG),
)
COPIED_MAX = 256 << 10  # bytes that the bound copies at once, in writes that are larger, too
# Within a VM: what is added to the port, the kind of socket (programs/common.h), and where `ss` has it.
UNIX, LOOPBACK = "AF_UNIX", "loopback"
WITHIN = {UNIX: (100, "local", "-x"), LOOPBACK: (200, "tcp", "--tcp")}

Parse = Callable[[dict[str, float]], Run]  # of what a program says
Ways = tuple[tuple[str, Callable[[], Run]], ...]  # names, and what measures by them


class Papers(Group):
    """The scenarios between two VMs; servers start when needed."""

    kind = "papers"
    stand: Stand
    spin_us: int | None = None  # for which receivers spin in the row of those; None: the default

    @contextlib.contextmanager
    def standing(self, kernel: str) -> Iterator[Stand]:
        """Boot the VMs."""
        with measure.standing(kernel) as self.stand:
            yield self.stand

    def rows(self) -> list[Row]:
        """All scenarios, in the report's order."""
        return [
            *(self._stream(size, text, target, paper) for size, text, target, paper in WRITES),
            *(
                self._round_trip(f"sleep-{size}", "asleep", size, text, 0, target, paper)
                for size, text, target, paper in TRIPS
            ),
            self._round_trip("spin", "spinning", 1, "1 B", self.spin_us, 30.0, ""),
            self._connections(),
            *(self._call_of_life(name, f"XWAY: {paper}") for name, paper in XWAY_CALLS.items()),
        ]

    def _stream(self, size: int, text: str, target: float, paper: str) -> Row:
        def parse(said: dict[str, float]) -> Run:
            return Run(said["megabytes_per_second"], up=int(said["bytes"]))

        words = f"{size} {self.seconds}"
        return self._row(
            "stream",
            f"-{size}",
            f"stream, writes of {text}",
            "MB/s",
            words,
            parse,
            target,
            paper=paper,
            more=(
                *self._others(parse, "stream", size),
                (BOUND, lambda: bounds.copies(self.stand.client, min(size, COPIED_MAX), self.seconds)),
            ),
        )

    def _round_trip(
        self, key: str, how: str, size: int, text: str, spin_us: int | None, target: float, paper: str
    ) -> Row:
        def parse(said: dict[str, float]) -> Run:
            moved = int(said["round_trips"]) * size
            return Run(said["p50_us"], up=moved, down=moved)

        return self._row(
            "pingpong",
            f"-{key}",
            f"round trip, receivers {how}, of {text}",
            "µs, p50",
            f"{size} {self.seconds}",
            parse,
            target,
            lower_is_better=True,
            spin_us=spin_us,
            paper=paper,
            more=self._others(parse, "trips", size) if spin_us == 0 else (),
        )

    def _connections(self) -> Row:
        return self._row(
            "connrate",
            "",
            "connect + accept + close",
            "1/s",
            f"{self.seconds}",
            lambda said: Run(said["per_second"]),
            0.95,
            carries=False,
            paper=XWAY_CONNECT,
        )

    def _call_of_life(self, name: str, paper: str) -> Row:
        return self._row(
            "lifecycle",
            f"-{name}",
            f"{name}()",
            "µs, p50",
            f"{name} {self.seconds}",
            lambda said: Run(said["p50_us"]),
            0.95,
            lower_is_better=True,
            carries=False,
            paper=paper,
        )

    def _row(
        self,
        program: str,
        suffix: str,
        title: str,
        unit: str,
        words: str,
        parse: Parse,
        target: float,
        *,
        more: Ways = (),
        **options: Any,
    ) -> Row:
        return Row(
            key=f"{self.kind}-{program}{suffix}",
            title=title,
            unit=unit,
            run=lambda: parse(self._between(program, words)),
            command=f"{program} -c ADDRESS {PORTS[program]} {words}",
            target=target,
            beside=(
                (UNIX, lambda: parse(self._within(program, UNIX, words))),
                (LOOPBACK, lambda: parse(self._within(program, LOOPBACK, words))),
                *more,
            ),
            **options,
        )

    def _between(self, program: str, words: str) -> dict[str, float]:
        port, server = PORTS[program], self.stand.server
        self._servers.need(server, f"/hallway/{program} -s {port}", port)
        return self._call(program, f"{server.ip4} {port}", words)

    def _within(self, program: str, way: str, words: str) -> dict[str, float]:
        more, kind, sockets = WITHIN[way]
        port = PORTS[program] + more
        self._servers.need(self.stand.client, f"/hallway/{program} -s {kind}:{port}", port, sockets)
        where = "local:" if way == UNIX else self.stand.client.ip4
        return self._call(program, f"{where} {port}", words)

    def _others(self, _parse: Parse, _what: str, _size: int) -> Ways:
        """Return other ways between the VMs for a stream, or for round trips ("trips")."""
        return ()

    def _call(self, program: str, where: str, words: str) -> dict[str, float]:
        command = f"/hallway/{program} -c {where} {words}"
        return json.loads(self.stand.client.run(command, timeout=self.seconds + 60).out)
