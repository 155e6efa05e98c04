# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Rows of the demo's table over AF_VSOCK: the same program over TCP, and over a tunnel."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

from hallway_lab import measure, programs, tunnels
from hallway_lab.measure import Stand
from hallway_lab.programs import Run
from hallway_lab.sample import Row
from hallway_lab.sh import LabError

from .files import MIB
from .watch import Watch

PORT = 7100
SIZE = 16 * MIB
SECONDS = 2
LENGTH = 64  # bytes of a message of `hallway perf`
FILE, GOT, MESSAGES = "/tmp/tunnel", "/tmp/got", "/tmp/messages.py"


class Tunnels:
    """The programs between two VMs; `watch` watches the next run."""

    stand: Stand
    watch: Watch

    def __init__(self) -> None:
        self._servers = programs.Servers()

    @contextlib.contextmanager
    def standing(self, kernel: str) -> Iterator[Stand]:
        """Boot the VMs, with the module of tunnels."""
        with measure.standing(kernel) as self.stand:
            for vm in self.stand.vms:
                tunnels.load(vm)
                vm.put(Path(__file__).with_name("messages.py").read_text(), MESSAGES)
            yield self.stand

    def rows(self) -> list[Row]:
        """All rows, in the table's order."""
        size = f"{SIZE // MIB} MiB"
        trip = "µs, p50 of a round trip"
        return [
            Row("tunnel-socat", f"socat → socat, {size}", "MB/s", self._copy("socat -t 60 - {}")),
            Row("tunnel-ncat", f"ncat → socat, {size}", "MB/s", self._copy(f"{programs.NCAT} {{}}")),
            *(
                Row(f"tunnel-packet-{length}", f"Python, packets of {text}", "messages/s", self._rate(length))
                for length, text in ((64, "64 B"), (1024, "1 KB"), (16384, "16 KB"))
            ),
            Row(
                "tunnel-trip",
                "Python, packets of 64 B",
                trip,
                self._trip("tcp", "vsock"),
                lower_is_better=True,
            ),
            Row("tunnel-datagram", "Python, datagrams of 1 KB, UDP", "messages/s", self._datagrams),
            Row(
                "tunnel-datagram-trip",
                "Python, datagrams of 64 B, UDP",
                trip,
                self._trip("udp", "vsock-datagram"),
                lower_is_better=True,
            ),
            Row(
                "tunnel-perf-packet", "iperf3 → hallway perf, packets of 64 B", "messages/s", self._perf_rate
            ),
            Row(
                "tunnel-perf-trip",
                "sockperf → hallway perf, packets of 64 B",
                trip,
                self._perf_trip("tcp", "--packets", PORT + 2),
                lower_is_better=True,
            ),
            Row(
                "tunnel-perf-datagram",
                "sockperf → hallway perf, datagrams of 64 B, UDP",
                trip,
                self._perf_trip("udp", "--datagrams", PORT + 3),
                lower_is_better=True,
            ),
        ]

    @cached_property
    def _cid(self) -> int:
        return tunnels.cid(self.stand.server)

    @cached_property
    def _copy_server(self) -> str:
        """Return the digest of the file that the client sends."""
        client, server = self.stand.client, self.stand.server
        client.run(f"head -c {SIZE} /dev/urandom >{FILE}", timeout=120)
        answer = f"SYSTEM:'cat >{GOT}; echo done'"
        programs.serve(server, f"socat TCP-LISTEN:{PORT},fork,reuseaddr {answer}", PORT)
        programs.serve(server, f"socat VSOCK-LISTEN:{PORT},fork {answer}", PORT, sockets="--vsock")
        return client.run(f"sha256sum {FILE}", timeout=120).out.split()[0]

    def _copy(self, command: str) -> Callable[[], Run]:
        """Megabytes a second until the server has all, and says so."""
        ncat = command.startswith(programs.NCAT)

        def copy() -> Run:
            digest = self._copy_server
            if self.stand.on:
                place = f"--vsock {self._cid} {PORT}" if ncat else f"VSOCK-CONNECT:{self._cid}:{PORT}"
            else:
                address = self.stand.server.ip4
                place = f"{address} {PORT}" if ncat else f"TCP:{address}:{PORT}"
            script = f"begin=$(date +%s%N); {command.format(place)} <{FILE}; echo $(($(date +%s%N) - begin))"
            with self.watch.around():
                said = self.stand.client.run(script, timeout=120).out.split()
            if said[0] != "done":
                raise LabError(f"`{script}` printed {said}")
            arrived = self.stand.server.run(f"sha256sum {GOT}", timeout=120).out.split()[0]
            if arrived != digest:
                raise LabError(f"SHA-256 differs: {digest} was sent, {arrived} arrived")
            return Run(SIZE / 1e6 / (int(said[1]) / 1e9), up=SIZE)

        return copy

    @cached_property
    def _message_server(self) -> bool:
        # It listens for TCP first.
        programs.serve(self.stand.server, f"python3 {MESSAGES} serve {PORT + 1}", PORT + 1, sockets="--vsock")
        return True

    def _messages(self, words: str, off: str, on: str) -> list[float]:
        assert self._message_server
        place = f"{on} {self._cid}" if self.stand.on else f"{off} {self.stand.server.ip4}"
        command = f"python3 {MESSAGES} {words} {place} {PORT + 1}"
        with self.watch.around():
            said = self.stand.client.run(command, timeout=120).out
        return [float(word) for word in said.split()]

    def _rate(self, length: int) -> Callable[[], Run]:
        def rate() -> Run:
            value, count = self._messages(f"rate {length} {SECONDS}", "tcp", "vsock")
            return Run(value, up=int(count) * length)

        return rate

    def _datagrams(self) -> Run:
        value, count = self._messages(f"rate 1024 {SECONDS}", "udp", "vsock-datagram")
        return Run(value, up=int(count) * 1024)

    def _trip(self, off: str, on: str) -> Callable[[], Run]:
        def trip() -> Run:
            return Run(self._messages(f"trip 64 {SECONDS}", off, on)[0])

        return trip

    @cached_property
    def _iperf3_server(self) -> object:
        return programs.iperf3_server(self.stand)

    def _perf_rate(self) -> Run:
        """Messages a second; those of TCP are writes, which it may gather."""
        if not self.stand.on:
            assert self._iperf3_server
            with self.watch.around():
                run = programs.iperf3(self.stand.client, self.stand.server.ip4, str(LENGTH), SECONDS)
            return Run(run.value * 1e6 / LENGTH)
        count, rate = self._perf("--packets", PORT + 2, r"(\d+) messages .* s: (\d+) messages/s")
        return Run(rate, up=int(count) * LENGTH)

    @cached_property
    def _sockperf_servers(self) -> object:
        return [programs.sockperf_server(self.stand, protocol) for protocol in programs.SOCKPERF]

    def _perf_trip(self, protocol: str, kind: str, port: int) -> Callable[[], Run]:
        def trip() -> Run:
            if not self.stand.on:
                assert self._sockperf_servers
                with self.watch.around():
                    run = programs.sockperf(self.stand, SECONDS, LENGTH, protocol)
                return Run(2 * run.value)
            pattern = r"(\d+) round trips .* median ([\d.]+) us"
            count, median = self._perf(f"{kind} --round-trip", port, pattern)
            return Run(median, up=int(count) * LENGTH, down=int(count) * LENGTH)

        return trip

    def _perf(self, words: str, port: int, pattern: str) -> list[float]:
        kind = words.split()[0]
        self._servers.need(self.stand.server, f"hallway perf {kind} --serve {port}", port, sockets="--vsock")
        command = f"hallway perf {words} --size {LENGTH} --seconds {SECONDS} {self._cid}:{port}"
        with self.watch.around():
            said = self.stand.client.run(command, timeout=SECONDS + 60).out
        found = re.match(pattern, said)
        if not found:
            raise LabError(f"`{command}` printed {said}")
        return [float(word) for word in found.groups()]
