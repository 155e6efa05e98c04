# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A QEMU with a doorbell and stopped vCPUs: a test writes the requests of the guest's module."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import uuid
from pathlib import Path

from .suite import wait_for

# The private page, in abi/hallway/region.h: its first request, and the reply.
REQUEST, REPLY = 64, 192
HELLO = 3
MAJOR = 8  # offset of the version that the daemon speaks


def start_words(run: Path, monitor: Path, vm: uuid.UUID) -> list[str]:
    """Return the command that starts one, with a monitor."""
    return [
        *(
            "qemu-system-x86_64",
            "-S",
            "-nodefaults",
            "-display",
            "none",
            "-uuid",
            str(vm),
        ),
        *("-qmp", f"unix:{monitor},server=on,wait=off"),
        *("-chardev", f"socket,id=hd,path={run}/hallwayd.sock"),
        *("-device", "ivshmem-doorbell,chardev=hd,vectors=1,master=on"),
    ]


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
        # The daemon looks each second.
        wait_for(
            lambda: struct.unpack_from("<II", page, REPLY) == (1, 0),
            "hallwayd answers",
            20,
        )
