# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A VM's QEMU, its region, its module or its switch ends tunnels under load."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hallway_lab.vm import VM
from hallway_tests import tunnels
from hallway_tests.guests import members, wait_members
from hallway_tests.pair import Pair
from hallway_tests.record import Outcome
from hallway_tests.suite import check, wait_for
from hallway_tests.tunnels import PORT, PROGRAM, cid, served

from .bystander import MAY_STAND_STILL, bystander, victim, wait_missed

pytestmark = [
    pytest.mark.record("faults"),
    pytest.mark.kernel("6.1"),
    pytest.mark.xdist_group("faults-tunnels"),
]

CONNS = 4  # of each talker: as many of each type
ENOUGH = 10  # messages of a talker that show that bytes flow
STALL = 60  # seconds for which they may stand still
AWAY = 5  # seconds for which a QEMU stands still


class Talker:
    """Connections of one VM to another one that follow each other, with messages of which each is checked."""

    def __init__(self, vm: VM, to: VM) -> None:
        self._vm, self._file = vm, f"/tmp/talk-to-{to.name}"
        vm.run(f"rm -f {self._file}")
        self.job = vm.spawn(f"exec {PROGRAM} talk {cid(to)} {PORT} {CONNS} {self._file}")
        self.wait_progress("at the start")

    def counted(self) -> dict[str, int]:
        """Return how many messages came back, how many connections failed, and how many bytes were others."""
        said = self._vm.run(f"cat {self._file} 2>/dev/null", check=False, first=True).out
        return json.loads(said) if said else {"echoed": 0, "failed": 0, "wrong": 0}

    def wait_progress(self, when: str) -> None:
        """Wait until more messages are echoed."""
        before = self.counted()["echoed"]
        wait_for(
            lambda: self.counted()["echoed"] >= before + ENOUGH, f"{self._vm.name} goes on {when}", STALL
        )
        wrong = self.counted()["wrong"]
        check(not wrong, f"{self._vm.name}: {wrong} messages are not what was sent")

    def wait_failed(self, before: int) -> None:
        """Wait until each connection has failed since."""
        wait_for(lambda: self.counted()["failed"] >= before + CONNS, f"{self._vm.name} learns of it", STALL)

    def end(self) -> None:
        """Kill it."""
        self.job.kill(9)
        self.job.wait()


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
                tunnels.load(third)
                server = tunnels.Talk(third, f"serve {PORT}")
                assert server.hear() == "ready"
                Talker(third, pair.a)
                talker = Talker(pair.a, third)
                before = talker.counted()["failed"]
                third.stop()
                with outcome.timed("reset after"):
                    talker.wait_failed(before)
                talker.end()
                wait_missed(pair, third)


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
