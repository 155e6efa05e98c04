"""A VM that libvirt runs and migrates, with the words and the hook that the documents give its users."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hallway_lab import image, libvirt, paths, topology
from hallway_lab.libvirt import Domain, Libvirt
from hallway_lab.sh import run
from hallway_lab.vm import VM, Config
from hallway_tests.guests import Delta, Stream, healthy, insmod, members, odd, settle_in, wait_members
from hallway_tests.pair import count_on_rings, name_logs
from hallway_tests.suite import check, wait_for

from .scenario import Outcome, Scenario, Setting
from .stage import AT_ONCE

GUIDE = paths.REPO / "docs/migration.md"
RING = Path("/etc/hallway/ring0.xml")
STREAMS = 4
PLACED = paths.RUN / "ring0.xml"  # what the guide has at RING, for a place that the lab leaves free
AWAY = 3  # seconds for which a VM is saved


def written(mark: str) -> str:
    """Return the block of the guide that contains the mark."""
    chapter = GUIDE.read_text().split("\n## libvirt\n")[1].split("\n## ")[0]
    found = [block for block in re.findall(r"```\n(.*?)```", chapter, re.S) if mark in block]
    check(len(found) == 1, f"{GUIDE}: {len(found)} blocks with {mark}")
    return found[0]


@dataclass
class Stage:
    """A VM that one of two libvirts runs, and another one that stays."""

    domain: Domain
    stays: VM
    libvirts: tuple[Libvirt, Libvirt]


@contextlib.contextmanager
def pair(setting: Setting) -> Iterator[Stage]:
    """Boot both."""
    ring = written("type='ivshmem-plain'")
    region = Path("/dev/shm/hallway")
    shutil.rmtree(region, ignore_errors=True)  # the folder of the stages before
    daemon = topology.Daemon(region=region)
    options = {"kernel": setting.kernel, "share": setting.share}
    logs = setting.logs / "libvirt"
    disk = Path(os.environ["TMPDIR"]) / "domain.qcow2"
    base = image.root_image(Config().image)
    run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", base, disk])
    hook = written("#!/bin/sh").replace(str(RING), str(PLACED))
    with libvirt.running("here", hook) as here, libvirt.running("there", hook) as there:
        daemon.start()
        domain = Domain(Config(number=3, disk=disk, **options))
        domain.libvirt = here
        domain.doorbell = written("type='ivshmem-doorbell'")
        domain.words = "".join(re.findall(r"<qemu:arg .*?/>", written("<qemu:commandline>")))
        PLACED.write_text(libvirt.placed(ring))
        stays = VM(Config(number=2, doorbell=daemon.socket, **options))
        try:
            with name_logs(domain, logs), name_logs(stays, logs):
                for vm in (domain, stays):
                    settle_in(vm)
                    insmod(vm, **AT_ONCE)
                domain.run("umount /hallway")
                domain.attach(PLACED)
                stays.plug(daemon.region)
                wait_members(domain, stays)
                yield Stage(domain, stays, (here, there))
        finally:
            daemon.kill(15)


def restores(stage: Stage, outcome: Outcome) -> None:
    """It is saved and restored under load; the hook gives it its ring memory back."""
    saved = Path(os.environ["TMPDIR"]) / "domain.saved"

    def away(_number: int) -> None:
        stage.domain.save(saved)
        time.sleep(AWAY)  # that it is away is the point
        stage.domain.restore(saved)

    _comes_back(stage, outcome, away)


def migrates(stage: Stage, outcome: Outcome) -> None:
    """It migrates under load, there and back; the hook of where it comes to gives it ring memory."""
    here, there = stage.libvirts
    _comes_back(stage, outcome, lambda number: stage.domain.migrate(here if number % 2 else there))


def _comes_back(stage: Stage, outcome: Outcome, away: Callable[[int], None]) -> None:
    """Have it go away in each round, without ring memory, and come back."""
    domain, stays = stage.domain, stage.stays
    delta = Delta(domain, stays)
    stream = Stream(stays, domain, conns=STREAMS, both="--stall 90")
    _on_rings(stage)
    for number in outcome.rounds():
        domain.detach(PLACED)
        check(domain.ip4 not in members(stays), f"{stays.name} still has it as a member")
        away(number)
        with outcome.timed("on rings again after"):
            _on_rings(stage)
        stream.check_running(f"in round {number}")
    stream.stop()
    stream.finish(60)
    for vm in (domain, stays):
        moved = delta.of(vm)
        found = odd(moved, watchdog=False)
        check(not found and not moved["resets"], f"{vm.name}: {found} {moved['resets']}")
        check(moved["tx_bytes_ring"], f"{vm.name} sent nothing through rings")
        outcome.ring_bytes += moved["tx_bytes_ring"]
    healthy(domain, stays)


def _on_rings(stage: Stage) -> None:
    wait_for(lambda: count_on_rings(stage.stays, stage.domain) == STREAMS, "all are on rings", 90)


# The distribution's QEMU, which its libvirt is made for, runs no guest with a newer one here.
SCENARIOS = (
    Scenario("libvirt-restores", "virsh save and restore, with the hook", 20, pair, restores),
    Scenario("libvirt-migrates", "virsh migrate there, or back, with the hook", 20, pair, migrates),
)
