# SPDX-License-Identifier: Apache-2.0 OR MIT
"""KVM where a stock guest really boots with it, else TCG.

/dev/kvm may open, and even run instructions, and yet hang a stock kernel
(nested or filtered KVM). So the probe is a boot, with a time limit; its
answer holds until the machine itself reboots.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from . import emulator, image, kernels, paths
from .sh import say

LIMIT = 15


@cache
def name() -> str:
    """Return 'kvm' or 'tcg'; HALLWAY_ACCEL in the environment overrides."""
    forced = os.environ.get("HALLWAY_ACCEL")
    if forced in ("kvm", "tcg"):
        return forced
    with paths.lock("accel"):
        return _remembered_probe()


def arguments() -> list[str]:
    """Return QEMU's words for accelerator and CPU."""
    if name() == "kvm":
        return ["-accel", "kvm", "-cpu", "host"]
    return ["-accel", "tcg", "-cpu", "qemu64"]


def _remembered_probe() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    note = paths.cache("accel")
    if note.exists():
        known, _, answer = note.read_text().partition(" ")
        if known == boot and answer in ("kvm", "tcg"):
            return answer
    answer = "kvm" if _boots_with_kvm() else "tcg"
    note.write_text(f"{boot} {answer}")
    return answer


def _boots_with_kvm() -> bool:
    try:
        os.close(os.open("/dev/kvm", os.O_RDWR))
    except OSError as refusal:
        say(f"no KVM: {refusal.strerror}")
        return False
    say(f"trying a boot with KVM (at most {LIMIT} s)")
    kernel = kernels.kernel("6.1")
    qemu = emulator.emulator("distro")
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch, "serial")
        words = [*qemu.command, "-nodefaults", "-display", "none", "-no-reboot", "-m", "512"]
        words += ["-accel", "kvm", "-cpu", "host", "-serial", f"file:{log}"]
        words += ["-kernel", str(kernel.vmlinuz), "-initrd", str(image.initramfs(kernel))]
        # the initramfs finds no disk and gives up: the panic then ends QEMU
        words += ["-append", "console=ttyS0 panic=-1 lab.probe"]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(words, timeout=LIMIT, capture_output=True, check=False)
        booted = log.exists() and b"lab: probe" in log.read_bytes()
    say("KVM works" if booted else "KVM does not boot a stock kernel here: using TCG")
    return booted
