# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Writes the request that a guest's module sends when it starts: for QEMUs with stopped vCPUs.

A program, too, for the lab's hosts of VMs: hello.py PID UUID
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import sys
import time
import uuid
from pathlib import Path

# The private page, in abi/hallway/region.h: its first request, and the reply.
REQUEST, REPLY = 64, 192
HELLO = 3
MAJOR = 8  # offset of the version that the daemon speaks
PATIENCE = 60  # seconds; the daemon looks each second


def memory(pid: int, name: str) -> list[Path]:
    """Return the descriptors of a process that are anonymous memory of that name."""
    found = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        # QEMU may have closed it since.
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(fd) == f"/memfd:{name} (deleted)":
                found.append(fd)
    return found


def say_hello(pid: int, vm: uuid.UUID) -> None:
    """Do what the module of a guest does when it starts."""
    with (
        open(memory(pid, "hallway-page")[0], "r+b") as file,
        mmap.mmap(file.fileno(), 4096) as page,
    ):
        page[REQUEST + 4 : REQUEST + 6] = page[MAJOR : MAJOR + 2]
        struct.pack_into("<I", page, REQUEST + 8, HELLO)
        page[REQUEST + 32 : REQUEST + 48] = vm.bytes
        struct.pack_into("<I", page, REQUEST, 1)
        deadline = time.monotonic() + PATIENCE
        while struct.unpack_from("<II", page, REPLY) != (1, 0):
            if time.monotonic() > deadline:
                raise TimeoutError(f"hallwayd does not answer QEMU {pid}")
            time.sleep(0.05)


if __name__ == "__main__":
    say_hello(int(sys.argv[1]), uuid.UUID(sys.argv[2]))
