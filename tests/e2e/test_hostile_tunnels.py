# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A member's kernel says what it likes about tunnels, and writes what it likes into their rings."""

from __future__ import annotations

import random

import pytest
from hallway_lab.vm import VM
from hallway_tests import hostile, tunnels
from hallway_tests.guests import AT_ONCE, Delta, insmod, members, odd, settle_in, wait_members
from hallway_tests.pair import Pair
from hallway_tests.suite import wait_for
from hallway_tests.talker import Talker
from hallway_tests.tunnels import DATAGRAMS, PORT, Talk, cid, run, served

pytestmark = pytest.mark.xdist_group("e2e-tunnels")

# What is to happen, and how often at least.
ENOUGH = {
    **{"tunnel_arrivals": 50, "tunnel_connections": 3, "tunnel_refusals": 30},
    **{"corrupt_rings": 5, "tunnel_datagrams_received": 2},
}


@pytest.mark.slow_on("6.12")
@pytest.mark.timeout(900)
@pytest.mark.needs("hallway_tests.hostile:prepare")
def test_hostile_end(pair: Pair, rng: random.Random) -> None:
    """No kernel is harmed, other VMs' tunnels go on, memory comes back, and the member may behave again."""
    pair.load(**AT_ONCE)
    a, b = pair.both
    with tunnels.tunnels(pair), served(a):
        echo = _echo(a)
        talker = Talker(b, a)
        third = pair.third()
        with pair.site.join(third):
            settle_in(third)
            insmod(third, **AT_ONCE)
            wait_members(a, b, third)
            caller = Talker(a, third, refused=True)
            delta, others = Delta(a), Delta(b)
            words = f"cid={cid(a)} port={PORT} seed={rng.getrandbits(32)}"
            job = third.spawn(f"exec insmod /hallway/{hostile.FILE} {words}")

            def enough() -> bool:
                assert not job.poll(), "it has ended"
                moved = delta.of(a)
                moved["tunnel_arrivals"] -= others.of(b)["tunnel_connections"]
                return all(moved[name] >= least for name, least in ENOUGH.items())

            wait_for(enough, f"as much has happened: {ENOUGH}", 60 * pair.slow)
            job.kill(2)
            job.wait(60 * pair.slow)
            caller.end()
            talker.wait_progress("beside a hostile member")
            third.run("rmmod hostile")
            # What its ends have left behind goes with the member.
            third.run("rmmod hallway", timeout=60 * pair.slow)
            wait_for(lambda: not any(third.ip4 in members(vm) for vm in (a, b)), "both miss it")
            insmod(third, **AT_ONCE)
            wait_members(a, b, third)
            tunnels.load(third)
            again = Talker(third, a)
            # The one before has waited for the member to read, and ended with its departure.
            echo.end()
            echo = _echo(a)
            said = run(b, f"trips {cid(a)} {PORT + 2} 20 1", 60 * pair.slow, DATAGRAMS)
            assert not said["wrong"], said["wrong"]
            talker.wait_progress("with the member that behaves again")
            assert not odd(others.of(b))
            for one in (talker, again):
                counted = one.counted()
                assert not counted["failed"], f"tunnels between others failed: {counted}"
            again.end()
            tunnels.unload(third)
        talker.end()
        echo.end()


def _echo(vm: VM) -> Talk:
    talk = Talk(vm, f"echo {PORT + 2}", DATAGRAMS)
    assert talk.hear() == "ready"
    return talk
