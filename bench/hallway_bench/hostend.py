# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Benchmarks of tunnels between a VM and its host, and over TCP by the VM's NIC.

Figures 5 and 6 of "IDTS: Inter-domain Tunnel Scheduling" (see docs/tunnels.md) are of this kind. On the
host programs have Unix sockets, and `hallway-host` moves the bytes between these and rings.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from hallway_lab import hostend, paths
from hallway_lab.hostend import CID, HostStand
from hallway_lab.programs import Run
from hallway_lab.sample import Row
from hallway_lab.sh import run

from .group import Group
from .scenarios import STREAM_PORT
from .tunnels import KINDS, MESSAGES, STREAM

GATEWAY = "10.77.0.254"  # the host, on the VM's network
TARGET = 5.0
IDTS = "IDTS: ≈ 5×"


class HostEnd(Group):
    """The scenarios between the VM and its host; servers start when needed."""

    kind = "tunnels"
    stand: HostStand

    def __init__(self, seconds: int) -> None:
        super().__init__(seconds)
        self._listening: set[int] = set()

    @contextlib.contextmanager
    def standing(self, kernel: str) -> Iterator[HostStand]:
        """Boot the VM, with the module of tunnels."""
        with hostend.standing(kernel) as self.stand:
            yield self.stand

    def rows(self) -> list[Row]:
        """All scenarios, in the report's order."""
        return [self._messages(inward, size, text) for inward in (False, True) for size, text, _ in MESSAGES]

    def _messages(self, inward: bool, size: int, text: str) -> Row:
        words = f"{size} {self.seconds}"

        def run(is_stream: bool) -> Run:
            said = json.loads((self._into_vm if inward else self._out_of_vm)(words, is_stream))
            moved = int(said["bytes"])
            return Run(
                said["megabytes_per_second"] * 1e6 / size, *((None, moved) if inward else (moved, None))
            )

        def stream() -> Run:
            self.stand.switch(True)
            return run(True)

        return Row(
            f"tunnel-host-{'in' if inward else 'out'}-{size}",
            f"{'host → VM' if inward else 'VM → host'}: messages of {text}",
            "1/s",
            lambda: run(False),
            f"stream -c {'file:PATH' if inward else 'packet:CID'} PORT {words}",
            TARGET,
            paper=IDTS,
            beside=((STREAM, stream),),
        )

    def _out_of_vm(self, words: str, is_stream: bool) -> str:
        kind = "vsock" if is_stream else "packet"
        port = STREAM_PORT + KINDS[kind][0] if self.stand.on else STREAM_PORT
        self._listen(port, "file-stream" if is_stream else "file")
        where = f"{kind}:{CID}" if self.stand.on else f"nodelay:{GATEWAY}"
        command = f"/hallway/stream -c {where} {port} {words}"
        return self.stand.client.run(command, timeout=self.seconds + 60).out

    def _listen(self, port: int, kind: str) -> None:
        """Have a server on the host for what is on, or for what is off."""
        if port in self._listening:
            return
        self._listening.add(port)
        program = str(paths.out("bench", "stream"))
        if self.stand.on:
            path = hostend.listened(port)
            self.stand.listen([program, "-s", f"{kind}:{path}"], path)
        else:
            self.stand.serve([program, "-s", str(port)], port, None)

    def _into_vm(self, words: str, is_stream: bool) -> str:
        vm = self.stand.client
        if self.stand.on:
            kind, file, path = (
                ("vsock", "file-stream", hostend.PATH) if is_stream else ("packet", "file", hostend.packets())
            )
            port = STREAM_PORT + KINDS[kind][0]
            self._servers.need(vm, f"/hallway/stream -s {kind}:{port}", port, "--vsock")
            where = [f"{file}:{path}", str(port)]
        else:
            self._servers.need(vm, f"/hallway/stream -s {STREAM_PORT}", STREAM_PORT)
            where = [f"nodelay:{vm.ip4}", str(STREAM_PORT)]
        program = str(paths.out("bench", "stream"))
        return run([program, "-c", *where, *words.split()], timeout=self.seconds + 60)
