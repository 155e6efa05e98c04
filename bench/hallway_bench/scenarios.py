# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What is measured, by which program, and which ratio is promised.

The targets are those of two VMs under TCG with one CPU each; with another
accelerator they are printed all the same, for comparison.

Streams are measured twice: by iperf3, and by a program that does nothing but
write and read. iperf3 polls before each of its reads, which are as small as
the writes; with 64 bytes that costs more than TCP does.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from functools import cached_property

from hallway_lab import measure, nvme, programs, topology
from hallway_lab.measure import Stand
from hallway_lab.programs import Run
from hallway_lab.sample import Row
from hallway_lab.sh import LabError

from . import bounds
from .bounds import BOUND, DOORBELLS
from .group import Group

PINGPONG_PORT, CONNRATE_PORT, STREAM_PORT = 7001, 7002, 7003
READERS = 4  # of a disk, at once
# size of a disk's blocks, its name, target
BLOCKS = ((4 << 10, "4 KB", 2.0), (128 << 10, "128 KB", 2.0))
# size of writes, its name, target
WRITES = ((64, "64 B", 5.0), (1 << 10, "1 KB", 8.0), (16 << 10, "16 KB", 3.5), (64 << 10, "64 KB", 3.5))


class Scenarios(Group):
    """The scenarios between two VMs; servers start when needed."""

    stand: Stand

    def prepare(self, kernel: str) -> None:
        """Build what measures doorbells."""
        self._doorbells = bounds.build_doorbells(kernel)

    @contextlib.contextmanager
    def standing(self, kernel: str) -> Iterator[Stand]:
        """Boot the VMs."""
        shutil.copy(self._doorbells, topology.share_folder(kernel))
        with measure.standing(kernel) as self.stand, contextlib.ExitStack() as self._ending:
            yield self.stand

    def rows(self) -> list[Row]:
        """All scenarios, in the report's order."""
        return [
            *(self._stream(size, text, target) for size, text, target in WRITES),
            *(self._iperf3(size, text, target) for size, text, target in WRITES),
            self._round_trip("sleep", "receivers asleep", 0, 4.0, "wake"),
            self._round_trip("spin", "receivers spin", None, 30.0, "line"),
            self._connections(),
            *(self._disk(size, text, target) for size, text, target in BLOCKS),
        ]

    def _stream(self, size: int, text: str, target: float) -> Row:
        words = f"{STREAM_PORT} {size} {self.seconds}"

        def run() -> Run:
            assert self._stream_server
            report = self._ask("stream", words)
            return Run(report["megabytes_per_second"], up=int(report["bytes"]))

        return Row(
            key=f"stream-{size}",
            title=f"stream, writes of {text}",
            unit="MB/s",
            command=f"stream -c ADDRESS {words}",
            target=target,
            run=run,
            beside=((BOUND, lambda: bounds.copies(self.stand.client, size, self.seconds)),),
        )

    def _iperf3(self, size: int, text: str, target: float) -> Row:
        def run() -> Run:
            assert self._iperf3_server
            return programs.iperf3(self.stand.client, self.stand.server.ip4, str(size), self.seconds)

        command = f"iperf3 -c ADDRESS -l {size} -t {self.seconds}"
        return Row(f"iperf3-{size}", f"iperf3, writes of {text}", "MB/s", run, command, target)

    def _round_trip(self, key: str, text: str, spin_us: int | None, target: float, bound: str) -> Row:
        words = f"{PINGPONG_PORT} 1 {self.seconds}"
        beside: list[tuple[str, Callable[[], Run]]] = [
            (BOUND, lambda: bounds.trips_on_host(bound, self.seconds))
        ]
        # A receiver that spins needs none.
        if spin_us is not None:
            beside.append((DOORBELLS, lambda: bounds.doorbells(self.stand)))

        def run() -> Run:
            assert self._pingpong_server
            report = self._ask("pingpong", words)
            trips = report["round_trips"]
            slow = {"p99, µs": report["p99_us"]}
            return Run(report["p50_us"], up=int(trips), down=int(trips), more=slow)

        return Row(
            key=f"trip-{key}",
            title=f"round trip of 1 B, {text}",
            unit="µs, p50",
            command=f"pingpong -c ADDRESS {words}",
            target=target,
            run=run,
            lower_is_better=True,
            spin_us=spin_us,
            beside=tuple(beside),
        )

    def _connections(self) -> Row:
        words = f"{CONNRATE_PORT} {self.seconds}"

        def run() -> Run:
            assert self._connrate_server
            return Run(self._ask("connrate", words)["per_second"])

        return Row(
            key="connect",
            title="connect + accept + close",
            unit="1/s",
            command=f"connrate -c ADDRESS {words}",
            target=0.9,
            run=run,
            carries=False,
        )

    def _disk(self, size: int, text: str, target: float) -> Row:
        words = f"{size} {READERS} {self.seconds}"

        def run() -> Run:
            command = f"/hallway/disk {self._nvme} {words}"
            report = json.loads(self.stand.client.run(command, timeout=self.seconds + 30).out)
            return Run(report["megabytes_per_second"], down=int(report["bytes"]))

        return Row(
            key=f"disk-{size}",
            title=f"NVMe over TCP, reads of {text}",
            unit="MB/s",
            command=f"disk {nvme.DISK} {words}",
            target=target,
            run=run,
            settle=self._settle_disk,
        )

    def _settle_disk(self, on: bool) -> None:
        """Use the disk until its connection, which stays, is on rings; or, with Hallway off, once."""
        deadline = time.monotonic() + 20
        while True:
            self.stand.client.run(f"/hallway/disk {self._nvme} 65536 1 0.1")
            ways = [
                {one["tx"]["via"], one["rx"]["via"]}
                for one in json.loads(self.stand.client.run("hallway connections --json").out)
                if one["remote_port"] == nvme.PORT
            ]
            if not on or {"ring"} in ways:
                return
            if time.monotonic() > deadline:
                raise LabError(f"the disk's connection is on no rings: {ways}")

    def _ask(self, program: str, words: str) -> dict[str, float]:
        command = f"/hallway/{program} -c {self.stand.server.ip4} {words}"
        return json.loads(self.stand.client.run(command, timeout=self.seconds + 30).out)

    @cached_property
    def _iperf3_server(self) -> object:
        return programs.iperf3_server(self.stand)

    @cached_property
    def _stream_server(self) -> object:
        return programs.serve(self.stand.server, f"/hallway/stream -s {STREAM_PORT}", STREAM_PORT)

    @cached_property
    def _pingpong_server(self) -> object:
        return programs.serve(self.stand.server, f"/hallway/pingpong -s {PINGPONG_PORT}", PINGPONG_PORT)

    @cached_property
    def _nvme(self) -> str:
        return self._ending.enter_context(nvme.disk(self.stand.server, self.stand.client))

    @cached_property
    def _connrate_server(self) -> object:
        return programs.serve(self.stand.server, f"/hallway/connrate -s {CONNRATE_PORT}", CONNRATE_PORT)
