"""Ring memory is a budget: many idle connections, some busy ones, little memory."""

from __future__ import annotations

import pytest
from hallway_tests.crowd import crowd
from hallway_tests.pair import Pair

pytestmark = pytest.mark.xdist_group("e2e-streams")

RING = 16384 + 4096  # bytes that the smallest ring takes of a slice


def test_budget_crowd(pair: Pair) -> None:
    """500 idle connections and 10 busy ones, with memory for 100 small rings."""
    crowd(pair, 500, 10, memory_bytes=100 * RING)
