# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Benchmarks within one kernel that is not emulated: what a call costs at the machine's own speed.

The kernel is one of User Mode Linux, with one CPU (see onekernel.py). Calls are made
within the kernel, where no system call is in the way, and from user space. There a system
call takes User Mode Linux several microseconds, so times are those above as many writes
to /dev/null.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hallway_lab import kernels, modbuild, paths, prepare
from hallway_lab.sample import Row
from hallway_lab.uml import Uml

from .compiling import compile_program
from .onekernel import ALWAYS, PROGRAM, SIZES, OneKernel, Stand

KERNEL, RUNNER = "uml", "User Mode Linux"
# Where calls are made, how rows say so, and what calls are called there.
PLACES = (
    ("kernel", "in the kernel", {"write": "sendmsg", "read": "recvmsg"}),
    ("user", "user space", {"write": "write", "read": "read"}),
)
TARGET = 1.0  # reads have none: TCP does a reader's work as it sends


class Native(OneKernel):
    """The scenarios within the kernel."""

    kind = "native"
    kernel = KERNEL
    runner = RUNNER

    def __init__(self, seconds: int) -> None:
        super().__init__(seconds)
        self.program = str(paths.out("bench", PROGRAM))

    def prepare(self, kernel: str) -> None:
        """Build the kernel, and what runs on it."""
        prepare.run_steps(
            [
                prepare.Step(f"kernel {KERNEL}", lambda: kernels.kernel(KERNEL)),
                prepare.module_step(KERNEL),
                prepare.Step("calls within the kernel", _build_module),
                prepare.host_step(),
            ]
        )
        compile_program(PROGRAM)

    @contextlib.contextmanager
    def standing(self, kernel: str) -> Iterator[Stand]:
        """Boot the kernel with the module."""
        with Uml() as uml:
            uml.run(f"insmod {_module('')} {ALWAYS}")
            uml.run(f"insmod {_module('-bench')}")
            self.stand = Stand(uml, uml, str(paths.REPO / "host/target/release/hallway"))
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
                yield self.make_row(
                    where, f"{text}: {name} of {words}", call, size, 0 if call == "read" else TARGET
                )
        yield self.make_row(where, f"{text}: round trip of 1 B, one thread", "trip", 1, TARGET)
        yield self.make_row(where, f"{text}: round trip of 1 B, asleep", "asleep", 1, TARGET)
        for size, words in SIZES:
            yield self.make_row(where, f"{text}: stream, writes of {words}", "stream", size, TARGET)


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
