"""Every suite: no test ends otherwise on rings, while carriers switch, or outsourced, than over TCP."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from . import cpython, selftests, stress, tokio, wheels
from .carriers import CARRIERS, OUTSOURCED
from .runner import Runner
from .suite import IMAGE, Suite

FAMILIES = (cpython, tokio, wheels, selftests, stress)  # each has SUITES and prepare()


def _marks(suite: Suite, family: ModuleType) -> list[pytest.MarkDecorator]:
    needs = pytest.mark.needs(f"{family.__name__}:prepare")
    return [needs, pytest.mark.xdist_group(f"suites-{suite.key}")]


def _rows() -> Iterator[object]:
    for family in FAMILIES:
        for suite in family.SUITES:
            yield pytest.param(suite, id=suite.key, marks=_marks(suite, family))


@pytest.mark.record("suites")
@pytest.mark.slow
@pytest.mark.needs(f"image {IMAGE}")
@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("suite", [*_rows()])
def test_suite(runner: Runner, suite: Suite, carrier: str) -> None:
    """Each test of the suite has the outcome that it has over TCP."""
    runner.compare(suite, carrier)


# Suites that run outsourced, too: each connection over loopback gets both ends in the host.
HOSTS = {"socket", "ssl", "httplib", "urllib", "asyncio"}


@pytest.mark.record("suites")
@pytest.mark.slow
@pytest.mark.needs(f"image {IMAGE}", f"{cpython.__name__}:prepare")
@pytest.mark.xdist_group("suites-outsourced")
@pytest.mark.parametrize(
    "suite", [pytest.param(one, id=one.key) for one in cpython.SUITES if one.name.split()[-1] in HOSTS]
)
def test_outsourced_suite(outsourced_runner: Runner, suite: Suite) -> None:
    """Each test of the suite has the outcome that it has natively, or a reason for another."""
    outsourced_runner.compare(suite, OUTSOURCED)
