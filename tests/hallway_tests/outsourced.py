# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A VM with an outsourcer, as tests have it: its module, its host, and what the host says of it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hallway_lab import outsourcing, topology
from hallway_lab.outsourcing import HOST, has_arrived
from hallway_lab.sh import run
from hallway_lab.vm import VM

from .guests import Delta, healthy, insmod, loaded, rmmod, settle_in
from .pair import name_logs, sweep
from .suite import wait_for

# Talks for ever, on a connection for 50 messages each: meanwhile they may be native ones. Counts those that
# fail, too.
TALKER = """
import os, socket, sys, time
count = failed = 0
while True:
    try:
        sock = socket.create_connection((sys.argv[1], int(sys.argv[2])), 20)
        data = bytes(range(256)) * 40
        for _ in range(50):
            sock.sendall(data)
            got = bytearray()
            while len(got) < len(data):
                piece = sock.recv(65536)
                if not piece:
                    raise ConnectionError("end")
                got += piece
            assert got == data, "other bytes came than were sent"
            count += 1
            with open(sys.argv[3] + ".new", "w") as file:
                file.write(f"{count} {failed}")
            os.replace(sys.argv[3] + ".new", sys.argv[3])
    except OSError:
        failed += 1
        time.sleep(0.02)
"""
# "poll" after its address and port has it sleep in select() instead of accept().
ECHO = """
import select, socket, sys, threading
def serve(sock):
    try:
        while piece := sock.recv(65536):
            sock.sendall(piece)
    except OSError:
        pass
    sock.close()
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
while True:
    if sys.argv[3:] == ["poll"]:
        select.select([listener], [], [])
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
PUBLISH = f'publish = ["tcp/8080", "tcp/8081={HOST}:8181", "udp/7030"]'


@dataclass
class Outsourced:
    """A VM with an outsourcer, and a network outside of its host."""

    site: topology.Site
    vm: VM
    slow: float  # factor on all timeouts

    @property
    def vms(self) -> list[VM]:
        """Every VM."""
        return self.site.vms

    def healthy(self) -> None:
        """Fail if the guest complained."""
        healthy(self.vm)

    def sweep(self) -> None:
        """End what a failed test has left running in the guest."""
        sweep(self.vm)

    def report(self) -> dict:
        """Return what the host says of the VM's outsourcer; nothing if there is none."""
        return self.site.daemon.machine(self.vm).get("outsourcer", {})

    @contextlib.contextmanager
    def configured(self, rules: str) -> Iterator[None]:
        """Have other rules in the block: hallwayd is killed and started with them, and so at the end."""
        config = self.site.daemon.config
        assert config
        before = config.read_text()
        self._restart(before.replace(PUBLISH, rules))
        yield
        self._restart(before)

    def _restart(self, config: str) -> None:
        daemon = self.site.daemon
        assert daemon.config
        daemon.kill()
        daemon.config.write_text(config)
        daemon.start()

    def outsourcer(self) -> int | None:
        """Return the process that executes the VM's sockets."""
        return self.report().get("pid")

    def kill_outsourcer(self) -> None:
        """Kill it, and wait for the next one."""
        pid = self.outsourcer()
        assert pid
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: self.outsourcer() not in (None, pid), "there is another", 30)

    def wait_outsourced(self, count: int) -> None:
        """Wait until outsourced sockets have sent that many bytes more."""
        before = Delta(self.vm)
        wait_for(
            lambda: before.of(self.vm)["tx_bytes_outsourced"] > count,
            f"{count} bytes are sent",
            60 * self.slow,
        )

    def channels(self) -> int:
        """Return how many channels the guest has, as the host sees it."""
        members = [m for region in self.site.daemon.status()["regions"] for m in region["members"]]
        return sum(member["channels"] for member in members if member["uuid"] == self.vm.uuid)

    def load(self, **params: object) -> None:
        """Load the module again, and wait for the outsourcer."""
        if loaded(self.vm):
            rmmod(self.vm)
        self.vm.run("dmesg -C")
        insmod(self.vm, **params)
        wait_for(lambda: has_arrived(self.vm), "the outsourcer arrives", 60 * self.slow)


@contextlib.contextmanager
def booted(kernel: str, share: Path, logs: Path, slow: float, **options: object) -> Iterator[Outsourced]:
    """Boot the VM, with a daemon and a network outside, for the length of the block. Options go to the VM."""
    site, vm = outsourcing.describe(logs, kernel, share=share, boot_timeout=120 * slow, **options)
    site.daemon.log = logs / "hallwayd.log"
    site.daemon.log.write_bytes(b"")
    with outsourcing.running(site, name_logs(vm, logs), PUBLISH):
        settle_in(vm)
        yield Outsourced(site, vm, slow)


def is_published(port: int, kind: str = "t") -> bool:
    """Tell whether something on the host has the port of TCP (t) or UDP (u)."""
    return bool(run(["ss", f"-Hln{kind}", f"sport = :{port}"]).strip())


def wait_published(*ports: int) -> None:
    """Wait until all these ports are published."""
    wait_for(lambda: all(map(is_published, ports)), f"{ports} are published")


def waits(vm: VM, name: str, place: str) -> bool:
    """Tell whether a thread of that name waits in that function of the guest's kernel."""
    command = f"grep -lx {place} /proc/[0-9]*/task/*/wchan | sed s/wchan$/comm/ | xargs -r grep -h ^{name}"
    return bool(vm.run(command, check=False).out)
