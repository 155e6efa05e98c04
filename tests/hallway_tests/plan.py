# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Which tests run where: in what order, in which worker, and what is to be prepared before.

Tests of one group stay together, in one worker. Groups that took long in
earlier runs begin first. `--plan` has pytest write what it would run, for
`tests/run` to prepare it and for the workers to be given their groups.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from .site import group_of, kernel_of

TOOK = "hallway/took-each"  # in pytest's cache: the seconds that a test of each group took, on average


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what `tests/run` asks for."""
    parser.addoption("--plan", type=Path, help="run nothing; write groups and needs of tests to this file")


def pytest_configure(config: pytest.Config) -> None:
    """A plan is a list of tests, unless a person asks for the list."""
    if config.option.plan and config.option.collectonly:
        config.option.plan = None
    if config.option.plan:
        config.option.collectonly = True
    config.pluginmanager.register(Took(config), "hallway-took")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put tests of a group together, and the longest group first where there are several workers."""
    took = config.cache.get(TOOK, {}) if config.cache and hasattr(config, "workerinput") else {}
    order: dict[str, int] = {}
    for item in items:
        order.setdefault(group_of(item), len(order))
    tests = Counter(map(group_of, items))

    def place(item: pytest.Item) -> tuple[float, int]:
        group = group_of(item)
        return -took.get(group, 0) * tests[group], order[group]

    items.sort(key=place)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write the plan."""
    path = session.config.option.plan
    if path and session.items:
        groups = {item.nodeid: group_of(item) for item in session.items}
        wanted = [need for item in session.items for need in _needs(item)]
        path.write_text(json.dumps({"groups": groups, "needs": list(dict.fromkeys(wanted))}))


def _needs(item: pytest.Item) -> list[tuple[str, str]]:
    if item.get_closest_marker("skip"):
        return []
    kernel = kernel_of(item)
    words = [word for mark in item.iter_markers("needs") for word in mark.args]
    return [(kernel, word) for word in (["guests"] if kernel else []) + words]


class BySite(LoadScopeScheduling):
    """Gives each worker whole groups, in the order in which they were collected."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False
        self._groups = json.loads(Path(os.environ["HALLWAY_TEST_PLAN"]).read_text())["groups"]

    def _split_scope(self, nodeid: str) -> str:
        return self._groups.get(nodeid, nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """Schedule by groups."""
    return BySite(config, log) if "HALLWAY_TEST_PLAN" in os.environ else None


class Took:
    """Keeps how long a test of each group took: a run may be of a few of them."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count one phase of a test."""
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Keep the averages, in the process that has the plan and sees all reports."""
        plan = os.environ.get("HALLWAY_TEST_PLAN")
        if hasattr(self._config, "workerinput") or not plan or not self._config.cache:
            return
        groups = json.loads(Path(plan).read_text())["groups"]
        took: dict[str, list[float]] = defaultdict(list)
        for nodeid, seconds in self._seconds.items():
            took[groups.get(nodeid, nodeid)].append(seconds)
        known = self._config.cache.get(TOOK, {})
        each = {group: round(fmean(seconds), 2) for group, seconds in took.items()}
        self._config.cache.set(TOOK, {**known, **each})
