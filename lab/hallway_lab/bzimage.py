# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The kernel within a bzImage: a guest under emulation takes seconds to unpack it."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

from .sh import LabError

TOOLS = {b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}  # by the first bytes of what is packed


def unpack(vmlinuz: Path) -> Path:
    """Return the ELF file of a bzImage, made at the first call; the bzImage itself if packed otherwise.

    QEMU starts it at its PVH entry (a note of the ELF file).
    """
    vmlinux = vmlinuz.with_name(vmlinuz.name.replace("vmlinuz", "vmlinux"))
    if not vmlinux.exists():
        packed = _payload(vmlinuz.read_bytes())
        tool = next((tool for magic, tool in TOOLS.items() if packed.startswith(magic)), None)
        if not tool:
            return vmlinuz
        done = subprocess.run([tool, "-dc"], input=packed, capture_output=True, check=False)
        if done.returncode or not done.stdout.startswith(b"\x7fELF"):
            raise LabError(f"{vmlinuz}: {tool} does not unpack it: {done.stderr.decode(errors='replace')}")
        new = vmlinux.with_suffix(".new")
        new.write_bytes(done.stdout)
        new.rename(vmlinux)
    return vmlinux


def _payload(image: bytes) -> bytes:
    """Return the packed kernel, without the unpacked size at its end (Linux' boot protocol 2.08)."""
    setup_sectors = image[0x1F1]
    offset, length = struct.unpack_from("<II", image, 0x248)
    begin = (setup_sectors + 1) * 512 + offset
    return image[begin : begin + length - 4]
