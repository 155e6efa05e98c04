"""On the debug kernel, memory that nothing points to is found once all other tests have run."""

from __future__ import annotations

import pytest
from hallway_tests.guests import no_leaks
from hallway_tests.pair import LEAKS, Pair


@pytest.mark.last
@pytest.mark.kernel("debug")
@pytest.mark.parametrize("group", [pytest.param(one, marks=pytest.mark.xdist_group(one)) for one in LEAKS])
def test_no_leaks(pair: Pair, group: str) -> None:
    """The module, unloaded, has leaked nothing in the guests of this group."""
    pair.unload()
    no_leaks(*pair.both)
