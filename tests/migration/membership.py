"""How soon everybody knows who came and who left."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hallway_lab.vm import VM
from hallway_tests.guests import jobs_end
from hallway_tests.suite import check

from .peers import panic, power_off
from .scenario import KERNELS, Outcome, Scenario, Setting
from .stage import AT_ONCE, Stage, pair

SOON = 0.1  # seconds from the daemon's event to the last module's knowledge
SILENT = 3  # seconds from a death without a word until then
PATIENCE = 30
SLOTS_MAX = 64
ADDRESSES = (("10.77.0.200", "24"), ("fd77::200", "64 nodad"))
STAMP = re.compile(r"^(\S+Z)\s+INFO (?:joined|left) vm=\"(vm\d+)", re.M)


@contextlib.contextmanager
def wide(setting: Setting) -> Iterator[Stage]:
    """Boot the two VMs; their region has as many slots as one may have, to be looked at each time."""
    with pair(setting, slots=SLOTS_MAX) as stage:
        yield stage


def known(stage: Stage, outcome: Outcome) -> None:
    """A VM leaves and joins again, each way there is; the kernels say so on their consoles."""
    stage.pair.load(**AT_ONCE)
    region = stage.pair.site.daemon.region
    words = " ".join(f"{name}={value}" for name, value in AT_ONCE.items())
    with stage.victim() as third:
        for _ in outcome.rounds():
            for event, act in (
                ("left", lambda: third.run("rmmod hallway")),
                ("arrived", lambda: third.run(f"insmod /hallway/hallway.ko {words}")),
                ("left", lambda: third.unplug(region.id)),
                ("arrived", lambda: third.plug(region)),
            ):
                outcome.note(f"all know that it {event} after", _told(stage, third, event, act))
            for address, more in ADDRESSES:
                for event, verb in (("came", "add"), ("went", "del")):
                    change = f"addr {verb} {address}/{more if verb == 'add' else more.split()[0]} dev eth0"
                    outcome.note(
                        f"of an address that {event}", _told_of(stage, third, address, event, change)
                    )
            outcome.note("or is silent after", _dead(stage, third))
    for end in (VM.stop, panic, power_off):
        with stage.victim() as third:
            outcome.note("that its machine ended", _told(stage, third, "left", lambda: end(third)))  # noqa: B023
    stage.pair.unload()
    stage.pair.healthy()
    for what, took in outcome.figures.items():
        most = SILENT if "silent" in what else SOON
        check(max(took) <= most, f"{what} more than {most} s: {took}")


def _told(stage: Stage, third: VM, event: str, act: Callable[[], object]) -> float:
    both = stage.pair.both
    awaited = [(_Tail(vm.log), f"({third.name}) {event}") for vm in both]
    if event == "arrived":
        awaited += [(_Tail(third.log), f"({vm.name}) {event}") for vm in both]
    daemon = _Tail(stage.pair.site.daemon.log)
    with ThreadPoolExecutor(1) as pool:
        acting = pool.submit(act)
        said = _all_said(awaited)
        acting.result()
    stamps = [at for at, name in STAMP.findall(daemon.read()) if name == third.name]
    check(stamps, f"hallwayd does not say that {third.name} {event}")
    began = datetime.datetime.fromisoformat(stamps[-1]).timestamp()
    return said - began


def _told_of(stage: Stage, third: VM, address: str, event: str, change: str) -> float:
    """Change an address; from right before `ip`, which runs already, is told to, until the others know."""
    consoles = [_Tail(vm.log) for vm in stage.pair.both]
    jobs = [vm.spawn(f"python3 -B /hallway/guest/knows.py {address} {event}") for vm in stage.pair.both]
    try:
        _all_say(consoles, f"looks whether {address} {event}")
    except AssertionError as error:
        raise AssertionError(f"{error}: {[job.poll() for job in jobs]}") from error
    mine = _Tail(third.log)
    job = third.spawn(
        "rm -f /tmp/ip; mkfifo /tmp/ip; ip -batch /tmp/ip & exec 3> /tmp/ip;"
        f"echo changes {address} > /dev/kmsg; echo {change} >&3; exec 3>&-; wait $!"
    )
    began = _all_say([mine], f"changes {address}")
    said = _all_say(consoles, f"knows that {address} {event}")
    jobs_end(job, *jobs)
    return said - began


def _dead(stage: Stage, third: VM) -> float:
    """Have its machine stand still until all have noticed, and once more until they hear it."""
    consoles = [_Tail(vm.log) for vm in stage.pair.both]
    os.kill(third.pid, signal.SIGSTOP)
    began = time.time()
    try:
        said = _all_say(consoles, f"({third.name}) is silent")
    finally:
        os.kill(third.pid, signal.SIGCONT)
    _all_say(consoles, f"({third.name}) is heard again")
    return said - began


def _all_say(consoles: list[_Tail], words: str) -> float:
    return _all_said([(console, words) for console in consoles])


def _all_said(awaited: list[tuple[_Tail, str]]) -> float:
    """Wait until each of them has said its words; return when the last one did."""
    deadline = time.monotonic() + PATIENCE
    seen = [0.0 for _ in awaited]
    while not all(seen):
        check(time.monotonic() < deadline, f"not all is said: {[words for _, words in awaited]}, {seen}")
        for n, (console, words) in enumerate(awaited):
            if not seen[n] and words in console.read():
                seen[n] = time.time()
        time.sleep(0.0005)  # a step of the measure
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


SCENARIOS = (
    Scenario(
        "members-known",
        "a VM leaves and joins by module, region and machine, changes addresses, falls silent",
        20,
        wide,
        known,
        KERNELS,
    ),
)
