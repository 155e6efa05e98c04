# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The guest of the module tests, after all that ran in it."""

from __future__ import annotations

import pytest
from hallway_lab.leaks import leaks
from hallway_tests.guests import healthy, loaded
from hallway_tests.verdicts import judged

from .guest_run import Guest

pytestmark = pytest.mark.xdist_group("module")


def test_log_is_judged(guest: Guest, slow: float) -> None:
    """The kernel tells of tasks that hang before a test gives up, and the verdict listens."""
    judged()
    seconds = int(guest.vm.get("/proc/sys/kernel/hung_task_timeout_secs"))
    assert 0 < seconds <= 30 * slow, f"tasks may hang for {seconds} s before the kernel says so"


@pytest.mark.kernel("debug")
def test_no_leaks(guest: Guest) -> None:
    """The debug kernel finds no memory that nothing points to, once the module is unloaded."""
    assert not loaded(guest.vm), "the module is still loaded"
    found = leaks(guest.vm)
    assert not found, f"the guest leaks memory:\n{found}"


def test_guest_log_clean(guest: Guest) -> None:
    """The guest is there, and its kernel has not complained of anything."""
    healthy(guest.vm)
