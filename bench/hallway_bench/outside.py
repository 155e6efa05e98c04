# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Benchmarks between one VM and peers outside of it, with outsourcing on and off.

The first figures of "Fast Networking with Socket-Outsourcing" (Eiraku et al., SAC 2009) are of this
kind. With outsourcing off, all bytes pass the VM's NIC. Beside both, the same programs by passt, and
on the host itself in place of the VM.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Sequence

from hallway_lab import isolate, outsourcing, passt, paths, programs
from hallway_lab.outsourcing import HOST, NETNS, OUTSIDE, WIRE, Stand
from hallway_lab.programs import Run
from hallway_lab.results import figure
from hallway_lab.sample import Row, Samples
from hallway_lab.sh import run

from .group import Group
from .scenarios import CONNRATE_PORT, PINGPONG_PORT, STREAM_PORT

PORTS = {"stream": STREAM_PORT, "pingpong": PINGPONG_PORT, "connrate": CONNRATE_PORT}
# Ports of the host, above those of the VM: what passt forwards, and servers of the host.
BY_PASST, ON_HOST = 1000, 2000
RULES = f"publish = {json.dumps([f'tcp/{port}' for port in PORTS.values()])}"
# size of writes, its name, targets out of the VM and into it
WRITES = (
    (64, "64 B", 4.0, 2.0),
    (1 << 10, "1 KB", 3.0, 2.0),
    (16 << 10, "16 KB", 3.0, 2.0),
    (32 << 10, "32 KB", 3.0, 2.0),
    (64 << 10, "64 KB", 2.0, 2.0),
)


SPIN_US = 50
# What each row is faster than passt by, as the page says (hallway_lab.summary).
OF_PASST = 2.0
# What Fig. 6 of the paper says, of a guest on KVM and up to four NICs of 1 Gb/s: by size, out of it or not.
PAPER = {
    (1 << 10, True): "less than virtio",
    (32 << 10, True): "as native, ≈ 4 Gb/s",
    (32 << 10, False): "a little less than native",
}


def read_stream(said: dict[str, float], *, inward: bool = False) -> Run:
    """Return the result of `stream`: MB/s."""
    moved = int(said["bytes"])
    return Run(said["megabytes_per_second"], *((None, moved) if inward else (moved, None)))


def read_trips(said: dict[str, float]) -> Run:
    """Return the result of `pingpong`: µs."""
    trips = int(said["round_trips"])
    return Run(said["p50_us"], up=trips, down=trips)


class Outside(Group):
    """The scenarios between the VM and a namespace one wire away from the host's."""

    stand: Stand

    def __init__(self, seconds: int) -> None:
        super().__init__(seconds)
        self._started: set[tuple[str, str]] = set()
        self._spin_us = 0  # of the outsourcer

    def prepare(self, kernel: str) -> None:
        """Install passt."""
        passt.prepare()

    @contextlib.contextmanager
    def standing(self, kernel: str) -> Iterator[Stand]:
        """Boot the VM; it and the servers outside run until the end of the block."""
        forwarded = {port + BY_PASST: port for port in PORTS.values()}
        with outsourcing.standing(
            kernel, RULES, lambda: passt.running(WIRE, forwarded), extra=passt.NIC
        ) as self.stand:
            passt.set_up(self.stand.client)
            yield self.stand

    def rows(self) -> list[Row]:
        """All scenarios, in the report's order."""
        return [
            *(self._stream(False, size, text, target) for size, text, target, _ in WRITES),
            *(self._stream(True, size, text, target) for size, text, _, target in WRITES),
            self._round_trip("", "asleep", 0, 2.0),
            self._round_trip("-spin", "guest and outsourcer spin", SPIN_US, 20.0),
            self._connections(False),
            self._connections(True),
        ]

    def _stream(self, inward: bool, size: int, text: str, target: float) -> Row:
        words = f"{size} {self.seconds}"

        return self._row(
            "stream",
            inward,
            f"-{size}",
            f"stream, writes of {text}",
            "MB/s",
            words,
            functools.partial(read_stream, inward=inward),
            target,
            paper=PAPER.get((size, not inward), ""),
        )

    def _round_trip(self, key: str, text: str, spin_us: int, target: float) -> Row:
        title, words = f"round trip of 1 B, {text}", f"1 {self.seconds}"
        return self._row(
            "pingpong", False, key, title, "µs, p50", words, read_trips, target, lower=True, spin_us=spin_us
        )

    def _configure(self, spin_us: int) -> None:
        """Have the outsourcer look for work that long before it sleeps."""
        if spin_us != self._spin_us:
            self.stand.configure(RULES + f"\nspin-us = {spin_us}" * bool(spin_us))
            self._spin_us = spin_us

    def _connections(self, inward: bool) -> Row:
        return self._row(
            "connrate",
            inward,
            "",
            "connect + accept + close",
            "1/s",
            f"{self.seconds}",
            lambda said: Run(said["per_second"]),
            3.0,
            carries=False,
        )

    def is_met(self, samples: Samples, everything: Sequence[Samples]) -> bool:
        """Tell whether a row has what is promised, beside the NIC and beside passt."""
        passt, own = samples.beside.get("passt"), samples.hallway
        if not (super().is_met(samples, everything) and passt and own):
            return False
        better, worse = figure("", *own).median, figure("", *passt).median
        if samples.row.lower_is_better:
            better, worse = worse, better
        # passt may have done nothing at all.
        return better >= OF_PASST * worse

    def _row(
        self,
        program: str,
        inward: bool,
        suffix: str,
        text: str,
        unit: str,
        words: str,
        measure: Callable[[dict[str, float]], Run],
        target: float,
        *,
        lower: bool = False,
        carries: bool = True,
        paper: str = "",
        spin_us: int | None = None,
    ) -> Row:
        """Describe a row: inward, the client is outside, and the VM's server is published.

        spin_us: for how long the guest's readers spin, and the outsourcer; None: the module's default, and it
        does not.
        """
        return Row(
            key=f"outsource-{program}-{'in' if inward else 'out'}{suffix}",
            title=f"{'outside → VM' if inward else 'VM → outside'}: {text}",
            unit=unit,
            command=f"{program} -c ADDRESS {PORTS[program]} {words}",
            target=target,
            paper=paper,
            run=lambda: measure(self._call(program, inward, words)),
            lower_is_better=lower,
            spin_us=spin_us,
            carries=carries,
            settle=lambda _: self._configure(spin_us or 0),
            beside=(
                ("passt", lambda: measure(self._by_passt(program, inward, words))),
                ("native", lambda: measure(self._native(program, inward, words))),
            ),
        )

    def _call(self, program: str, inward: bool, words: str) -> dict[str, float]:
        self._serve(program, "VM" if inward else "outside")
        if inward:
            address = HOST if self.stand.on else self.stand.client.ip4
            return self._run(program, NETNS, address, PORTS[program], words)
        command = f"/hallway/{program} -c {OUTSIDE} {PORTS[program]} {words}"
        return json.loads(self.stand.client.run(command, timeout=self.seconds + 30).out)

    def _by_passt(self, program: str, inward: bool, words: str) -> dict[str, float]:
        with passt.routed(self.stand.client, OUTSIDE):
            if not inward:
                return self._call(program, inward, words)
            self._serve(program, "VM")
            return self._run(program, NETNS, HOST, PORTS[program] + BY_PASST, words)

    def _native(self, program: str, inward: bool, words: str) -> dict[str, float]:
        if not inward:
            self._serve(program, "outside")
            return self._run(program, None, OUTSIDE, PORTS[program], words)
        self._serve(program, "host", ON_HOST)
        return self._run(program, NETNS, HOST, PORTS[program] + ON_HOST, words)

    def _run(self, program: str, netns: str | None, address: str, port: int, words: str) -> dict[str, float]:
        """Run a client on the host, or outside."""
        call = [*isolate.on_host(netns), paths.out("bench", program), "-c", address, port, *words.split()]
        return json.loads(run([str(word) for word in call], timeout=self.seconds + 30))

    def _serve(self, program: str, where: str, more: int = 0) -> None:
        if (program, where) in self._started:
            return
        self._started.add((program, where))
        port = PORTS[program] + more
        if where == "VM":
            programs.serve(self.stand.client, f"/hallway/{program} -s {port}", port)
        else:
            words = [str(paths.out("bench", program)), "-s", str(port)]
            self.stand.serve(words, port, NETNS if where == "outside" else None)
