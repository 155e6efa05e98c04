# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Benchmarks of tunnels beside virtio-vsock between the same VMs, by vhost-device-vsock.

That is a device of rust-vmm, in a process of the host: VMs of one of its groups reach each other by
AF_VSOCK. Its version 0.3 has streams alone, and hangs when siblings send much at once (rust-vmm/vhost-device,
issue 384), so there is one size of messages.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hallway_lab import measure, paths, tunnels
from hallway_lab.measure import Stand
from hallway_lab.results import figure
from hallway_lab.sample import Row, Samples
from hallway_lab.sh import LabError, run, step

from .tunnels import Tunnels

VERSION = "0.3.0"
NUMBERS = (1, 2)
FIRST_CID = 10  # of the VM with number 0
SIZE = 64
SIBLING = "vhost-device-vsock"
TIMES = {"1/s": 5.0, "µs, p50": 4.0}  # how much better than that, at least
START = 10  # seconds


def _device() -> Path:
    return paths.cache(f"{SIBLING}-{VERSION}") / "bin" / SIBLING


class VhostUser(Tunnels):
    """The scenarios between two VMs that have both."""

    sibling_cid = FIRST_CID + NUMBERS[1]

    def prepare(self, kernel: str) -> None:
        """Build the device, once."""
        if _device().exists():
            return
        with paths.lock(SIBLING), step(f"building {SIBLING} {VERSION}"):
            target = ["--root", _device().parents[1], "--target-dir", paths.cache(f"{SIBLING}-build")]
            run(["cargo", "install", "--locked", "--quiet", "--version", VERSION, *target, SIBLING])

    @contextlib.contextmanager
    def standing(self, kernel: str) -> Iterator[Stand]:
        """Boot the VMs, with virtio-vsock from the host and tunnels between them."""
        with tempfile.TemporaryDirectory() as folder, _serving(Path(folder)):

            def plugged(number: int) -> dict[str, Any]:
                return {"extra": _plug(Path(folder), number)}

            with measure.standing(kernel, each=plugged) as self.stand:
                for vm in self.stand.vms:
                    vm.run("modprobe vmw_vsock_virtio_transport")
                    tunnels.load(vm)
                yield self.stand

    def rows(self) -> list[Row]:
        """All scenarios, in the report's order."""
        return [
            Row(
                f"tunnel-vhost-packets-{SIZE}",
                f"messages of {SIZE} B, beside {SIBLING}",
                "1/s",
                self.switched(lambda kind: self.send(kind, SIZE)),
                f"stream -c packet:CID PORT {SIZE} {self.seconds}",
                beside=((SIBLING, lambda: self.send("sibling", SIZE)),),
            ),
            Row(
                f"tunnel-vhost-trip-{SIZE}",
                f"round trip of {SIZE} B, asleep, beside {SIBLING}",
                "µs, p50",
                self.switched(lambda kind: self.trip(kind, SIZE)),
                f"pingpong -c packet:CID PORT {SIZE} {self.seconds}",
                lower_is_better=True,
                spin_us=0,
                beside=((SIBLING, lambda: self.trip("sibling", SIZE)),),
            ),
        ]

    def is_met(self, samples: Samples, everything: Sequence[Samples]) -> bool:
        """Tell whether tunnels are as much better than the device as is promised."""
        theirs = samples.beside.get(SIBLING)
        if not theirs or not samples.hallway:
            return False
        ours, theirs_median = figure("", *samples.hallway).median, figure("", *theirs).median
        times = theirs_median / ours if samples.row.lower_is_better else ours / theirs_median
        return times >= TIMES[samples.row.unit]


def _plug(folder: Path, number: int) -> list[str]:
    """Return the words of a QEMU with the device, which reads its memory."""
    memory = "memory-backend-memfd,id=ram,size=1024M,share=on"
    socket = f"socket,id=vsock,path={folder}/{number}.sock"
    return [
        *("-object", memory, "-numa", "node,memdev=ram"),
        *("-chardev", socket, "-device", "vhost-user-vsock-pci,chardev=vsock,disable-legacy=on"),
    ]


@contextlib.contextmanager
def _serving(folder: Path) -> Iterator[None]:
    """Run the device for both VMs, as one group."""
    words = []
    for number in NUMBERS:
        place = f"socket={folder}/{number}.sock,uds-path={folder}/{number}.uds"
        words += ["--vm", f"guest-cid={FIRST_CID + number},{place},groups=both"]
    with open(paths.out("bench", f"{SIBLING}.log"), "w") as log:
        process = subprocess.Popen([str(_device()), *words], stderr=log)
        try:
            deadline = time.monotonic() + START
            while not all((folder / f"{number}.sock").exists() for number in NUMBERS):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise LabError(f"{SIBLING} does not serve: see {log.name}")
                time.sleep(0.05)
            yield
        finally:
            process.kill()
            process.wait()
