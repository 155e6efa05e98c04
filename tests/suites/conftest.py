# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The guest of a suite, and how often a test that ended otherwise is run again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hallway_tests.record import Outcome

from .guest import Guest, booted, booted_outsourced
from .runner import Runner

LIMIT = 3 * 3600  # seconds for a suite over TCP and on one other carrier, with repeats


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the number of repeats."""
    parser.addoption(
        "--repeats",
        type=int,
        default=6,
        help="how often a foreign test with another outcome than over TCP is run alone, on each carrier"
        " (default: 6)",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give suites their time."""
    for item in items:
        mark = item.get_closest_marker("record")
        if mark and mark.args == ("suites",):
            item.add_marker(pytest.mark.timeout(LIMIT))


@pytest.fixture
def runner(
    site: Callable[[object], Guest],
    kernel: str,
    share: Path,
    outcome: Outcome,
    rng: Random,
    pytestconfig: pytest.Config,
) -> Runner:
    """Return what runs a suite in this test's guest."""
    guest = site(lambda logs: booted(kernel, share, logs))
    return Runner(guest, outcome, rng, pytestconfig.option.repeats)


@pytest.fixture
def outsourced_runner(
    site: Callable[[object], Guest],
    kernel: str,
    share: Path,
    outcome: Outcome,
    rng: Random,
    pytestconfig: pytest.Config,
) -> Runner:
    """Return what runs a suite in a guest with an outsourcer."""
    guest = site(lambda logs: booted_outsourced(kernel, share, logs))
    return Runner(guest, outcome, rng, pytestconfig.option.repeats)
