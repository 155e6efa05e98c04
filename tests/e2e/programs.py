"""Other people's programs: two of those that tests/compat runs, between the same VMs."""

from __future__ import annotations

from compat import databases, verdict, web
from compat.stage import Stage
from hallway_lab.measure import Stand
from hallway_tests.pair import Pair
from hallway_tests.suite import check

SWITCHES = 4


def programs(pair: Pair) -> None:
    """nginx, wget and Redis move right bytes on rings, and while carriers switch."""
    pair.load(promote_bytes=0, promote_ms=0)
    stage, stand = Stage(*pair.both), Stand(pair.site)
    for program, mode in ((web.WGET, verdict.STEADY), (databases.REDIS, verdict.SWITCHING)):
        with program.serve(stage):
            seed = pair.rng.getrandbits(30)
            outcome = verdict.run(program, stage, stand, mode, seed, SWITCHES)
        check(not outcome.faults, f"{program.title}, {mode}, seed {seed}: " + "\n".join(outcome.faults))
    stage.close()


TESTS = (programs,)
