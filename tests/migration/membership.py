"""How soon everybody knows who came and who left."""

from __future__ import annotations

import datetime
import re
import statistics
import time
from pathlib import Path

from hallway_lab.vm import VM
from hallway_tests.suite import check

from .scenario import Outcome, Scenario
from .stage import AT_ONCE, Stage, pair

SOON = 0.1  # seconds from the daemon's event to the last module's knowledge, as a median
PATIENCE = 30
STAMP = re.compile(r"^(\S+Z)\s+INFO (?:joined|left) vm=\"(vm\d+)", re.M)


def known(stage: Stage, outcome: Outcome) -> None:
    """A VM leaves and joins again; the others' kernels say so on their consoles, which costs them time."""
    stage.pair.load(**AT_ONCE)
    words = " ".join(f"{name}={value}" for name, value in AT_ONCE.items())
    with stage.victim() as third:
        for _ in outcome.rounds():
            for event, command in (
                ("left", "rmmod hallway"),
                ("arrived", f"insmod /hallway/hallway.ko {words}"),
            ):
                took = _told(stage, third, event, command)
                outcome.figures.setdefault(f"all know that it {event} after", []).append(took)
    stage.pair.unload()
    stage.pair.healthy()
    slow = {what: took for what, took in outcome.figures.items() if statistics.median(took) > SOON}
    check(not slow, f"later than {SOON} s: {slow}")


def _told(stage: Stage, third: VM, event: str, command: str) -> float:
    consoles = [_Tail(vm.log) for vm in stage.pair.both]
    daemon = _Tail(stage.pair.site.daemon.log)
    job = third.spawn(command)
    deadline = time.monotonic() + PATIENCE
    seen = [0.0 for _ in consoles]
    while not all(seen):
        check(time.monotonic() < deadline, f"nobody says that {third.name} {event}")
        for n, console in enumerate(consoles):
            if not seen[n] and f"({third.name}) {event}" in console.read():
                seen[n] = time.time()
        time.sleep(0.0005)  # a step of the measure
    check(job.wait().code == 0, f"{command} failed")
    stamps = [at for at, name in STAMP.findall(daemon.read()) if name == third.name]
    check(stamps, f"hallwayd does not say that {third.name} {event}")
    began = datetime.datetime.fromisoformat(stamps[-1]).timestamp()
    return max(seen) - began


class _Tail:
    """What is added to a file from now on."""

    def __init__(self, path: Path) -> None:
        self._path, self._from = path, path.stat().st_size

    def read(self) -> str:
        """Return all of it."""
        with self._path.open("rb") as file:
            file.seek(self._from)
            return file.read().decode(errors="replace")


SCENARIOS = (Scenario("members-known", "a VM leaves, and joins again", 20, pair, known),)
