"""How soon everybody knows who came and who left."""

from __future__ import annotations

import datetime
import os
import re
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hallway_lab.vm import VM
from hallway_tests.suite import check

from .scenario import Outcome, Scenario
from .stage import AT_ONCE, Stage, pair

SOON = 0.1  # seconds from the daemon's event to the last module's knowledge
SILENT = 3  # seconds from a death without a word until then
PATIENCE = 30
STAMP = re.compile(r"^(\S+Z)\s+INFO (?:joined|left) vm=\"(vm\d+)", re.M)


def known(stage: Stage, outcome: Outcome) -> None:
    """A VM leaves and joins again, in two ways; the others' kernels say so on their consoles."""
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
            outcome.note("or is silent after", _dead(stage, third))
    stage.pair.unload()
    stage.pair.healthy()
    for what, took in outcome.figures.items():
        most = SILENT if "silent" in what else SOON
        check(max(took) <= most, f"{what} more than {most} s: {took}")


def _told(stage: Stage, third: VM, event: str, act: Callable[[], object]) -> float:
    consoles = [_Tail(vm.log) for vm in stage.pair.both]
    daemon = _Tail(stage.pair.site.daemon.log)
    with ThreadPoolExecutor(1) as pool:
        acting = pool.submit(act)
        said = _all_say(consoles, f"({third.name}) {event}")
        acting.result()
    stamps = [at for at, name in STAMP.findall(daemon.read()) if name == third.name]
    check(stamps, f"hallwayd does not say that {third.name} {event}")
    began = datetime.datetime.fromisoformat(stamps[-1]).timestamp()
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
    """Wait until each of them has said that; return when the last one did."""
    deadline = time.monotonic() + PATIENCE
    seen = [0.0 for _ in consoles]
    while not all(seen):
        check(time.monotonic() < deadline, f"nobody says: {words}")
        for n, console in enumerate(consoles):
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
        "a VM leaves and joins by its module and by its region, and falls silent",
        20,
        pair,
        known,
    ),
)
