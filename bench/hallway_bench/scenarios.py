"""What is measured, by which program, and which ratio is promised.

The targets are those of two VMs under TCG with one CPU each; with another
accelerator they are printed all the same, for comparison.

Streams are measured twice: by iperf3, and by a program that does nothing but
write and read. iperf3 polls before each of its reads, which are as small as
the writes; with 64 bytes that costs more than TCP does.
"""

from __future__ import annotations

import json
from functools import cached_property

from hallway_lab import programs
from hallway_lab.measure import Stand
from hallway_lab.programs import Run
from hallway_lab.sample import Row

PINGPONG_PORT, CONNRATE_PORT, STREAM_PORT = 7001, 7002, 7003
# size of writes, its name, target
WRITES = ((64, "64 B", 5.0), (1 << 10, "1 KB", 8.0), (16 << 10, "16 KB", 3.5), (64 << 10, "64 KB", 3.5))


class Scenarios:
    """The scenarios between the two VMs of a stand; servers start when needed."""

    def __init__(self, stand: Stand, seconds: int) -> None:
        self.stand, self.seconds = stand, seconds

    def all(self) -> list[Row]:
        """All scenarios, in the report's order."""
        spin = self.stand.spin_default
        return [
            *(self._stream(size, text, target) for size, text, target in WRITES),
            *(self._iperf3(size, text, target) for size, text, target in WRITES),
            self._round_trip("sleep", "receivers asleep", 0, 4.0),
            self._round_trip("spin", f"receivers spin ≤ {spin} µs", None, 30.0),
            self._connections(),
        ]

    def _stream(self, size: int, text: str, target: float) -> Row:
        arguments = f"-c {self.stand.server.ip4} {STREAM_PORT} {size} {self.seconds}"

        def run() -> Run:
            assert self._stream_server
            report = self._ask(f"/hallway/stream {arguments}")
            return Run(report["megabytes_per_second"], up=int(report["bytes"]))

        command = f"stream {arguments}"
        return Row(f"stream-{size}", f"stream, writes of {text}", "MB/s", run, command, target)

    def _iperf3(self, size: int, text: str, target: float) -> Row:
        def run() -> Run:
            assert self._iperf3_server
            return programs.iperf3(self.stand, str(size), self.seconds)

        command = f"iperf3 -c {self.stand.server.ip4} -l {size} -t {self.seconds}"
        return Row(f"iperf3-{size}", f"iperf3, writes of {text}", "MB/s", run, command, target)

    def _round_trip(self, key: str, text: str, spin_us: int | None, target: float) -> Row:
        arguments = f"-c {self.stand.server.ip4} {PINGPONG_PORT} 1 {self.seconds}"

        def run() -> Run:
            assert self._pingpong_server
            report = self._ask(f"/hallway/pingpong {arguments}")
            trips = report["round_trips"]
            return Run(report["p50_us"], up=int(trips), down=int(trips))

        return Row(
            key=f"trip-{key}",
            title=f"round trip of 1 B, {text}",
            unit="µs, p50",
            command=f"pingpong {arguments}",
            target=target,
            run=run,
            lower_is_better=True,
            spin_us=spin_us,
        )

    def _connections(self) -> Row:
        arguments = f"-c {self.stand.server.ip4} {CONNRATE_PORT} {self.seconds}"

        def run() -> Run:
            assert self._connrate_server
            return Run(self._ask(f"/hallway/connrate {arguments}")["per_second"])

        return Row(
            key="connect",
            title="connect + accept + close",
            unit="1/s",
            command=f"connrate {arguments}",
            target=0.9,
            run=run,
            carries=False,
        )

    def _ask(self, command: str) -> dict[str, float]:
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
    def _connrate_server(self) -> object:
        return programs.serve(self.stand.server, f"/hallway/connrate -s {CONNRATE_PORT}", CONNRATE_PORT)
