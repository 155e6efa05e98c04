# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Benchmarks of tunnels: programs over AF_VSOCK between two VMs, and over TCP.

With Hallway off each row is TCP's, with TCP_NODELAY: a message that waits for the next
one is none. In rows that say so, TCP may gather messages. Beside messages (SOCK_SEQPACKET):
bytes over a tunnel (SOCK_STREAM), messages over AF_UNIX between two programs of one VM, and
TCP that Hallway carries. The round trip over the size of a message is Figure 4 of "IDTS:
Inter-domain Tunnel Scheduling" (see docs/tunnels.md).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

from hallway_lab import measure, tunnels
from hallway_lab.measure import Stand
from hallway_lab.programs import Run
from hallway_lab.results import figure
from hallway_lab.sample import Row, Samples
from hallway_lab.sh import LabError

from .group import Group
from .scenarios import CONNRATE_PORT, PINGPONG_PORT, STREAM_PORT

PORTS = {"stream": STREAM_PORT, "pingpong": PINGPONG_PORT, "connrate": CONNRATE_PORT}
# Of kinds of sockets (programs/common.h): what is added to the port, and where `ss` lists the listener.
KINDS = {
    "tcp": (0, "--tcp"),
    "vsock": (100, "--vsock"),
    "packet": (200, "--vsock"),
    "unix": (300, "-x"),
    "sibling": (500, "--vsock"),
    "udp": (600, "--udp"),
    "datagram": (700, ""),  # `ss` lists none
}
PACKETS_PORT = STREAM_PORT + KINDS["packet"][0]
# size of messages, its name, target
MESSAGES = ((64, "64 B", 5.0), (1 << 10, "1 KB", 5.0), (16 << 10, "16 KB", 4.0))
GATHERED = 3.0  # target where TCP gathers messages
DATAGRAMS = ((64, "64 B"), (1 << 10, "1 KB"), (16 << 10, "16 KB"))
MANY = 8  # programs that send datagrams at once
FAIR = 0.8  # of its fair share each of these sends at least
TRIPS = ((1, "1 B"), (64, "64 B"), (1 << 10, "1 KB"), (4 << 10, "4 KB"), (16 << 10, "16 KB"))
# Of messages in ring memory: how much better than copied ones they are, at least; 0: any.
LOANS = ((4 << 10, "4 KB", 0.0), (64 << 10, "64 KB", 1.5))
LOANS_PORT = STREAM_PORT + 400
OF_STREAM = 0.7  # messages carry this part of what bytes do, at least
RATE = 1000  # connections a second, at least
STREAM, UNIX, RINGS, COPIED = "stream", "AF_UNIX", "TCP on rings", "copied"  # what is beside


class Tunnels(Group):
    """The scenarios between two VMs; servers start when needed."""

    kind = "tunnels"
    stand: Stand
    sibling_cid = 0  # of the server, by virtio-vsock; see vhostuser.py

    @contextlib.contextmanager
    def standing(self, kernel: str) -> Iterator[Stand]:
        """Boot the VMs, with the module of tunnels."""
        with measure.standing(kernel) as self.stand:
            for vm in self.stand.vms:
                tunnels.load(vm)
            yield self.stand

    def rows(self) -> list[Row]:
        """All scenarios, in the report's order."""
        return [
            *(self._messages(size, text, target) for size, text, target in MESSAGES),
            *(self._messages(size, text, GATHERED, gathers=True) for size, text, _ in MESSAGES),
            *(self._round_trip("sleep", size, text, 0, 4.0) for size, text in TRIPS),
            self._round_trip("spin", 1, "1 B", None, 30.0),
            self._connections(),
            *(self._datagrams(size, text) for size, text in DATAGRAMS),
            self._datagrams(64, "64 B", MANY),
            *(self._loans(size, text) for size, text, _ in LOANS),
        ]

    def is_met(self, samples: Samples, everything: Sequence[Samples]) -> bool:
        """Tell whether a row has what is promised."""
        if not super().is_met(samples, everything):
            return False
        median = figure("", *samples.hallway).median
        if samples.row.key.endswith(f"-of-{MANY}"):
            return median >= FAIR
        if samples.row.key == "tunnel-connect":
            return median >= RATE
        if COPIED in dict(samples.row.beside):
            copied = samples.beside.get(COPIED)
            least = next(least for size, _, least in LOANS if samples.row.key == f"tunnel-loan-{size}")
            return bool(copied) and median >= least * figure("", *copied).median
        if STREAM not in dict(samples.row.beside):
            return True
        stream = samples.beside.get(STREAM)
        return bool(stream) and median >= OF_STREAM * figure("", *stream).median

    def send(self, kind: str, size: int, *, gathers: bool = False) -> Run:
        """Send messages for a while: how many a second."""
        said = self._ask("stream", kind, f"{size} {self.seconds}", gathers=gathers)
        return Run(said["megabytes_per_second"] * 1e6 / size, up=int(said["bytes"]))

    def trip(self, kind: str, size: int) -> Run:
        """Have messages sent back, one at a time: how long that takes."""
        said = self._ask("pingpong", kind, f"{size} {self.seconds}")
        moved = int(said["round_trips"]) * size
        return Run(said["p50_us"], up=moved, down=moved)

    def _messages(self, size: int, text: str, target: float, *, gathers: bool = False) -> Row:
        def run(kind: str) -> Run:
            return self.send(kind, size, gathers=gathers)

        beside = (
            (STREAM, lambda: run("vsock")),
            (UNIX, lambda: run("unix")),
            (RINGS, self._on_rings(run)),
        )
        return Row(
            f"tunnel-{'gathered' if gathers else 'packets'}-{size}",
            f"messages of {text}{', TCP gathers' * gathers}",
            "1/s",
            self.switched(run),
            f"stream -c packet:CID PORT {size} {self.seconds}",
            target,
            beside=() if gathers else beside,
        )

    def _round_trip(self, key: str, size: int, text: str, spin_us: int | None, target: float) -> Row:
        def run(kind: str) -> Run:
            return self.trip(kind, size)

        return Row(
            f"tunnel-trip-{key}-{size}",
            f"round trip of {text}, receivers {'spin' if key == 'spin' else 'asleep'}",
            "µs, p50",
            self.switched(run),
            f"pingpong -c packet:CID PORT {size} {self.seconds}",
            target,
            lower_is_better=True,
            spin_us=spin_us,
            beside=((UNIX, lambda: run("unix")), (RINGS, self._on_rings(run))),
        )

    def _loans(self, size: int, text: str) -> Row:
        """Compare messages in ring memory with copied ones; the programs write and read each byte."""

        def run(how: str) -> Run:
            server = self.stand.server
            self._servers.need(server, f"/hallway/loan -s {LOANS_PORT}", LOANS_PORT, "--vsock")
            command = f"/hallway/loan -c {how} {self._cid} {LOANS_PORT} {size} {self.seconds}"
            said = json.loads(self.stand.client.run(command, timeout=self.seconds + 60).out)
            return Run(said["megabytes_per_second"], up=int(said["bytes"]))

        def lend() -> Run:
            if self.stand.on:
                return run("lent")
            said = self._ask("stream", "tcp", f"{size} {self.seconds}")
            return Run(said["megabytes_per_second"], up=int(said["bytes"]))

        return Row(
            f"tunnel-loan-{size}",
            f"messages of {text} in ring memory",
            "MB/s",
            lend,
            f"loan -c lent CID PORT {size} {self.seconds}",
            beside=((COPIED, lambda: run("copied")),),
        )

    def _datagrams(self, size: int, text: str, clients: int = 1) -> Row:
        """Compare datagrams that arrive with those of UDP; or how evenly several programs send them."""

        def run() -> Run:
            kind, where = ("datagram", self._cid) if self.stand.on else ("udp", self.stand.server.ip4)
            more, sockets = KINDS[kind]
            port = STREAM_PORT + more
            self._servers.need(self.stand.server, f"/hallway/datagrams -s {kind}:{port}", port, sockets)
            command = f"/hallway/datagrams -c {kind}:{where} {port} {size} {self.seconds} {clients}"
            before = self._count_received()
            said = json.loads(self.stand.client.run(command, timeout=self.seconds + 60).out)
            if self.stand.on and self._count_received() - before < said["arrived"]:
                raise LabError(f"not all of {said['arrived']} datagrams came through rings")
            if clients > 1:
                return Run(said["least_share"])
            return Run(said["arrived_per_second"], more={"arrived of sent": said["arrived"] / said["sent"]})

        return Row(
            f"tunnel-datagrams-{size}{f'-of-{clients}' * (clients > 1)}",
            f"datagrams of {text}" + f", {clients} programs: least part of a fair share" * (clients > 1),
            "1/s" if clients == 1 else "",
            run,
            f"datagrams -c datagram:CID PORT {size} {self.seconds} {clients}",
            0 if clients > 1 else 1.0,
            carries=False,
        )

    def _count_received(self) -> int:
        counted = json.loads(self.stand.server.run("hallway counters --json").out)
        return int(counted["tunnel_datagrams_received"])

    def _connections(self) -> Row:
        def run(kind: str) -> Run:
            return Run(
                self._ask("connrate", "vsock" if kind == "packet" else kind, f"{self.seconds}")["per_second"]
            )

        return Row(
            "tunnel-connect",
            "connect + accept + close",
            "1/s",
            self.switched(run),
            f"connrate -c vsock:CID PORT {self.seconds}",
            carries=False,
        )

    def switched(self, run: Callable[[str], Run]) -> Callable[[], Run]:
        """Return tunnels' way with Hallway on, and TCP's with it off."""
        return lambda: run("packet" if self.stand.on else "tcp")

    def _on_rings(self, run: Callable[[str], Run]) -> Callable[[], Run]:
        """Return TCP's way with Hallway on."""

        def go() -> Run:
            self.stand.switch(True)
            return run("tcp")

        return go

    def _ask(self, program: str, kind: str, words: str, *, gathers: bool = False) -> dict[str, float]:
        """Run a client against a server of that kind; return what it said. `gathers`: TCP may."""
        more, sockets = KINDS[kind]
        port = PORTS[program] + more
        vm = self.stand.client if kind == "unix" else self.stand.server
        self._servers.need(vm, f"/hallway/{program} -s {kind}:{port}", port, sockets)
        tcp = "nodelay" if program == "stream" and not gathers else "tcp"
        cid = self.sibling_cid if kind == "sibling" else self._cid
        where = {"tcp": f"{tcp}:{self.stand.server.ip4}", "unix": "unix:"}.get(kind, f"{kind}:{cid}")
        command = f"/hallway/{program} -c {where} {port} {words}"
        return json.loads(self.stand.client.run(command, timeout=self.seconds + 60).out)

    @cached_property
    def _cid(self) -> int:
        return tunnels.cid(self.stand.server)
