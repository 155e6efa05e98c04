# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Benchmarks between two VMs with an outsourcer each: their sockets meet in the host's own stack.

This is Fig. 7 of "Fast Networking with Socket-Outsourcing" (Eiraku et al., SAC 2009). With outsourcing
off, bytes pass both VMs' NICs. Beside both, the same programs on the host itself, over its loopback
interface. Rings between two VMs need no outsourcer: see scenarios.py.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator

from hallway_lab import outsourcing, paths
from hallway_lab.outsourcing import HOST, Stand
from hallway_lab.programs import Run
from hallway_lab.sample import Row
from hallway_lab.sh import run

from .group import Group
from .outside import ON_HOST, PORTS, RULES, read_stream, read_trips

# size of writes, its name
WRITES = ((1 << 10, "1 KB"), (32 << 10, "32 KB"))
# A guest on KVM.
PAPER = "≈ 5.7 Gb/s"


class Siblings(Group):
    """The scenarios between these VMs."""

    stand: Stand

    def __init__(self, seconds: int) -> None:
        super().__init__(seconds)
        self._on_host: set[str] = set()  # programs that serve there

    @contextlib.contextmanager
    def standing(self, kernel: str) -> Iterator[Stand]:
        """Boot both VMs."""
        with outsourcing.standing_pair(kernel, RULES) as self.stand:
            yield self.stand

    def rows(self) -> list[Row]:
        """All scenarios, in the report's order."""
        return [
            *(self._stream(size, text) for size, text in WRITES),
            self._row("pingpong", "round trip of 1 B, asleep", "µs, p50", f"1 {self.seconds}", read_trips),
        ]

    def _stream(self, size: int, text: str) -> Row:
        title = f"stream, writes of {text}"
        return self._row("stream", title, "MB/s", f"{size} {self.seconds}", read_stream, f"-{size}", PAPER)

    def _row(
        self,
        program: str,
        title: str,
        unit: str,
        words: str,
        measure: Callable[[dict[str, float]], Run],
        suffix: str = "",
        paper: str = "",
    ) -> Row:
        return Row(
            key=f"outsource-siblings-{program}{suffix}",
            title=f"VM → host's stack → VM: {title}",
            unit=unit,
            command=f"{program} -c ADDRESS {PORTS[program]} {words}",
            paper=paper,
            run=lambda: measure(self._call(program, words)),
            lower_is_better=program == "pingpong",
            spin_us=0 if program == "pingpong" else None,
            beside=(("native", lambda: measure(self._native(program, words))),),
        )

    def _call(self, program: str, words: str) -> dict[str, float]:
        server, port = self.stand.server, PORTS[program]
        assert server
        self._servers.need(server, f"/hallway/{program} -s {port}", port)
        address = HOST if self.stand.on else server.ip4
        command = f"/hallway/{program} -c {address} {port} {words}"
        return json.loads(self.stand.client.run(command, timeout=self.seconds + 30).out)

    def _native(self, program: str, words: str) -> dict[str, float]:
        path, port = str(paths.out("bench", program)), PORTS[program] + ON_HOST
        if program not in self._on_host:
            self.stand.serve([path, "-s", str(port)], port, None)
            self._on_host.add(program)
        return json.loads(run([path, "-c", HOST, str(port), *words.split()], timeout=self.seconds + 30))
