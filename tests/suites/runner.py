# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs a suite over TCP and on a carrier, and compares."""

from __future__ import annotations

from random import Random

from hallway_lab.results import figure
from hallway_tests.record import Outcome

from .carriers import BYTES, OFF
from .compare import Comparison, Outcomes, compared, known
from .guest import Guest, Run
from .suite import Suite


class Runner:
    """Runs suites in a guest."""

    def __init__(self, guest: Guest, outcome: Outcome, rng: Random, repeats: int) -> None:
        self._guest, self._outcome, self._seed, self._repeats = guest, outcome, rng.getrandbits(31), repeats

    def compare(self, suite: Suite, carrier: str) -> None:
        """Fail unless each test of a suite has the outcome on a carrier that it has over TCP."""
        self._outcome.key, self._outcome.name = f"{suite.key}-{carrier}", suite.name
        self._outcome.figures["carrier"] = carrier
        tcp = self._guest.over_tcp(suite)
        ring = self._guest.run(suite, carrier, self._seed)
        found = compared(
            tcp.outcomes[0],
            ring.outcomes[0],
            lambda test: self._repeat(suite, OFF, test, tcp),
            lambda test: self._repeat(suite, carrier, test, ring),
        )
        self._describe(found, tcp, ring, carrier)
        faults = found.faults(known(carrier)) + ring.traffic.faults
        if suite.rings and not ring.traffic.counters[BYTES[carrier]]:
            faults.append("not one byte went by the carrier")
        self._outcome.check(faults)

    def _repeat(self, suite: Suite, on: str, test: str, before: Run) -> list[Outcomes]:
        done = self._guest.repeat(suite, on, self._seed, test, self._repeats)
        before.why = done.why | before.why
        return done.outcomes

    def _describe(self, found: Comparison, tcp: Run, ring: Run, carrier: str) -> None:
        counters = ring.traffic.counters
        self._outcome.figures |= {
            "tests": figure("", found.tests),
            "skipped": figure("", list(found.ring.values()).count("skip")),
            "unsteady": figure("", len(found.unsteady)),
            "changed": figure("", len(found.changed)),
            "failing on both": figure("", len(found.failing)),
            "sockets": figure("", counters["attached"]),
            "promoted": figure("", counters["tx_promoted"]),
            "switches": figure("", ring.traffic.switches),
            "in rings": figure("B", counters[BYTES[carrier]]),
            "over TCP": figure("B", counters["tx_bytes_tcp"]),
        }
        self._outcome.notes += found.notes(known(carrier))
        why = tcp.why | ring.why
        self._outcome.details |= {
            "why": {test: why.get(test, "") for test in [*found.repeats, *found.failing]},
            "counters": counters,
            "seconds on TCP": round(tcp.seconds),
            "seconds on rings": round(ring.seconds),
        }
