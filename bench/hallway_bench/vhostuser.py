# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Benchmarks of tunnels beside virtio-vsock between the same VMs, by vhost-device-vsock.

Its version 0.3 has streams alone, and hangs when siblings send much at once (rust-vmm/vhost-device,
issue 384), so there is one size of messages.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hallway_lab import measure, paths, tunnels, vhostvsock
from hallway_lab.measure import Stand
from hallway_lab.results import figure
from hallway_lab.sample import Row, Samples

from .tunnels import Tunnels

NUMBERS = (1, 2)
FIRST_CID = 10  # of the VM with number 0
SIZE = 64
SIBLING = vhostvsock.NAME
TIMES = {"1/s": 5.0, "µs, p50": 4.0}  # how much better than that, at least


class VhostUser(Tunnels):
    """The scenarios between two VMs that have both."""

    sibling_cid = FIRST_CID + NUMBERS[1]

    def prepare(self, kernel: str) -> None:
        """Build the device, once."""
        vhostvsock.prepare(kernel)

    @contextlib.contextmanager
    def standing(self, kernel: str) -> Iterator[Stand]:
        """Boot the VMs, with virtio-vsock from the host and tunnels between them."""
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            log, cids = paths.out("bench", f"{SIBLING}.log"), (FIRST_CID + number for number in NUMBERS)
            stack.enter_context(vhostvsock.serving(folder, log, *cids))

            def plugged(number: int) -> dict[str, Any]:
                return {"extra": vhostvsock.plug(folder, FIRST_CID + number)}

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
