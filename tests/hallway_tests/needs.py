# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What tests need before they run: fetched and built once, before anything runs side by side.

A test with a kernel needs guests of that kernel. `pytest.mark.needs` names what
else a test needs:

    host              hallwayd and the CLI
    qemu NAME         that its guests boot on another QEMU (emulator.py), too
    image KIND        that its guests boot from another root disk (image.KINDS), too
    libvirt           libvirt, and what defines domains
    MODULE:FUNCTION   a function of tests/, called with the kernel's name ("" without one)

This runs before pytest is fetched: the module of a function does not import it.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from hallway_lab import libvirt
from hallway_lab.prepare import Step, guest_steps, host_step, run_steps
from hallway_lab.sh import LabError

from . import guests


def prepare(needs: Iterable[tuple[str, str]]) -> None:
    """Fetch and build what (kernel, word) pairs ask for."""
    steps = [step for kernel, word in needs for step in _steps(kernel, word)]
    if steps:
        run_steps(steps)


def _steps(kernel: str, word: str) -> list[Step]:
    kind, _, name = word.partition(" ")
    if kind == "guests":
        share = Step(f"module and programs for {kernel}", lambda: guests.share(kernel))
        return [*guest_steps(kernel), host_step(), share]
    if kind == "host":
        return [host_step()]
    if kind == "qemu":
        return guest_steps(kernel, qemu=name)
    if kind == "libvirt":
        return [Step("libvirt", libvirt.prepare)]
    if kind == "image":
        return guest_steps(kernel, name)
    module, _, function = word.partition(":")
    if module.rpartition(".")[2].startswith("test_"):
        raise LabError(f"{word}: a module of tests imports pytest, which is fetched later: move the function")
    return [Step(f"{word} {kernel}".strip(), lambda: getattr(import_module(module), function)(kernel))]
