# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Tests that need what cannot be made."""

import pytest


@pytest.mark.needs("test_nothing:prepare")
@pytest.mark.parametrize("number", range(3))
def test_needs(number: int) -> None:
    """Is not run."""
    assert number
