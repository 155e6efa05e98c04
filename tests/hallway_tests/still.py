# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A QEMU with a doorbell and stopped vCPUs: hello.py writes the requests of the guest's module."""

from __future__ import annotations

import uuid
from pathlib import Path


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
