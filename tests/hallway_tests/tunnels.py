# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Tunnels in guests: the module, and programs over AF_VSOCK."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from hallway_lab import programs
from hallway_lab.vm import VM, Job

from .guests import Delta, odd, share_folder, status
from .pair import Pair
from .suite import wait_for

PROGRAM = "python3 -B /hallway/guest/run.py tunnel"
DATAGRAMS = "python3 -B /hallway/guest/run.py datagrams"
PORT = 5000
FIRST_CID = 0x40000000  # of those that follow from UUIDs
KINDS = ("stream", "packet")
ALL_KINDS = (*KINDS, "datagram")

# It says how often send() did something after the peer's close() was known.
SENDER = """
import select, socket, sys
sys.path.append("/hallway/guest")
from tunnel import connect
sent = 0
for _ in range({tries}):
    with socket.socket(socket.AF_VSOCK, socket.SOCK_{kind}) as one:
        connect(one, {cid}, {port})
        poller = select.poll()
        poller.register(one, select.POLLRDHUP)
        poller.poll()
        try:
            sent += one.send(b"y")
        except BrokenPipeError:
            pass
        assert one.recv(1) == b"x"
print(sent)
"""

_numbers = count()


def prepare_ncat(kernel: str) -> None:
    """Lay out ncat for guests: see `needs`."""
    share_folder(kernel).mkdir(parents=True, exist_ok=True)
    programs.unpack_ncat(share_folder(kernel))


def load(vm: VM, *, prepare: str = "modprobe vsock", folder: str = "/hallway", **params: object) -> None:
    """Load the module of tunnels, after the core of AF_VSOCK."""
    words = " ".join(f"{name}={value}" for name, value in params.items())
    vm.run(f"{prepare} && insmod {folder}/hallway_vsock.ko {words}", first=True)


def send_to_closed(vm: VM, kind: str, cid: int, port: int, tries: int, timeout: float) -> int:
    """Call a server that sends a byte and closes; return how often send() then still did something."""
    sender = SENDER.format(kind=kind, cid=cid, port=port, tries=tries)
    return int(vm.run(f"python3 -c '{sender}'", timeout=timeout).out)


def loaded(vm: VM) -> bool:
    """Tell whether the module of tunnels is loaded."""
    return vm.run("test -d /sys/module/hallway_vsock", check=False, first=True).code == 0


def unload(*vms: VM) -> None:
    """Unload it: its last tunnels end once both sides have said so."""
    for vm in vms:
        wait_for(
            lambda: not loaded(vm) or not vm.run("rmmod hallway_vsock", check=False, first=True).code,  # noqa: B023
            f"{vm.name}: no tunnel is left",
        )


@contextmanager
def tunnels(pair: Pair, **params: object) -> Iterator[None]:
    """Have tunnels between both VMs for the length of the block."""
    for vm in pair.both:
        load(vm, **params)
    try:
        yield
        unload(*pair.both)
    finally:
        for vm in pair.both:
            programs = "pkill -KILL -f '[/]hallway/guest/run.py'; pkill -KILL -x 'socat|ncat|hallway'"
            vm.run(programs, check=False)
        unload(*pair.both)


def check(pair: Pair, delta: Delta) -> None:
    """Fail on corruption, on a sleeper that only the watchdog woke, and on a reset."""
    for vm in pair.both:
        assert not odd(delta.of(vm))
        assert not delta.of(vm)["tunnel_resets"]


def cid(vm: VM) -> int:
    """Return a VM's CID, as its own module tells it."""
    return next(member["cid"] for member in status(vm)["members"] if member["self"])


def run(vm: VM, words: str, timeout: float, program: str = PROGRAM) -> Any:
    """Run a program in a guest; return what it says."""
    return json.loads(vm.run(f"{program} {words}", timeout=timeout).out)


class Talk:
    """A program in a guest, in the background, with lines of input and of output."""

    def __init__(self, vm: VM, words: str, program: str = PROGRAM) -> None:
        self.vm, self.files, self._seen = vm, f"/tmp/talk{next(_numbers)}", 0
        vm.run(f"rm -f {self.files}.*; mkfifo {self.files}.in; touch {self.files}.out")
        self.job: Job = vm.spawn(
            f"exec {program} {words} <>{self.files}.in >{self.files}.out 2>{self.files}.err"
        )

    def say(self, line: str) -> None:
        """Write a line to its input."""
        self.vm.run(f"echo {line} >{self.files}.in")

    def hear(self, timeout: float = 60) -> str:
        """Wait for its next line of output."""

        def heard() -> list[str]:
            lines = self.vm.get(f"{self.files}.out").splitlines()
            if not lines[self._seen :] and self.job.poll():
                raise AssertionError(f"{self.job.command} has ended: {self.vm.get(f'{self.files}.err')}")
            return lines[self._seen :]

        lines = wait_for(heard, f"{self.job.command} says more", timeout)
        self._seen += 1
        assert isinstance(lines, list)
        return lines[0]

    def end(self) -> None:
        """Kill it."""
        self.job.kill(9)
        self.job.wait()


@contextmanager
def served(vm: VM) -> Iterator[None]:
    """Serve streams at PORT, and packets at the next one."""
    server = Talk(vm, f"serve {PORT}")
    try:
        assert server.hear() == "ready"
        yield
    finally:
        server.end()
