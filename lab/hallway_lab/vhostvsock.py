# SPDX-License-Identifier: Apache-2.0 OR MIT
"""virtio-vsock between VMs, by vhost-device-vsock.

That is a device of rust-vmm, in a process of the host: VMs of one of its groups reach each other by
AF_VSOCK.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from . import paths
from .sh import LabError, run, step

NAME = "vhost-device-vsock"
VERSION = "0.3.0"
START = 10  # seconds


def _device() -> Path:
    return paths.cache(f"{NAME}-{VERSION}") / "bin" / NAME


def prepare(_kernel: str) -> None:
    """Build the device, once, for guests of any kernel."""
    if _device().exists():
        return
    with paths.lock(NAME), step(f"building {NAME} {VERSION}"):
        target = ["--root", _device().parents[1], "--target-dir", paths.cache(f"{NAME}-build")]
        run(["cargo", "install", "--locked", "--quiet", "--version", VERSION, *target, NAME])


def plug(folder: Path, cid: int) -> list[str]:
    """Return the words of a QEMU with the device, which reads its memory."""
    memory = "memory-backend-memfd,id=ram,size=1024M,share=on"
    socket = f"socket,id=vsock,path={folder}/{cid}.sock"
    return [
        *("-object", memory, "-numa", "node,memdev=ram"),
        *("-chardev", socket, "-device", "vhost-user-vsock-pci,chardev=vsock,disable-legacy=on"),
    ]


@contextlib.contextmanager
def serving(folder: Path, log_path: Path, *cids: int) -> Iterator[None]:
    """Run the device for VMs of these CIDs, as one group, with its sockets in the folder."""
    words = []
    for cid in cids:
        place = f"socket={folder}/{cid}.sock,uds-path={folder}/{cid}.uds"
        words += ["--vm", f"guest-cid={cid},{place},groups=all"]
    with open(log_path, "w") as log:
        process = subprocess.Popen([str(_device()), *words], stderr=log)
        try:
            deadline = time.monotonic() + START
            while not all((folder / f"{cid}.sock").exists() for cid in cids):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise LabError(f"{NAME} does not serve: see {log_path}")
                time.sleep(0.05)
            yield
        finally:
            process.kill()
            process.wait()
