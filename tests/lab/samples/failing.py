# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A test that fails, and one that is never chosen."""

from __future__ import annotations

import random


def test_fails(rng: random.Random) -> None:
    """Two values differ; the output tells both."""
    number = rng.randrange(10**9)
    print(f"the number is {number}")
    assert {"came": 3} == {"came": 4}, "other bytes came than were sent"
