# SPDX-License-Identifier: Apache-2.0 OR MIT
"""How soon a domain learns of another: that its module is there, and that it does not respond."""

from __future__ import annotations

import re
import time
from statistics import median

import pytest
from hallway_lab.vm import VM
from hallway_tests.domains import Domains
from hallway_tests.guests import Stream, connections, rmmod, status, wait_members
from hallway_tests.pair import on_rings
from hallway_tests.suite import check, wait_for

pytestmark = [pytest.mark.xen, pytest.mark.not_on("debug", "all takes longer there")]

ROUNDS = 5
KNOWN = 0.5  # seconds after insmod: XenStore answers slowly where dom0 is emulated
STAYS = 4  # seconds after which a domain that has left is as good as a new one
UNRESPONSIVE = 3  # seconds until a domain that stands still is unresponsive
# Domains and dom0 have one clock, that of Xen. Lines of the kernel's log have another.
MARK = "date +%s.%N; echo 'lab: mark' >/dev/kmsg"


def test_known(pair: Domains) -> None:
    """A module that is loaded is known to the other domain within KNOWN seconds."""
    pair.load()
    took = []
    for _ in range(ROUNDS):
        # One that comes and goes more often has to wait.
        begin = time.monotonic()
        wait_for(lambda: time.monotonic() > begin + STAYS, "both have stayed for long enough")  # noqa: B023
        rmmod(pair.b)
        wait_for(lambda: not status(pair.a)["members"], "the peer has left", 30 * pair.slow)
        pair.a.run("dmesg -C")
        loaded = float(pair.b.run("insmod /hallway/hallway.ko; date +%s.%N", first=True).out)
        wait_members(*pair.both)
        took.append(_said_at(pair.a, "arrived") - loaded)
    print(f"known after {median(took) * 1000:.0f} ms ({', '.join(f'{one * 1000:.0f}' for one in took)})")
    # It may be known before insmod has ended.
    check(min(took) > -1 and median(took) < KNOWN, f"known after {took} s")


def test_unresponsive(pair: Domains) -> None:
    """A domain that stands still is unresponsive within UNRESPONSIVE seconds, and its streams are on TCP."""
    pair.load()
    stream = Stream(pair.b, pair.a, conns=2)
    took = []
    for _ in range(ROUNDS):
        pair.wait_on_rings(2)
        pair.a.run("dmesg -C")
        with pair.b.paused():
            paused = float(pair.xen.run("date +%s.%N", first=True).out)
            wait_for(lambda: "is unresponsive" in pair.a.run("dmesg", first=True).out, "it is noticed")
            wait_for(lambda: not any(map(on_rings, connections(pair.a))), "its streams are on TCP")
        took.append(_said_at(pair.a, "is unresponsive") - paused)
        wait_members(*pair.both)
    print(f"unresponsive after {median(took):.1f} s ({', '.join(f'{one:.1f}' for one in took)})")
    check(median(took) < UNRESPONSIVE, f"unresponsive after {took} s")
    stream.stop()
    stream.finish(60 * pair.slow)


def _said_at(vm: VM, words: str) -> float:
    """Return when a domain's kernel said so, by the clock of all domains."""
    marked = float(vm.run(MARK, first=True).out)
    lines = vm.run("dmesg", first=True).out
    stamps = {
        what: float(found[-1])
        for what in (words, "lab: mark")
        if (found := re.findall(rf"^\[ *(\d+\.\d+)\] .*{what}", lines, re.M))
    }
    check(len(stamps) == 2, f"{vm.name} does not say {words!r}:\n{lines}")
    return marked - (stamps["lab: mark"] - stamps[words])
