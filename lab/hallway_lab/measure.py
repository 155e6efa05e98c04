# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Measuring between two VMs: Hallway on or off, and which carrier had how many bytes.

The module of each guest counts the bytes of its attached connections by
carrier and direction. A measurement reads these counters in both guests
before and after: a program that says how fast it was has its bytes compared
with what went through rings.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol, TypeVar

from . import accel, isolate, topology
from .prepare import guest_steps, host_step, module_step, run_steps
from .sh import LabError
from .vm import VM

COUNTED = (
    "tx_bytes_ring",
    "tx_bytes_tcp",
    "tx_bytes_unread",
    "tx_bytes_resent",
    "tx_bytes_tunnel",
    "rx_bytes_ring",
    "rx_bytes_tcp",
    "rx_bytes_requeued",
    "rx_bytes_tunnel",
)
SPIN = "/sys/module/hallway/parameters/spin_us"


@dataclass(frozen=True)
class Times:
    """Ticks of a guest's CPUs."""

    own: int  # in which they ran programs, not the kernel
    idle: int
    all: int

    @classmethod
    def parse(cls, line: str) -> Times:
        """Return those since the boot, from the first line of /proc/stat."""
        # Those that follow are parts of these, or the host's.
        user, nice, system, idle, iowait, irq, softirq = map(int, line.splitlines()[0].split()[1:8])
        return cls(user + nice, idle + iowait, user + nice + system + idle + iowait + irq + softirq)

    def __sub__(self, before: Times) -> Times:
        return Times(self.own - before.own, self.idle - before.idle, self.all - before.all)

    @property
    def busy(self) -> float:
        """The part of the time in which they ran."""
        return (self.all - self.idle) / max(self.all, 1)


@dataclass(frozen=True)
class Direction:
    """Bytes of one direction, as its sender and its receiver counted them."""

    sent_ring: int
    sent_tcp: int
    received_ring: int
    received_tcp: int
    unread: int  # in the ring when the receiver closed it

    @property
    def sent(self) -> int:
        """All bytes that the sender's attached connections took."""
        return self.sent_ring + self.sent_tcp

    @property
    def received(self) -> int:
        """All bytes that the receiver's programs read."""
        return self.received_ring + self.received_tcp


@dataclass
class Traffic:
    """What both guests counted during a measurement; filled in at its end."""

    up: Direction = field(default_factory=lambda: Direction(0, 0, 0, 0, 0))  # client to server
    down: Direction = field(default_factory=lambda: Direction(0, 0, 0, 0, 0))


class Keyed(Protocol):
    """A thing to measure, with a short name."""

    key: str


T = TypeVar("T", bound=Keyed)


class Switchable(Protocol):
    """VMs with the module, which may carry bytes in either of two ways."""

    def switch(self, on: bool) -> None:
        """Turn ours on or off."""

    def spin(self, microseconds: int | None = None) -> None:
        """Set how long receivers spin before they sleep; None is the default."""

    def meter(self) -> contextlib.AbstractContextManager[Traffic]:
        """Count the bytes of what happens in the block."""


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add the option that chooses what is measured."""
    parser.add_argument(
        "-k", default="", metavar="EXPRESSION", help="only what matches, as with pytest: 'stream or trip'"
    )


def chosen(
    options: argparse.Namespace, everything: Sequence[T], name: Callable[[T], str] = attrgetter("key")
) -> list[T]:
    """Return what the command line chooses by name, which is the key without another one."""
    try:
        found = [one for one in everything if matches(options.k, name(one))]
    except SyntaxError:
        raise LabError(f"-k {options.k}: words, `and`, `or`, `not` and parentheses are meant") from None
    if not found:
        raise LabError(f"-k {options.k}: the keys are {', '.join(one.key for one in everything)}")
    return found


def matches(expression: str, key: str) -> bool:
    """Tell whether a key matches an expression of pytest's -k: each word is a part of the key."""

    def truth(word: re.Match[str]) -> str:
        return word[0] if word[0] in ("and", "or", "not") else str(word[0].lower() in key.lower())

    # Nothing but True, False, operators and parentheses is evaluated.
    return not expression.strip() or eval(re.sub(r"[^\s()]+", truth, expression), {"__builtins__": {}})


def make_ready(kernel: str, *programs: Path) -> None:
    """Prepare what VMs need, and leave the machine's network; `programs` are in their folder /hallway."""
    run_steps([*guest_steps(kernel), module_step(kernel), host_step()])
    topology.lay_share(kernel, *programs)
    isolate.cut_off()


@contextlib.contextmanager
def standing(kernel: str, kind: type[Stand] | None = None, **options: Any) -> Iterator[Stand]:
    """Boot VMs that serve each other; the options are those of topology.pair()."""
    with topology.pair(kernel, **options) as site:
        stand = (kind or Stand)(site)
        stand.await_members()
        yield stand


class Stand:
    """Two VMs with the module loaded: the first calls, the second answers."""

    def __init__(self, site: topology.Site) -> None:
        self.site = site
        self.vms = site.vms
        self.on = True
        self.client, self.server = site.vms[:2]
        self.spin_default = int(self.client.get(SPIN))

    def await_members(self, timeout: float = 20) -> None:
        """Wait until each guest has the other's addresses."""
        deadline = time.monotonic() + timeout
        for vm, other in itertools.permutations(self.vms, 2):
            while other.ip4 not in vm.run("hallway status --json").out:
                if time.monotonic() > deadline:
                    said = vm.run("hallway status; dmesg | grep hallway", check=False)
                    raise LabError(f"{vm.name} does not serve {other.name}:\n{said.out}{said.err}")
                time.sleep(0.2)

    def switch(self, on: bool) -> None:
        """Turn Hallway on or off in all guests."""
        self.on = on
        for vm in self.vms:
            vm.run(f"hallway {'on' if on else 'off'}")

    def spin(self, microseconds: int | None = None) -> None:
        """Set how long receivers spin before they sleep; None is the default."""
        set_spin(self.vms, self.spin_default if microseconds is None else microseconds)

    @contextlib.contextmanager
    def meter(self) -> Iterator[Traffic]:
        """Count the bytes of what happens in the block."""
        traffic = Traffic()
        before = self._counters()
        yield traffic
        counted = [
            {name: new[name] - old[name] for name in COUNTED}
            for old, new in zip(before, self._steady_counters(), strict=True)
        ]
        traffic.up, traffic.down = self._ways(counted)

    def _ways(self, counted: list[dict[str, int]]) -> tuple[Direction, Direction]:
        """Return the two directions, by what each guest counted."""
        client, server = counted
        return direction(client, server), direction(server, client)

    def _counters(self) -> list[dict[str, int]]:
        return [json.loads(vm.run("hallway counters --json").out) for vm in self.vms]

    def _steady_counters(self) -> list[dict[str, int]]:
        """Read the counters once they no longer change.

        A program may end before its peer has read the last bytes.
        """
        deadline = time.monotonic() + 3
        last = self._counters()
        while time.monotonic() < deadline:
            time.sleep(0.1)
            now = self._counters()
            if all(a[name] == b[name] for a, b in zip(now, last, strict=True) for name in COUNTED):
                break
            last = now
        return last


class Mesh(Stand):
    """VMs of which each may call each other: all that they move counts as one direction.

    What all have sent is compared with what all have received.
    """

    def _ways(self, counted: list[dict[str, int]]) -> tuple[Direction, Direction]:
        total = {name: sum(one[name] for one in counted) for name in COUNTED}
        return direction(total, total), Direction(0, 0, 0, 0, 0)


def set_spin(vms: Iterable[VM], microseconds: int) -> None:
    """Set how long readers in these guests spin."""
    for vm in vms:
        vm.run(f"echo {microseconds} > {SPIN}")


def facts(vm: VM) -> dict[str, Any]:
    """Return what figures of such VMs were measured on."""
    kernel = vm.kernel
    return {
        "accelerator": accel.name(),
        "cpu": accel.arguments()[-1],
        "qemu": vm.emulator.version(),
        "guest_kernel": kernel.version,
        "guest_cpus": vm.config.cpus,
        "host_cpus": len(os.sched_getaffinity(0)),
        "host_kernel": platform.release(),
        "network": vm.network,
    }


def describe(facts: dict[str, Any]) -> str:
    """Return in two lines what figures were measured on."""
    return (
        f"VMs of {facts['guest_cpus']} CPU, Linux {facts['guest_kernel']}, QEMU {facts['qemu']} "
        f"with {facts['accelerator'].upper()} (-cpu {facts['cpu']}), {facts['host_cpus']} CPUs on the host.\n"
        f"TCP: {facts['network']}, offloads on."
    )


def direction(sender: dict[str, int], receiver: dict[str, int]) -> Direction:
    """Return how the bytes of one direction went, by what its ends counted."""
    return Direction(
        # bytes of a ring that the receiver truncated were resent over TCP
        sent_ring=sender["tx_bytes_ring"] - sender["tx_bytes_resent"] + sender["tx_bytes_tunnel"],
        sent_tcp=sender["tx_bytes_tcp"] + sender["tx_bytes_resent"],
        received_ring=receiver["rx_bytes_ring"] + receiver["rx_bytes_tunnel"],
        # bytes moved from a ring to TCP's queue are counted again when TCP's are read
        received_tcp=receiver["rx_bytes_tcp"] - receiver["rx_bytes_requeued"],
        unread=sender["tx_bytes_unread"],
    )
