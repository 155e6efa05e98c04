# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A systemd of a test's own: in a root and namespaces of its own, it starts the project's units."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from hallway_lab import provision
from hallway_lab.sh import LabError, run

from . import hello, still
from .packages import Root
from .suite import wait_for

# Its first process goes into the cgroup first: what is below is all that the namespaces show.
ENTER = 'echo $$ > "$1/cgroup.procs"; shift; exec "$@"'
NAMESPACES = ("--mount", "--pid", "--cgroup", "--net", "--uts", "--ipc")
# Nothing of the machine's own can be changed: /proc/sys and /sys can only be read, there are no
# devices, and the capabilities for modules, clock and log are gone.
BOOT = """
set -e
mount --make-rprivate /
cd "$1"
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs tmpfs dev
for device in null zero full random urandom tty; do cp -a "/dev/$device" dev; done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t tmpfs tmpfs dev/shm
pivot_root . mnt
umount -l /mnt
exec env -i container=lab PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    setpriv --bounding-set -sys_module,-sys_time,-syslog \
    /lib/systemd/systemd --system --unit=sysinit.target
"""


HALLWAYD = "system.slice/hallwayd.service"  # its cgroup
MONITOR = "/run/vms/web1"  # of the QEMU that `start_qemu` starts


def prepare_nft(_kernel: str) -> None:
    """Have nftables' program: see `needs`."""
    provision.need("nftables")


class Systemd:
    """One that has booted. `root` and `cgroup`, its first one, are paths outside of that root."""

    def __init__(self, init: int, root: Path, cgroup: Path) -> None:
        self.root = root
        self._enter = ["nsenter", f"--target={init}", "--all", "--root", "--wd"]
        self.cgroup = cgroup

    def has_booted(self) -> bool:
        """Whether all that it starts by itself is up, or has failed."""
        said = self.run("systemctl", "is-system-running", check=False)
        return said.strip() in ("running", "degraded")

    def run(self, *words: str | Path, check: bool = True) -> str:
        """Run a program beside it."""
        return run([*self._enter, *words], check=check)

    def start(self, unit: str) -> None:
        """Start a unit, or start it again, and wait until it is up. An error has its log."""
        try:
            self.run("systemctl", "restart", unit)
        except LabError as error:
            log = self.run("journalctl", "--no-pager", f"--unit={unit}", check=False)
            raise AssertionError(f"{error}\n{log}") from error

    def pids(self, cgroup: str) -> list[int]:
        """Return the processes in a cgroup, which may be gone, by the numbers that this process knows."""
        try:
            text = (self.cgroup / cgroup / "cgroup.procs").read_text()
        except FileNotFoundError:
            return []
        return [int(pid) for pid in text.split()]

    def holders(self) -> list[int]:
        """Return the processes that keep what QEMUs have connected to."""
        found = []
        for pid in self.pids(HALLWAYD):
            # It may have ended since.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if b"--holder" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    found.append(pid)
        return found

    def start_qemu(self, vm: uuid.UUID, *, region: str) -> None:
        """Start a QEMU of another user, have its guest's module start, and wait for its region."""
        words = still.start_words(Path("/run/hallway"), Path(MONITOR), vm)
        user = ("--property=User=nobody", "--property=SupplementaryGroups=kvm")
        self.run("systemd-run", "--unit=qemu", *user, "--property=RuntimeDirectory=vms", *words)
        (qemu,) = self.pids("system.slice/qemu.service")
        wait_for(lambda: hello.memory(qemu, "hallway-page"), "hallwayd serves it")
        hello.say_hello(qemu, vm)
        wait_for(lambda: hello.memory(qemu, f"hallway-{region}"), "its region is plugged in")


def _remove(cgroup: Path) -> bool:
    """Remove a cgroup and those below. False: a process has not ended yet."""
    for folder, _, _ in os.walk(cgroup, topdown=False):
        try:
            os.rmdir(folder)
        except OSError:
            return False
    return True


def _hierarchy() -> Path:
    """Return where cgroups of version 2 are. A mount of its own would change that one's options."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(place)
    raise LabError("no cgroup2 is mounted: systemd cannot run here")


@contextlib.contextmanager
def boot(root: Root) -> Iterator[Systemd]:
    """Have one for the length of the block."""
    (root.path / "etc/fstab").write_text("")
    with contextlib.ExitStack() as stack:
        cgroup = Path(tempfile.mkdtemp(prefix="hallway-test-", dir=_hierarchy()))
        stack.callback(wait_for, lambda: _remove(cgroup), "its processes have ended")
        command = ["unshare", *NAMESPACES, "--fork", "--kill-child", "sh", "-c", BOOT, "boot", root.path]
        process = stack.enter_context(subprocess.Popen(["sh", "-c", ENTER, "enter", cgroup, *command]))
        stack.callback(process.kill)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        init = int(str(wait_for(lambda: children.read_text().strip(), "it has a process")))
        booted = Systemd(init, root.path, cgroup)
        wait_for(booted.has_booted, "systemd has booted", 60)
        yield booted
