"""Runs suites in guests: which ones on which carriers, and again alone what differs."""

from __future__ import annotations

import contextlib
import itertools
import json
import queue
import random
import shlex
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hallway_lab import paths
from hallway_lab.sh import LabError, say, step
from hallway_lab.vm import VM
from hallway_tests.guests import settle_in

from .carriers import Traffic, carrier
from .compare import Outcomes, Repeats, differing
from .suites import Suite

GUESTS = 2  # that run side by side
REPEATS = 6  # times that a test is run alone on either carrier before it counts as changed
RESULTS = "/tmp/results"
ONLY = "/tmp/only"


@dataclass
class Job:
    """A suite on a carrier: all of it, or one test of it, several times."""

    suite: Suite
    mode: str
    test: str = ""

    @property
    def label(self) -> str:
        """What a person is told."""
        again = f": {self.test}, {REPEATS} times alone" if self.test else ""
        return f"{self.suite.name} ({self.mode}){again}"


@dataclass
class Done:
    """What became of a job."""

    outcomes: list[Outcomes] = field(default_factory=list)  # one for each time it ran
    why: dict[str, str] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    seconds: float = 0
    fault: str = "it did not run"  # or not to its end, or the kernel complained
    over: threading.Event = field(default_factory=threading.Event)


# Lower ones first: what a suite still needs before it is over goes before the next suites.
AGAIN, FIRST, STOP = range(3)


class Guests:
    """Guests that take jobs from one queue; one that is lost is replaced."""

    def __init__(self, kernel: str, share: Path, seed: int) -> None:
        self._kernel, self._share, self._seed = kernel, share, seed
        self._logs = paths.out("conformance", kernel, "x").parent
        self._logs.mkdir(parents=True, exist_ok=True)
        self._jobs: queue.PriorityQueue[tuple[int, int, Job | None, Done]] = queue.PriorityQueue()
        self._number = itertools.count()
        self._lock = threading.Lock()
        self._serving = 0

    @contextlib.contextmanager
    def serving(self, most: int) -> Iterator[None]:
        """Have guests for so many jobs, for the length of the block."""
        # Daemons, for a run that is interrupted waits for none of them.
        threads = [
            threading.Thread(target=self._serve, args=(n,), daemon=True)
            for n in range(1, min(GUESTS, most) + 1)
        ]
        self._serving = len(threads)
        for thread in threads:
            thread.start()
        yield
        for _ in threads:
            self._put(STOP, None)
        for thread in threads:
            thread.join()

    def ask(self, job: Job, order: int = FIRST) -> Done:
        """Have a job run; it is over some time later."""
        return self._put(order, job)

    def _put(self, order: int, job: Job | None) -> Done:
        done = Done()
        with self._lock:
            if self._serving:
                self._jobs.put((order, next(self._number), job, done))
            else:
                done.over.set()
        return done

    def _serve(self, number: int) -> None:
        try:
            while self._guest_serves(number):
                pass
        except LabError as failure:
            say(f"vm{number}: {failure}")
        with self._lock:
            self._serving -= 1
            while not self._serving and not self._jobs.empty():
                *_, done = self._jobs.get_nowait()
                done.over.set()

    def _guest_serves(self, number: int) -> bool:
        """Do one job after the other; True: one failed, and the guest is of no more use."""
        with self._guest(number) as vm:
            while True:
                *_, job, done = self._jobs.get()
                if job is None:
                    return False
                try:
                    self._do(vm, job, done)
                finally:
                    done.over.set()
                if done.fault:
                    return True

    @contextlib.contextmanager
    def _guest(self, number: int) -> Iterator[VM]:
        vm = VM(
            number=number,
            kernel=self._kernel,
            share=self._share,
            image="conformance",
            cpus=2,
            memory_mib=2048,
            boot_timeout=240,
        )
        vm.log, vm.qemu_log = (self._logs / f"vm{number}{end}" for end in (".log", ".qemu.log"))
        with vm:
            settle_in(vm)
            vm.run("cp -r /hallway/conformance/guest /tmp/conformance; mkdir -p /root/work")
            yield vm

    def _do(self, vm: VM, job: Job, done: Done) -> None:
        begin = time.monotonic()
        done.fault = ""
        with step(f"{vm.name}: {job.label}"):
            try:
                with carrier(vm, job.mode, self._seed) as traffic:
                    for _ in range(REPEATS if job.test else 1):
                        done.outcomes.append(self._once(vm, job, done))
                done.traffic = traffic
            except (LabError, AssertionError) as failure:
                done.fault = str(failure)
        health = vm.verdict()
        if not health.ok:
            done.fault = f"the kernel complained: {health}\n{done.fault}"
        done.seconds = time.monotonic() - begin

    def _once(self, vm: VM, job: Job, done: Done) -> Outcomes:
        suite = job.suite
        if job.test:
            vm.put(f"{job.test}\n", ONLY)
        only = f"--only {ONLY}" if job.test else ""
        program, _, what = suite.command.partition(" ")
        command = f"rm -f {RESULTS}*; cd /root/work && {suite.setup or 'true'} && "
        command += f"python3 -B /tmp/conformance/{program} --results {RESULTS} {only}"
        command += f" --limit {suite.limit} -- {what}"
        try:
            vm.run(f"({command}) >{RESULTS}.out 2>&1", timeout=suite.whole)
        except LabError as failure:
            said = vm.run(f"tail -c 3000 {RESULTS}.out {RESULTS}.log", check=False).out
            raise LabError(f"{failure}\n{said}") from None
        text = vm.get(RESULTS)
        if not job.test:
            (self._logs / f"{shlex.quote(suite.name.replace(' ', '-'))}-{job.mode}.jsonl").write_text(text)
        lines = [json.loads(line) for line in text.splitlines()]
        ended = [line for line in lines if "outcome" in line]
        done.why |= {line["test"]: line["why"] for line in ended if line["why"]}
        return {line["test"]: line["outcome"] for line in ended}


@dataclass
class Row:
    """One suite on one carrier beside the same suite with Hallway off."""

    suite: Suite
    mode: str
    tcp: Done
    ring: Done
    repeats: dict[str, Repeats] = field(default_factory=dict)

    @property
    def faults(self) -> list[str]:
        """What kept the runs from being compared, or should not have been counted."""
        told = [done.fault for done in (self.tcp, self.ring) if done.fault]
        return told + self.ring.traffic.faults


def compare(guests: Guests, suites: list[Suite], modes: list[str]) -> Iterator[list[Row]]:
    """Run the suites on each carrier, and again alone what differs; yield each one's rows when it is over."""
    with guests.serving(len(suites) * (1 + len(modes))):
        asked = [{mode: guests.ask(Job(suite, mode)) for mode in ("off", *modes)} for suite in suites]
        for suite, by in zip(suites, asked, strict=True):
            for done in by.values():
                done.over.wait()
            rows = [Row(suite, mode, by["off"], by[mode]) for mode in modes]
            _repeat(guests, rows)
            yield rows


def _repeat(guests: Guests, rows: list[Row]) -> None:
    """Run the tests of a suite that differ again alone."""
    again: dict[tuple[str, str], Done] = {}
    for row in rows:
        if row.tcp.fault or row.ring.fault:
            continue
        for test in differing(row.tcp.outcomes[0], row.ring.outcomes[0]):
            row.repeats[test] = Repeats(
                [row.tcp.outcomes[0].get(test)],
                [row.ring.outcomes[0].get(test)],
            )
            for mode in ("off", row.mode):
                if (mode, test) not in again:
                    again[mode, test] = guests.ask(Job(row.suite, mode, test), AGAIN)
    for (mode, test), done in again.items():
        done.over.wait()
        for row in rows:
            repeats = row.repeats.get(test)
            if not repeats or mode not in ("off", row.mode):
                continue
            side, whys = (repeats.tcp, row.tcp.why) if mode == "off" else (repeats.ring, row.ring.why)
            side += [one.get(test) for one in done.outcomes]
            for name, why in done.why.items():
                whys.setdefault(name, why)
            row.ring.fault = row.ring.fault or done.fault


def seed_of(given: int | None) -> int:
    """Return the seed of this run's random choices."""
    return given if given is not None else random.getrandbits(31)
