# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A peer's machine stops, dies, panics, sleeps or is reset."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from hallway_lab.vm import VM, VMError
from hallway_tests import kexec
from hallway_tests.doomed import Doomed, ended, paused_peer
from hallway_tests.guests import AT_ONCE, Stream, insmod, settle_in, wait_members
from hallway_tests.pair import Pair
from hallway_tests.record import Outcome
from hallway_tests.streams import TELLING
from hallway_tests.suite import check

from .bystander import MAY_STAND_STILL, bystander, victim, wait_missed, wait_on_rings
from .ends import panic, power_off

pytestmark = [pytest.mark.record("faults"), pytest.mark.kernel("6.1"), pytest.mark.xdist_group("faults")]

STREAMS = 4
STALL = 150  # seconds for which a stream may stand still


@pytest.mark.fault("kill -9 of a peer's QEMU")
@pytest.mark.kernel("6.12")
def test_qemu_killed(pair: Pair, outcome: Outcome, rounds: Iterator[int]) -> None:
    """A QEMU is killed."""
    _end_each_round(pair, outcome, rounds, VM.stop)


@pytest.mark.fault("a peer's kernel panics, its QEMU ends")
def test_guest_panics(pair: Pair, outcome: Outcome, rounds: Iterator[int]) -> None:
    """A guest panics, and its QEMU ends with it."""
    _end_each_round(pair, outcome, rounds, panic)


@pytest.mark.fault("a peer's kernel powers its machine off")
def test_guest_powers_off(pair: Pair, outcome: Outcome, rounds: Iterator[int]) -> None:
    """A guest's kernel shuts its devices down and powers off: it leaves, and sends no FIN."""
    with bystander(pair, outcome):
        pair.a.run("sysctl -q net.ipv4.tcp_retries2=3")
        for _ in rounds:
            with victim(pair) as third:
                streams = Stream(third, pair.a, conns=STREAMS, both=TELLING)
                wait_on_rings(pair, third, STREAMS)
                power_off(third)
                with outcome.timed("missed after"):
                    wait_missed(pair, third)
                ended(streams, 60)
        pair.a.run("sysctl -q net.ipv4.tcp_retries2=15")


@pytest.mark.fault("a peer stands still for ever, its QEMU lives")
def test_guest_halted(pair: Pair, outcome: Outcome, rounds: Iterator[int]) -> None:
    """A machine stands still for ever in a QEMU that lives: only its heartbeat shows it."""
    _end_each_round(pair, outcome, rounds, lambda third: third.qmp.command("stop"))


@pytest.mark.fault("a peer is reset, and boots again in its QEMU")
def test_guest_reset(pair: Pair, outcome: Outcome, rounds: Iterator[int]) -> None:
    """A guest is reset and boots again in its QEMU, over and over."""
    with bystander(pair, outcome), victim(pair, reboots=True) as third:
        for _ in rounds:
            doomed = _dies(pair, outcome, third, VM.reset, "ETIMEDOUT", "ECONNRESET")
            third.wait_boot()
            third.run("rm -f /tmp/say /tmp/said")
            settle_in(third)
            # The firmware has put the region where guests map it uncached.
            third.unplug("ring0")
            insmod(third, **AT_ONCE)
            third.plug(pair.site.daemon.region)
            wait_members(*pair.both, third)
            doomed.forgotten()


@pytest.mark.fault("a peer's kernel starts another one", rounds=5)
def test_guest_kexec(pair: Pair, outcome: Outcome, rounds: Iterator[int]) -> None:
    """A guest's kernel starts another one, over and over: it leaves, and the next one has no connection."""
    with bystander(pair, outcome), victim(pair) as third:
        kexec.lay_out(pair.share, third)
        for _ in rounds:
            streams = Stream(third, pair.a, conns=STREAMS, both=TELLING, stall=STALL)
            wait_on_rings(pair, third, STREAMS)
            kexec.kexec(third)
            wait_missed(pair, third)
            third.wait_boot()
            # TCP asks again after up to twice the time that the kernel took to start.
            ended(streams, STALL)
            settle_in(third)
            insmod(third, **AT_ONCE)
            wait_members(*pair.both, third)


@pytest.mark.fault("a peer suspends to memory (S3), and is woken")
def test_guest_sleeps(pair: Pair, outcome: Outcome, rounds: Iterator[int]) -> None:
    """A guest suspends its machine to memory, and is woken."""
    _need_sleep(pair)
    _away_each_round(pair, outcome, rounds, lambda third: _sleep(pair, third))


@pytest.mark.fault("a peer's QEMU stands still for 5 s")
def test_qemu_stopped(pair: Pair, outcome: Outcome, rounds: Iterator[int]) -> None:
    """A QEMU is stopped for a while: its streams go on over TCP, then in rings again."""
    _away_each_round(pair, outcome, rounds, lambda third: _stand_still(pair, third, 5))


@pytest.mark.fault("a peer's QEMU stands still for 60 s", rounds=3)
def test_long_stop(pair: Pair, outcome: Outcome, rounds: Iterator[int]) -> None:
    """A QEMU is stopped for a minute."""
    _away_each_round(pair, outcome, rounds, lambda third: _stand_still(pair, third, 60))


def _end_each_round(pair: Pair, outcome: Outcome, rounds: Iterator[int], end: Callable[[VM], object]) -> None:
    """Have a VM end each round; a QEMU that lives on is killed then."""
    with bystander(pair, outcome):
        for _ in rounds:
            with victim(pair) as third:
                doomed = _dies(pair, outcome, third, end)
                third.stop()
                doomed.forgotten()


def _dies(pair: Pair, outcome: Outcome, third: VM, die: Callable[[VM], object], *ends: str) -> Doomed:
    doomed = Doomed(pair, third)
    doomed.dies()
    die(third)
    with outcome.timed("missed after"):
        doomed.missed()
    after = doomed.ended(*ends)
    outcome.note("keep-alive ended an idle connection after", after["idle"])
    outcome.note("TCP_USER_TIMEOUT ended one after", after["hasty"])
    return doomed


def _away_each_round(pair: Pair, outcome: Outcome, rounds: Iterator[int], away: Callable[[VM], None]) -> None:
    """Have a VM be away each round: its streams go on, and return to rings."""
    with bystander(pair, outcome), victim(pair, cmdline=MAY_STAND_STILL) as third:
        # On both sides: the clock of the one that stood still jumps.
        stream = Stream(third, pair.a, conns=STREAMS, both=f"--stall {STALL}")
        for _ in rounds:
            wait_on_rings(pair, third, STREAMS)
            away(third)
            with outcome.timed("on rings again after"):
                wait_members(*pair.both, third, timeout=60)
                wait_on_rings(pair, third, STREAMS, 90)
            stream.check_running("with its peer away")
        stream.stop()
        stream.finish()
        check(third.verdict().ok, str(third.verdict()))


def _stand_still(pair: Pair, third: VM, seconds: float) -> None:
    """Have a QEMU stand still for this long."""
    begin = time.monotonic()
    with paused_peer(pair, third):
        time.sleep(max(0.0, begin + seconds - time.monotonic()))


def _sleep(pair: Pair, third: VM) -> None:
    """Have a guest sleep until the others have noticed."""
    _suspend(third)
    wait_missed(pair, third)
    third.qmp.command("system_wakeup")


def _suspend(vm: VM) -> None:
    vm.spawn("echo mem > /sys/power/state")
    vm.qmp.wait_event("SUSPEND", 30)


def _need_sleep(pair: Pair) -> None:
    """Skip the test where a VM without the module and its devices does not come back from S3."""
    plain = pair.third(cmdline=MAY_STAND_STILL)
    with plain:
        _suspend(plain)
        try:
            plain.qmp.command("system_wakeup")
            plain.run("true", timeout=60 * pair.slow)
        except (VMError, OSError):
            pytest.skip("this QEMU resets a guest that wakes from S3, without Hallway too")
