# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Rows of the demo's table between two VMs: which programs run, and how.

A row starts what it needs when it is first run, so that a broken program
costs its own rows only.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from functools import cached_property

from hallway_lab import measure, programs
from hallway_lab.measure import Stand
from hallway_lab.programs import Run
from hallway_lab.sample import Row
from hallway_lab.sh import LabError
from hallway_lab.vm import VM

from .files import MIB, SCP_SIZE, SIZE, Files
from .watch import Activity, Watch

SECONDS = 2
GO_BYTES = 16 * MIB
REDIS_REQUESTS = 10_000


def rawstream(client: VM, address: str, activity: Activity) -> Run:
    """Run the static Go program with its server, which listens on port 7000; return megabytes a second."""
    command = f"/hallway/rawstream -connect {address}:7000 -bytes {GO_BYTES}"
    report = json.loads(client.run(command, timeout=90).out)
    # The guests also make noise and sums, while its clock stands still.
    activity.busy = report["user"] + report["system"]
    activity.own = report["user"] / max(activity.busy, 1e-9)
    for way in ("up", "down"):
        ends = report[way]
        if ends["sent_sha256"] != ends["received_sha256"]:
            raise LabError(f"rawstream, {way}: SHA-256 differs at the two ends: {ends}")
    return Run(report["megabytes_per_second"], up=GO_BYTES, down=GO_BYTES)


class Programs:
    """The programs between two VMs; `watch` watches the next run."""

    stand: Stand
    watch: Watch

    @contextlib.contextmanager
    def standing(self, kernel: str) -> Iterator[Stand]:
        """Boot the VMs."""
        with measure.standing(kernel) as self.stand:
            yield self.stand

    def rows(self) -> list[Row]:
        """All rows, in the table's order."""
        latency = "µs, p50 of half a round trip"
        return [
            *(
                Row(f"iperf3-{size}", f"iperf3, writes of {text}", "MB/s", self._iperf3(size))
                for size, text in (("64", "64 B"), ("1K", "1 KB"), ("16K", "16 KB"), ("64K", "64 KB"))
            ),
            Row(
                "sockperf-sleep",
                "sockperf ping-pong, sleeping",
                latency,
                self._sockperf,
                lower_is_better=True,
                spin_us=0,
            ),
            Row(
                "sockperf-spin",
                "sockperf ping-pong, spinning",
                latency,
                self._sockperf,
                lower_is_better=True,
            ),
            Row("wget", f"nginx → wget, {SIZE // MIB} MiB", "MB/s", lambda: self._files.wget(self.watch)),
            Row("scp", f"scp over IPv6, {SCP_SIZE // MIB} MiB", "MB/s", lambda: self._files.scp(self.watch)),
            Row("redis-set", "redis-benchmark SET, 50 clients", "requests/s", self._redis("SET")),
            Row("redis-get", "redis-benchmark GET, 50 clients", "requests/s", self._redis("GET")),
            Row("go", f"static Go program, {GO_BYTES // MIB} MiB each way", "MB/s", self._go),
        ]

    def _iperf3(self, size: str) -> Callable[[], Run]:
        def run() -> Run:
            assert self._iperf3_server
            with self.watch.around():
                return programs.iperf3(self.stand.client, self.stand.server.ip4, size, SECONDS)

        return run

    @cached_property
    def _iperf3_server(self) -> object:
        return programs.iperf3_server(self.stand)

    @cached_property
    def _sockperf_server(self) -> object:
        return programs.sockperf_server(self.stand)

    def _sockperf(self) -> Run:
        assert self._sockperf_server
        with self.watch.around():
            return programs.sockperf(self.stand, SECONDS)

    @cached_property
    def _files(self) -> Files:
        return Files(self.stand)

    @cached_property
    def _redis_server(self) -> object:
        command = "redis-server --bind 0.0.0.0 --protected-mode no --save '' --appendonly no"
        return programs.serve(self.stand.server, command, 6379)

    def _redis(self, test: str) -> Callable[[], Run]:
        def run() -> Run:
            assert self._redis_server
            command = f"redis-benchmark -h {self.stand.server.ip4} -t {test.lower()} -n {REDIS_REQUESTS}"
            with self.watch.around():
                said = self.stand.client.run(f"{command} -c 50 --csv", timeout=90).out
            for line in said.splitlines():
                cells = line.split(",")
                if cells[0].strip('"').startswith(test):
                    return Run(float(cells[1].strip('"')))
            raise LabError(f"`{command}` printed no rate:\n{said}")

        return run

    @cached_property
    def _go_server(self) -> object:
        return programs.serve(self.stand.server, "/hallway/rawstream -listen :7000", 7000)

    def _go(self) -> Run:
        assert self._go_server
        with self.watch.around() as activity:
            return rawstream(self.stand.client, self.stand.server.ip4, activity)
