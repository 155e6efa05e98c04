# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What samples of two carriers say."""

from __future__ import annotations

import pytest
from hallway_lab.sample import Row, Samples


def _samples(tcp: list[float], hallway: list[float], *, lower: bool = False) -> Samples:
    row = Row("row", "a row", "MB/s", lambda: pytest.fail("it is not run"), lower_is_better=lower)
    return Samples(row, tcp=tcp, hallway=hallway)


@pytest.mark.parametrize("lower", [False, True])
def test_even(lower: bool) -> None:
    """Medians that differ by noise are even; those that differ by more, or of samples apart, are not."""
    assert _samples([9.7, 10.1, 10.6], [9.0, 9.8, 11.3], lower=lower).is_even
    assert not _samples([9.9, 10.0, 10.1], [9.6, 9.7, 9.8], lower=lower).is_even
    assert not _samples([8.0, 10.0, 12.0], [8.0, 9.0, 12.0], lower=lower).is_even
    assert not _samples([10.0], [], lower=lower).is_even
