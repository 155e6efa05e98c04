# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A test whose guest panics, and one after it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hallway_lab.vm import VM
from hallway_tests.guests import healthy
from hallway_tests.pair import name_logs

pytestmark = pytest.mark.xdist_group("sample-panic")


class Stage:
    """One guest."""

    def __init__(self, vm: VM) -> None:
        self.vm = vm

    def healthy(self) -> None:
        """Fail if it is gone."""
        healthy(self.vm)


@contextlib.contextmanager
def booted(kernel: str, share: Path, logs: Path) -> Iterator[Stage]:
    """Boot it."""
    with name_logs(VM(kernel=kernel, share=share, network=False), logs) as vm:
        yield Stage(vm)


@pytest.fixture
def guest(site: Callable[..., Any], kernel: str, share: Path) -> VM:
    """Return the guest."""
    return site(lambda logs: booted(kernel, share, logs)).vm


def test_panics(guest: VM) -> None:
    """The kernel crashes."""
    guest.run("echo c > /proc/sysrq-trigger", timeout=20)


def test_goes_on(guest: VM) -> None:
    """Another guest is there."""
    guest.run("true")
