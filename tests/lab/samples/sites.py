# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Tests whose guests do not boot, or are lost; the guests are not real."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hallway_lab.sh import LabError
from hallway_tests.suite import GuestLost


class Stage:
    """Guests that complain as soon as a test has them do so."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.complaint = ""

    def healthy(self) -> None:
        """Fail if they complained."""
        if self.complaint:
            raise GuestLost(self.complaint)


@contextlib.contextmanager
def booted(logs: Path) -> Iterator[Stage]:
    """Boot them."""
    yield Stage(logs)


@contextlib.contextmanager
def broken(_logs: Path) -> Iterator[Stage]:
    """Do not boot them."""
    raise LabError("Could not get lock /some/where")
    yield


@pytest.mark.xdist_group("sample-broken")
@pytest.mark.parametrize("number", range(3))
def test_not_run(site: Callable[..., Any], number: int) -> None:
    """Never begins."""
    site(broken)
    raise AssertionError(f"test {number} ran")


@pytest.mark.xdist_group("sample-lost")
def test_loses(site: Callable[..., Any]) -> None:
    """Passes but for the complaint."""
    site(booted).complaint = "vm1's kernel complained: BUG: sample"


@pytest.mark.xdist_group("sample-lost")
def test_goes_on(site: Callable[..., Any]) -> None:
    """Has guests of its own again, with logs of their own."""
    stage = site(booted)
    assert not stage.complaint
    assert stage.logs.name == "sample-lost.2"
