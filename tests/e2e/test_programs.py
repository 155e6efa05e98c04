# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Other people's programs: two of those that tests/programs runs."""

from __future__ import annotations

import random

import pytest
from hallway_lab.measure import Stand
from hallway_tests.guests import AT_ONCE
from hallway_tests.pair import Pair
from programs.databases import REDIS
from programs.judge import STEADY, SWITCHING, use
from programs.program import Vms
from programs.web import WGET

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("e2e-streams"),
    pytest.mark.not_on("6.12", "programs hardly depend on the kernel"),
    pytest.mark.not_on("debug", "programs are slow there"),
]

SWITCHES = 4


def test_programs(pair: Pair, rng: random.Random) -> None:
    """nginx, wget and Redis move right bytes on rings, and while carriers switch."""
    pair.load(**AT_ONCE)
    vms, stand = Vms(*pair.both), Stand(pair.site)
    for program, carrier in ((WGET, STEADY), (REDIS, SWITCHING)):
        with program.serve(vms):
            used = use(program, vms, stand, carrier, rng.getrandbits(30), SWITCHES)
        assert not used.faults, f"{program.title}, {carrier}: " + "\n".join(used.faults)
    vms.close()
