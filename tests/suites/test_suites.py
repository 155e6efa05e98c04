# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Every suite: no test ends otherwise on rings, while carriers switch, or outsourced, than over TCP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from . import cpython, selftests, stress, tokio, wheels
from .carriers import CARRIERS, OUTSOURCED
from .runner import Runner
from .suite import IMAGE, Suite

FAMILIES = (cpython, tokio, wheels, selftests, stress)  # each has SUITES and prepare()


def _rows(*, outsourced: bool = False) -> Iterator[object]:
    for family in FAMILIES:
        for suite in family.SUITES:
            group = "outsourced" if outsourced else suite.key
            marks = [
                pytest.mark.needs(f"{family.__name__}:prepare"),
                pytest.mark.xdist_group(f"suites-{group}"),
            ]
            if suite.outsourced or not outsourced:
                yield pytest.param(suite, id=suite.key, marks=marks)


@pytest.mark.record("suites")
@pytest.mark.slow
@pytest.mark.needs(f"image {IMAGE}")
@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("suite", [*_rows()])
def test_suite(runner: Runner, suite: Suite, carrier: str) -> None:
    """Each test of the suite has the outcome that it has over TCP."""
    runner.compare(suite, carrier)


@pytest.mark.record("suites")
@pytest.mark.slow
@pytest.mark.needs(f"image {IMAGE}")
@pytest.mark.parametrize("suite", [*_rows(outsourced=True)])
def test_outsourced_suite(outsourced_runner: Runner, suite: Suite) -> None:
    """Each test of the suite has the outcome that it has natively, or a reason for another."""
    outsourced_runner.compare(suite, OUTSOURCED)
