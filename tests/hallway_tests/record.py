# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Results of tests: what a test measured goes to the store of results, and to the end of the run.

A test that takes the fixture `outcome` becomes a record: its verdict is
pytest's, the rest is what the test put into `outcome`. Workers hand the records
over with their reports; one process writes them and prints the tables.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from hallway_lab import results, summary
from hallway_lab.results import Figure, Record, Store, figure, keep

from .site import NOT_RUN

RECORD = "record"  # the property of a report with a line of the store, behind the kind of result


@dataclass
class Outcome:
    """What a test measured."""

    key: str
    name: str  # for people
    figures: dict[str, Figure | str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def rounds(self, wanted: int) -> Iterator[int]:
        """Count the rounds; one that fails is not done."""
        for number in range(wanted):
            self.figures["rounds"] = f"{number} of {wanted}"
            yield number
        self.figures["rounds"] = figure("", wanted)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Measure the block."""
        begin = time.monotonic()
        yield
        self.note(what, time.monotonic() - begin)

    def note(self, what: str, seconds: float) -> None:
        """Add a sample to a figure in seconds."""
        known = self.figures.get(what)
        samples = known.samples if isinstance(known, Figure) else ()
        self.figures[what] = figure("s", *samples, seconds)

    def add_ring_bytes(self, count: int) -> None:
        """Add to the bytes that went through rings."""
        known = self.figures.get("in rings")
        self.figures["in rings"] = figure("B", count + (known.median if isinstance(known, Figure) else 0))

    def check(self, faults: list[str]) -> None:
        """Fail the test if there are faults, with all of them."""
        self.faults += faults
        if faults:
            pytest.fail("\n".join(faults), pytrace=False)


_outcome = pytest.StashKey[Outcome]()
_store = cache(Store)


@pytest.fixture
def outcome(request: pytest.FixtureRequest, kernel: str) -> Outcome:
    """Return where a test puts what it measured; its mark `record` names the kind of result."""
    key = getattr(request.node, "originalname", request.node.name).removeprefix("test_")
    _store(_kind(request.node), kernel)  # the record names the sources of now
    made = Outcome(key, key)
    request.node.stash[_outcome] = made
    return made


def _kind(item: pytest.Item) -> str:
    mark = item.get_closest_marker("record")
    assert mark, f"{item.nodeid} has no mark `record`"
    return mark.args[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    """Add the record of a test that ran, or whose guests or servers could not begin."""
    report = yield
    made = None if dict(item.user_properties).get(NOT_RUN) else item.stash.get(_outcome, None)
    if made and not report.skipped and (report.when == "call" or (report.when == "setup" and report.failed)):
        own = [f"{call.excinfo.typename}: {call.excinfo.value}"] if call.excinfo else []
        one = _store(_kind(item), item.callspec.params["kernel"]).record(
            made.key,
            made.name,
            figures=made.figures,
            faults=(*(made.faults or own),),
            notes=(*made.notes,),
            details={**made.details, "seconds": round(report.duration, 1), "test": item.nodeid},
        )
        report.user_properties.append((RECORD, [_kind(item), one.line()]))
    return report


class Keeper:
    """Keeps the records, in the process that sees all reports."""

    def __init__(self) -> None:
        self._made: dict[str, list[Record]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a test's record."""
        for name, value in report.user_properties:
            if name == RECORD:
                kind, line = value
                self._made[kind].append(Record.parse(line))
                keep(kind, self._made[kind][-1])

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the tables."""
        for kind, records in self._made.items():
            terminalreporter.section(f"results: {kind}")
            terminalreporter.write_line(summary.show(kind, records))


def pytest_configure(config: pytest.Config) -> None:
    """Keep records, but in no worker."""
    config.addinivalue_line("markers", "record(kind): the test is a row of the results of this kind")
    if not hasattr(config, "workerinput"):
        results.prepare()
        config.pluginmanager.register(Keeper(), "hallway-records")
