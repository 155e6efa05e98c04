# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A VM that libvirt runs, with the configuration and the hook of docs/migration.md, and one that stays."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hallway_lab import image, libvirt, paths, topology
from hallway_lab.libvirt import Domain, Libvirt
from hallway_lab.sh import run
from hallway_lab.vm import VM, Config
from hallway_tests.guests import AT_ONCE, insmod, settle_in, wait_members
from hallway_tests.pair import name_logs
from hallway_tests.suite import check

GUIDE = paths.REPO / "docs/migration.md"
RING = Path("/etc/hallway/ring0.xml")  # in the guide
PLACED = paths.RUN / "ring0.xml"  # where it is here
HEARD = paths.RUN / "another-hook"  # what the hook of another program was called for
REGION = Path("/dev/shm/hallway")


@dataclass
class Domains:
    """A VM that one of two libvirts runs, and one that stays."""

    moves: Domain
    stays: VM
    libvirts: tuple[Libvirt, Libvirt]


def written(mark: str) -> str:
    """Return the block of the guide that contains the mark."""
    chapter = GUIDE.read_text().split("\n## libvirt\n")[1].split("\n## ")[0]
    found = [block for block in re.findall(r"```\w+\n(.*?)```", chapter, re.S) if mark in block]
    check(len(found) == 1, f"{GUIDE}: {len(found)} blocks with {mark}")
    return found[0]


@contextlib.contextmanager
def booted(kernel: str, share: Path, logs: Path) -> Iterator[Domains]:
    """Run a daemon, two libvirts and both VMs for the length of the block."""
    ring = written("type='ivshmem-plain'")
    HEARD.unlink(missing_ok=True)
    shutil.rmtree(REGION, ignore_errors=True)  # the folder of another site
    daemon = topology.Daemon(region=REGION)
    daemon.log = logs / "hallwayd.log"
    options = {"kernel": kernel, "share": share}
    disk = Path(os.environ["TMPDIR"]) / "domain.qcow2"
    base = image.root_image(Config().image)
    run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", base, disk])
    hooks = {
        "hallway": written("#!/bin/sh").replace(str(RING), str(PLACED)),
        "another": f"#!/bin/sh\necho $2 >>{HEARD}\n",
    }
    with libvirt.running("here", hooks) as here, libvirt.running("there", hooks) as there:
        daemon.start()
        moves = Domain(Config(number=3, disk=disk, **options))
        moves.libvirt = here
        moves.doorbell = written("type='ivshmem-doorbell'")
        moves.words = "".join(re.findall(r"<qemu:arg .*?/>", written("<qemu:commandline>")))
        PLACED.write_text(libvirt.placed(ring))
        stays = VM(Config(number=2, doorbell=daemon.socket, **options))
        try:
            with name_logs(moves, logs), name_logs(stays, logs):
                for vm in (moves, stays):
                    settle_in(vm)
                    insmod(vm, **AT_ONCE)
                # A guest with the shared folder mounted cannot migrate.
                moves.run("umount /hallway")
                moves.attach(PLACED)
                stays.plug(daemon.region)
                wait_members(moves, stays)
                yield Domains(moves, stays, (here, there))
        finally:
            daemon.kill(15)
