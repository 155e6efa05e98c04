# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A guest that runs suites: all of one, or single tests of it several times."""

from __future__ import annotations

import contextlib
import json
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hallway_lab import outsourcing
from hallway_lab.outsourcing import HOST, HOST6
from hallway_lab.sh import LabError, step
from hallway_lab.vm import VM
from hallway_tests.guests import healthy, settle_in
from hallway_tests.pair import name_logs

from .carriers import OFF, OUTSOURCED, Traffic, carrier
from .compare import Outcomes
from .suite import IMAGE, Suite

# The ports that the host publishes, and what has the programs of suites use them.
PORTS = range(20000, 20200)
MAPPED = (
    f"LD_PRELOAD=/tmp/suites/mapped.so MAPPED_V4={HOST} MAPPED_V6={HOST6}"
    f" MAPPED_FIRST={PORTS[0]} MAPPED_LAST={PORTS[-1]}"
)
RULES = f"publish = {[f'tcp/{port}' for port in PORTS]}\nlisteners = {len(PORTS)}"

RESULTS = "/tmp/results"
ONLY = "/tmp/only"
OPTIONS = {"image": IMAGE, "cpus": 2, "memory_mib": 2048, "boot_timeout": 240}


@dataclass
class Run:
    """What came of a suite, or of one of its tests, on one carrier."""

    outcomes: list[Outcomes] = field(default_factory=list)  # one for each time it ran
    why: dict[str, str] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    seconds: float = 0


class Guest:
    """A guest, and the runs of suites over TCP that all carriers are compared with."""

    def __init__(self, vm: VM, logs: Path) -> None:
        self._vm, self._logs = vm, logs
        self._tcp: dict[str, Run] = {}

    def healthy(self) -> None:
        """Fail if the guest is gone or its kernel complained."""
        healthy(self._vm)

    def over_tcp(self, suite: Suite) -> Run:
        """Run a suite with Hallway off, the first time that it is asked for."""
        if suite.key not in self._tcp:
            self._tcp[suite.key] = self.run(suite, OFF, 0)
        return self._tcp[suite.key]

    def run(self, suite: Suite, on: str, seed: int) -> Run:
        """Run all of a suite on a carrier."""
        return self._run(suite, on, seed)

    def repeat(self, suite: Suite, on: str, seed: int, test: str, times: int) -> Run:
        """Run one test of a suite alone, several times, on a carrier."""
        return self._run(suite, on, seed, test, times)

    def _run(self, suite: Suite, on: str, seed: int, test: str = "", times: int = 1) -> Run:
        begin, made = time.monotonic(), Run()
        again = f": {test}, {times} times alone" if test else ""
        with step(f"{suite.name} ({on}){again}"), carrier(self._vm, on, seed) as made.traffic:
            for _ in range(times):
                lines = self._once(suite, test, MAPPED if on == OUTSOURCED else "")
                if not test:
                    path = self._logs / f"{suite.key}-{on}.jsonl"
                    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
                made.outcomes.append({line["test"]: line["outcome"] for line in lines})
                made.why |= {line["test"]: line["why"] for line in lines if line["why"]}
        made.seconds = time.monotonic() - begin
        return made

    def _once(self, suite: Suite, test: str, environment: str) -> list[dict[str, str]]:
        """Run a suite, or one of its tests; return what the guest's program wrote of each test's end."""
        vm = self._vm
        if test:
            vm.put(f"{test}\n", ONLY)
        only = f"--only {ONLY}" if test else ""
        program, _, what = suite.command.partition(" ")
        command = f"rm -f {RESULTS}*; cd /root/work && {suite.setup or 'true'} && "
        command += f"{environment} python3 -B /tmp/suites/{shlex.quote(program)} --results {RESULTS} {only}"
        command += f" --limit {suite.limit} -- {what}"
        try:
            vm.run(f"({command}) >{RESULTS}.out 2>&1", timeout=suite.whole)
        except LabError as failure:
            said = vm.run(f"tail -c 3000 {RESULTS}.out {RESULTS}.log", check=False).out
            raise LabError(f"{failure}\n{said}") from None
        lines = [json.loads(line) for line in vm.get(RESULTS).splitlines()]
        return [line for line in lines if "outcome" in line]


@contextlib.contextmanager
def booted(kernel: str, share: Path, logs: Path) -> Iterator[Guest]:
    """Boot the guest for the length of the block."""
    vm = VM(number=1, kernel=kernel, share=share, **OPTIONS)
    with name_logs(vm, logs):
        yield _ready(vm, logs)


@contextlib.contextmanager
def booted_outsourced(kernel: str, share: Path, logs: Path) -> Iterator[Guest]:
    """Boot a guest with an outsourcer for the length of the block."""
    site, vm = outsourcing.describe(logs, kernel, share=share, **OPTIONS)
    site.daemon.log = logs / "hallwayd.log"
    site.daemon.log.write_bytes(b"")
    with outsourcing.running(site, name_logs(vm, logs), RULES):
        yield _ready(vm, logs)


def _ready(vm: VM, logs: Path) -> Guest:
    settle_in(vm)
    vm.run("cp -r /hallway/suites/guest /tmp/suites; mkdir -p /root/work")
    return Guest(vm, logs)
