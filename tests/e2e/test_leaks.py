# SPDX-License-Identifier: Apache-2.0 OR MIT
"""On the debug kernel, memory that nothing points to is found once all other tests have run."""

from __future__ import annotations

import pytest
from hallway_tests import tunnels
from hallway_tests.guests import loaded, no_leaks, rmmod
from hallway_tests.outsourced import Outsourced
from hallway_tests.pair import Pair

pytestmark = [pytest.mark.last, pytest.mark.kernel("debug")]


@pytest.mark.parametrize(
    "group",
    [pytest.param(one, marks=pytest.mark.xdist_group(one)) for one in ("e2e-peers", "e2e-tunnels")],
)
def test_no_leaks(pair: Pair, group: str) -> None:
    """The modules, unloaded, have leaked nothing in the guests of this group."""
    tunnels.unload(*pair.both)
    pair.unload()
    no_leaks(*pair.both)


@pytest.mark.xdist_group("e2e-outsourcing")
def test_no_leaks_outsourced(outsourced: Outsourced) -> None:
    """Nor has the module where sockets were outsourced."""
    if loaded(outsourced.vm):
        rmmod(outsourced.vm)
    no_leaks(outsourced.vm)
