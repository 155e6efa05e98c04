# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A suite that takes two minutes, for runs that have no hours."""

from __future__ import annotations

import pytest

from . import cpython
from .carriers import CARRIERS
from .runner import Runner
from .suite import IMAGE


@pytest.mark.slow
@pytest.mark.record("suites")
@pytest.mark.kernel("6.1")
@pytest.mark.needs(f"image {IMAGE}", f"{cpython.__name__}:prepare")
@pytest.mark.xdist_group(f"suites-{cpython.QUICK.key}")
@pytest.mark.parametrize("carrier", CARRIERS)
def test_quick(runner: Runner, carrier: str) -> None:
    """CPython's tests of TCP sockets have the outcomes that they have over TCP."""
    runner.compare(cpython.QUICK, carrier)
