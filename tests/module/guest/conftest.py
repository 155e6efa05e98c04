# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What the module tests have in the guest that runs them; tests/module/conftest.py is the host's part."""

from __future__ import annotations

import os

import pytest

pytest.register_assert_rewrite("link", "pairs", "rows")
from pairs import hallway, insmod, rmmod  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def module_loaded():
    """Load the module for each file of tests, and unload it after the file."""
    insmod()
    yield
    if os.path.exists("/sys/module/hallway"):
        rmmod()


def pytest_runtest_logreport(report):
    """Switch Hallway on after a test that failed: it may have left it off, and the next ones need it."""
    if report.failed and os.path.exists("/sys/module/hallway"):
        hallway("on")
