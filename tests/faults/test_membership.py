# SPDX-License-Identifier: Apache-2.0 OR MIT
"""How soon every member knows that another one came or left."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hallway_lab.results import Figure
from hallway_lab.vm import VM
from hallway_tests.guests import AT_ONCE, jobs_end
from hallway_tests.pair import Pair
from hallway_tests.record import Outcome
from hallway_tests.suite import check

from .bystander import victim
from .ends import panic, power_off

SOON = 0.1  # seconds from the daemon's event until the last module knows
UNRESPONSIVE = 3  # seconds from a death without notice until then
PATIENCE = 30
SLOTS_MAX = 64  # that a region may have; each is looked at
ADDRESSES = (("10.77.0.200", "24"), ("fd77::200", "64 nodad"))
STAMP = re.compile(r"^(\S+Z)\s+INFO (?:joined|left) vm=\"(vm\d+)", re.M)


@pytest.mark.record("faults")
@pytest.mark.fault("a VM leaves and joins by module, region and machine, changes addresses, is stopped")
@pytest.mark.kernel("6.1", "6.12")
@pytest.mark.xdist_group("faults-wide-region")
@pytest.mark.region(slots=SLOTS_MAX)
def test_members_known(pair: Pair, outcome: Outcome, rounds: Iterator[int]) -> None:
    """A VM leaves and joins in each way there is; the other kernels report it on their consoles."""
    pair.load(**AT_ONCE)
    region = pair.site.daemon.region
    words = " ".join(f"{name}={value}" for name, value in AT_ONCE.items())
    with victim(pair) as third:
        for _ in rounds:
            for event, act in (
                ("left", lambda: third.run("rmmod hallway")),
                ("arrived", lambda: third.run(f"insmod /hallway/hallway.ko {words}")),
                ("left", lambda: third.unplug(region.id)),
                ("arrived", lambda: third.plug(region)),
            ):
                outcome.note(f"all know that it {event} after", _reported(pair, third, event, act))
            for address, more in ADDRESSES:
                for event, verb in (("came", "add"), ("went", "del")):
                    change = f"addr {verb} {address}/{more if verb == 'add' else more.split()[0]} dev eth0"
                    outcome.note(
                        f"of an address that {event}", _address_known(pair, third, address, event, change)
                    )
            outcome.note("or is unresponsive after", _stop_known(pair, third))
    for end in (VM.stop, panic, power_off):
        with victim(pair) as third:
            took = _reported(pair, third, "left", lambda: end(third))  # noqa: B023
            outcome.note("that its machine ended", took)
    pair.unload()
    pair.healthy()
    for what, took in outcome.figures.items():
        if isinstance(took, Figure) and took.unit == "s":
            most = UNRESPONSIVE if "unresponsive" in what else SOON
            check(took.highest <= most, f"{what} more than {most} s: {took}")


def _reported(pair: Pair, third: VM, event: str, act: Callable[[], object]) -> float:
    """Return the seconds from the daemon's event until the last kernel has reported it."""
    awaited = [(_Tail(vm.log), f"({third.name}) {event}") for vm in pair.both]
    if event == "arrived":
        awaited += [(_Tail(third.log), f"({vm.name}) {event}") for vm in pair.both]
    daemon = _Tail(pair.site.daemon.log)
    with ThreadPoolExecutor(1) as pool:
        acting = pool.submit(act)
        said = _wait_said(awaited)
        acting.result()
    stamps = [at for at, name in STAMP.findall(daemon.read()) if name == third.name]
    check(stamps, f"hallwayd does not report that {third.name} {event}")
    return said - datetime.datetime.fromisoformat(stamps[-1]).timestamp()


def _address_known(pair: Pair, third: VM, address: str, event: str, change: str) -> float:
    """Change an address; return the seconds until both others know. The program `ip` runs before already."""
    consoles = [_Tail(vm.log) for vm in pair.both]
    jobs = [vm.spawn(f"python3 -B /hallway/guest/knows.py {address} {event}") for vm in pair.both]
    try:
        _wait_all_said(consoles, f"looks whether {address} {event}")
    except AssertionError as error:
        raise AssertionError(f"{error}: {[job.poll() for job in jobs]}") from error
    mine = _Tail(third.log)
    job = third.spawn(
        "rm -f /tmp/ip; mkfifo /tmp/ip; ip -batch /tmp/ip & exec 3> /tmp/ip;"
        f"echo changes {address} > /dev/kmsg; echo {change} >&3; exec 3>&-; wait $!"
    )
    began = _wait_all_said([mine], f"changes {address}")
    said = _wait_all_said(consoles, f"knows that {address} {event}")
    jobs_end(job, *jobs)
    return said - began


def _stop_known(pair: Pair, third: VM) -> float:
    """Have a VM stand still until all have noticed, and wait until they have noticed its return."""
    consoles = [_Tail(vm.log) for vm in pair.both]
    with third.paused():
        began = time.time()
        said = _wait_all_said(consoles, f"({third.name}) is unresponsive")
    _wait_all_said(consoles, f"({third.name}) responds again")
    return said - began


def _wait_all_said(consoles: list[_Tail], words: str) -> float:
    return _wait_said([(console, words) for console in consoles])


def _wait_said(awaited: list[tuple[_Tail, str]]) -> float:
    """Wait until each file has its words; return when the last one had them."""
    deadline = time.monotonic() + PATIENCE
    seen = [0.0 for _ in awaited]
    while not all(seen):
        check(time.monotonic() < deadline, f"not all is said: {[words for _, words in awaited]}, {seen}")
        for n, (console, words) in enumerate(awaited):
            if not seen[n] and words in console.read():
                seen[n] = time.time()
        time.sleep(0.0005)  # the resolution of the measurement
    return max(seen)


class _Tail:
    """What is added to a file from now on."""

    def __init__(self, path: Path) -> None:
        self._path, self._from = path, path.stat().st_size

    def read(self) -> str:
        """Return all of it."""
        with self._path.open("rb") as file:
            file.seek(self._from)
            return file.read().decode(errors="replace")
