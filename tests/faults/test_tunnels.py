# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A VM's QEMU, its region, its module or its switch ends tunnels under load."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hallway_lab.vm import VM
from hallway_tests import tunnels
from hallway_tests.guests import AT_ONCE, insmod, members, settle_in, wait_members
from hallway_tests.pair import Pair
from hallway_tests.record import Outcome
from hallway_tests.suite import check, wait_for
from hallway_tests.talker import Talker
from hallway_tests.tunnels import PORT, cid, served

from .bystander import MAY_STAND_STILL, bystander, victim, wait_missed

pytestmark = [
    pytest.mark.record("faults"),
    pytest.mark.kernel("6.1", "6.12"),
    pytest.mark.xdist_group("faults-tunnels"),
]

AWAY = 5  # seconds for which a QEMU stands still


@contextlib.contextmanager
def talking(pair: Pair, outcome: Outcome) -> Iterator[None]:
    """Have tunnels between the two VMs that no fault may disturb; afterwards none holds anything."""
    with bystander(pair, outcome), tunnels.tunnels(pair), served(pair.a):
        talker = Talker(pair.b, pair.a)
        yield
        talker.wait_progress("at the end")
        failed = talker.counted()["failed"]
        check(not failed, f"{failed} tunnels between others failed")
        talker.end()


@contextlib.contextmanager
def third_talks(pair: Pair, **options: Any) -> Iterator[tuple[VM, Talker, Talker]]:
    """Boot a third VM, with tunnels to the first one and from there."""
    with victim(pair, **options) as third:
        tunnels.load(third)
        with served(third):
            talkers = Talker(third, pair.a), Talker(pair.a, third)
            yield third, *talkers
            for talker in talkers:
                talker.end()
        tunnels.unload(third)
        check(third.verdict().ok, str(third.verdict()))


@pytest.mark.fault("kill -9 of a QEMU, with tunnels in its guest")
def test_tunnels_qemu_killed(pair: Pair, outcome: Outcome, rounds: Iterator[int]) -> None:
    """A QEMU is killed: tunnels with its guest are reset, and others go on."""
    with talking(pair, outcome):
        for _ in rounds:
            with victim(pair) as third:
                _serve(third)
                Talker(third, pair.a)
                talker = Talker(pair.a, third)
                before = talker.counted()["failed"]
                third.stop()
                with outcome.timed("reset after"):
                    talker.wait_failed(before)
                talker.end()
                wait_missed(pair, third)


@pytest.mark.fault("reset of a guest with tunnels, which boots again in its QEMU")
def test_tunnels_guest_reset(pair: Pair, outcome: Outcome, rounds: Iterator[int]) -> None:
    """A guest is reset: so are its tunnels, which come again by the same CID. Listeners elsewhere stay."""
    with talking(pair, outcome), victim(pair, reboots=True) as third:
        _serve(third)
        talker, known = Talker(pair.a, third), cid(third)
        Talker(third, pair.a)
        for _ in rounds:
            before = talker.counted()["failed"]
            with outcome.timed("tunnels again after"):
                third.reset()
                third.wait_boot()
                settle_in(third)
                # The firmware has put the region where guests map it uncached.
                third.unplug("ring0")
                insmod(third, **AT_ONCE)
                third.plug(pair.site.daemon.region)
                wait_members(*pair.both, third)
                _serve(third)
                talker.wait_failed(before)
                check(cid(third) == known, f"its CID was {known}, and is {cid(third)}")
                Talker(third, pair.a)
                talker.wait_progress("with a guest that has booted")
        talker.end()


def _serve(vm: VM) -> None:
    """Have a guest serve tunnels, until it is gone."""
    tunnels.load(vm)
    assert tunnels.Talk(vm, f"serve {PORT}").hear() == "ready"


@pytest.mark.fault("device_del and device_add of a region with tunnels")
def test_tunnels_unplugged(pair: Pair, outcome: Outcome, rounds: Iterator[int]) -> None:
    """A region is unplugged: its tunnels are reset, and come again with it."""
    with talking(pair, outcome), third_talks(pair) as (third, *talkers):
        for _ in rounds:
            before = [talker.counted()["failed"] for talker in talkers]
            with outcome.timed("unplugged in"):
                third.unplug("ring0")
            for talker, failed in zip(talkers, before, strict=True):
                talker.wait_failed(failed)
            third.plug(pair.site.daemon.region)
            with outcome.timed("tunnels again after"):
                wait_members(*pair.both, third)
                for talker in talkers:
                    talker.wait_progress("with its region")


@pytest.mark.fault("hallway tunnels off, rmmod hallway_vsock, and back")
def test_tunnels_switched_off(pair: Pair, outcome: Outcome, rounds: Iterator[int]) -> None:
    """Tunnels are switched off: they are reset, the module goes once programs end, and all comes back."""
    with talking(pair, outcome), victim(pair) as third:
        for _ in rounds:
            tunnels.load(third)
            with served(third):
                inwards, outwards = Talker(pair.a, third), Talker(third, pair.a)
                before = inwards.counted()["failed"], outwards.counted()["failed"]
                with outcome.timed("switched off in"):
                    third.run("hallway tunnels off")
                inwards.wait_failed(before[0])
                outwards.wait_failed(before[1])
                third.run("hallway tunnels on")
                inwards.wait_progress("after off and on")
                outwards.wait_progress("after off and on")
                third.run("hallway tunnels off")
                inwards.end()
                outwards.end()
            with outcome.timed("unloaded in"):
                tunnels.unload(third)


@pytest.mark.fault(f"a QEMU stands still for {AWAY} s, with tunnels in its guest")
def test_tunnels_qemu_stopped(pair: Pair, outcome: Outcome, rounds: Iterator[int]) -> None:
    """A QEMU stands still for a while: its tunnels wait, and lose nothing."""
    with talking(pair, outcome), third_talks(pair, cmdline=MAY_STAND_STILL) as (third, *talkers):
        for _ in rounds:
            third.qmp.command("stop")
            wait_for(lambda: third.ip4 not in members(pair.a), "it is unresponsive", 20)
            time.sleep(AWAY)
            third.qmp.command("cont")
            with outcome.timed("talks again after"):
                wait_members(*pair.both, third, timeout=60)
                for talker in talkers:
                    talker.wait_progress("after its peer was away")
            for talker in talkers:
                failed = talker.counted()["failed"]
                check(not failed, f"{failed} tunnels failed while a peer stood still")
