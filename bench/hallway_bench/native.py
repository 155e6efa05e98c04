"""Benchmarks within one kernel that is not emulated: what a call costs at the machine's own speed.

The kernel is one of User Mode Linux, with one CPU, and the module's loopback transport
carries connections to 127.0.0.1. Beside TCP and rings: AF_UNIX and pipes. Calls are made
within the kernel, where no system call is in the way, and from user space. There a system
call takes User Mode Linux several microseconds, so times are those above as many writes
to /dev/null.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hallway_lab import kernels, modbuild, paths, prepare
from hallway_lab.measure import COUNTED, Direction, Traffic, direction
from hallway_lab.programs import Run
from hallway_lab.sample import Row
from hallway_lab.uml import Uml

from .compiling import compile_program
from .group import Group

KERNEL, RUNNER = "uml", "User Mode Linux"
PROGRAM = "native"
UNIX, PIPE = "AF_UNIX", "pipe"
SIZES = ((64, "64 B"), (1 << 10, "1 KB"), (16 << 10, "16 KB"), (64 << 10, "64 KB"))
# Where calls are made, how rows say so, and what calls are called there.
PLACES = (
    ("kernel", "in the kernel", {"write": "sendmsg", "read": "recvmsg"}),
    ("user", "user space", {"write": "write", "read": "read"}),
)
TARGET = 1.0  # reads have none: TCP does a reader's work as it sends


class Stand:
    """The kernel with the module, which carries its own connections."""

    def __init__(self, uml: Uml) -> None:
        self.site = self.client = uml

    def switch(self, on: bool) -> None:
        """Turn Hallway on or off."""
        self.client.run(f"{_hallway()} {'on' if on else 'off'}")

    def spin(self, microseconds: int | None = None) -> None:
        """Leave it: readers of connections within a kernel do not spin."""

    @contextlib.contextmanager
    def meter(self) -> Iterator[Traffic]:
        """Count the bytes of what happens in the block: those of both directions are one."""
        before = self._counters()
        traffic = Traffic()
        yield traffic
        after = self._counters()
        moved = {name: after[name] - before[name] for name in COUNTED}
        traffic.up, traffic.down = direction(moved, moved), Direction(0, 0, 0, 0, 0)

    def _counters(self) -> dict[str, int]:
        return json.loads(self.client.run(f"{_hallway()} counters --json").out)


class Native(Group):
    """The scenarios within the kernel."""

    kind = "native"
    kernel = KERNEL
    runner = RUNNER
    stand: Stand

    @contextlib.contextmanager
    def standing(self, kernel: str) -> Iterator[Stand]:
        """Boot the kernel with the module."""
        with Uml() as uml:
            uml.run(f"insmod {_module('')} loopback=1 promote_bytes=0 promote_ms=0")
            uml.run(f"insmod {_module('-bench')}")
            self.stand = Stand(uml)
            yield self.stand
            uml.run("rmmod inkernel hallway")

    def rows(self) -> list[Row]:
        """All scenarios, in the report's order."""
        return [row for place in PLACES for row in self._rows(*place)]

    def facts(self, stand: Stand) -> dict[str, Any]:
        """Return what figures were measured on."""
        model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
        return {
            "accelerator": RUNNER,
            "cpu": model[1] if model else platform.machine(),
            "guest_kernel": stand.client.kernel.version,
            "guest_cpus": 1,
            "host_cpus": len(os.sched_getaffinity(0)),
            "host_kernel": platform.release(),
        }

    def _rows(self, where: str, text: str, calls: dict[str, str]) -> Iterator[Row]:
        for call, name in calls.items():
            for size, words in SIZES:
                yield self._row(
                    where, f"{text}: {name} of {words}", call, size, 0 if call == "read" else TARGET
                )
        yield self._row(where, f"{text}: round trip of 1 B, one thread", "trip", 1, TARGET)
        yield self._row(where, f"{text}: round trip of 1 B, asleep", "asleep", 1, TARGET)
        for size, words in SIZES:
            yield self._row(where, f"{text}: stream, writes of {words}", "stream", size, TARGET)

    def _row(self, where: str, title: str, operation: str, size: int, target: float) -> Row:
        def go(carrier: str) -> Run:
            words = f"{where} {carrier} {operation} {size} {self.seconds}"
            said = json.loads(
                self.stand.client.run(f"{paths.out('bench', PROGRAM)} {words}", timeout=self.seconds + 60).out
            )
            value = said["megabytes_per_second" if operation == "stream" else "ns"]
            return Run(value, up=said["bytes"])

        return Row(
            key=f"native-{where}-{operation}-{size}",
            title=title,
            unit="MB/s" if operation == "stream" else "ns",
            run=functools.partial(go, "tcp"),
            command=f"{PROGRAM} {where} CARRIER {operation} {size} {self.seconds}",
            target=target,
            lower_is_better=operation != "stream",
            beside=((UNIX, functools.partial(go, "unix")), (PIPE, functools.partial(go, "pipe"))),
        )


def make_ready() -> None:
    """Prepare what the kernel needs."""
    prepare.run_steps(
        [
            prepare.Step(f"kernel {KERNEL}", lambda: kernels.kernel(KERNEL)),
            prepare.module_step(KERNEL),
            prepare.Step("calls within the kernel", _build_module),
            prepare.host_step(),
        ]
    )
    compile_program(PROGRAM)


def describe(facts: dict[str, Any]) -> str:
    """Return in some lines what figures were measured on."""
    return (
        f"{RUNNER} {facts['guest_kernel']}, one CPU, at native speed: {facts['cpu']},"
        f" {facts['host_cpus']} CPUs.\nNot in it: SMP, preemption, IPv6, packet filters, LSMs. All barriers"
        " are full fences, also where a kernel for x86 has none.\nTimes from user space are those above as"
        " many writes to /dev/null."
    )


def _build_module() -> Path:
    return modbuild.build_module(paths.REPO / "bench/module", kernels.kernel(KERNEL), label="-bench")


def _module(label: str) -> Path:
    folder = paths.out("build", f"{KERNEL}{label}")
    return folder / ("module/inkernel.ko" if label else "kmod/hallway.ko")


def _hallway() -> Path:
    return paths.REPO / "host/target/release/hallway"
