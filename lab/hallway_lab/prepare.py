# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Everything that a run needs, fetched and built before anything runs side by side.

A run names what it uses as steps; `run_steps` takes each step once, in order,
and says how far it is. What is in the cache already costs nothing. A run that
starts with an empty cache does here, and only here, what needs the network.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from . import accel, emulator, image, kernels, modbuild, paths
from .sh import LabError, run, say


@dataclass(frozen=True)
class Step:
    """One thing to fetch or build; steps of one title are the same thing."""

    title: str
    action: Callable[[], object] = field(compare=False)


def run_steps(steps: Iterable[Step]) -> None:
    """Take each step once, in order, with progress and elapsed time."""
    begin = time.monotonic()
    different = list(dict.fromkeys(steps))
    for number, step in enumerate(different, 1):
        elapsed = time.monotonic() - begin
        say(f"prepare {number}/{len(different)}: {step.title} ({elapsed:.0f} s so far)")
        step.action()
    say(f"prepared in {time.monotonic() - begin:.0f} s")


def guest_steps(kernel: str, image_kind: str = "basic", qemu: str | None = None) -> list[Step]:
    """Return the steps for guests that boot a kernel from an image, on its own QEMU or on that one."""
    chosen = qemu or emulator.name_for_kernel(kernel)
    return [
        Step(f"kernel {kernel}", lambda: _fetch_bootable(kernel)),
        Step(f"QEMU of {chosen}", lambda: emulator.emulator(chosen)),
        Step(f"image {image_kind}", lambda: image.root_image(image_kind)),
        Step("accelerator", accel.name),
    ]


def _fetch_bootable(name: str) -> None:
    found = kernels.kernel(name)
    image.modules_image(found)
    image.initramfs(found)


def module_step(kernel: str) -> Step:
    """Return the step that builds the module."""
    return Step(f"module for {kernel}", lambda: modbuild.build(kernel))


def host_step() -> Step:
    """Return the step that builds daemon and CLI."""
    return Step("daemon and CLI", build_host)


def build_host() -> Path:
    """Build daemon and CLI; return the folder that holds them."""
    if not shutil.which("cargo"):
        raise LabError("cargo is not installed: run `./lab/run setup`")
    with paths.lock("host"):
        run(["cargo", "build", "--release", "--locked"], cwd=paths.REPO / "host")
    return paths.REPO / "host/target/release"
