# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A member's devices are unplugged and plugged in again, from outside and from inside."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from hallway_lab.vm import VM
from hallway_tests.doomed import ended_as_tcp
from hallway_tests.guests import Stream, counters, wait_members
from hallway_tests.pair import Pair, count_on_rings
from hallway_tests.record import Outcome
from hallway_tests.streams import TELLING
from hallway_tests.suite import check, wait_for

from .bystander import bystander, victim, wait_missed, wait_on_rings

pytestmark = [pytest.mark.record("faults"), pytest.mark.kernel("6.1"), pytest.mark.xdist_group("faults")]

STREAMS = 4
DEVICES = "/sys/bus/pci/drivers/hallway/*:*"  # of QEMU: the doorbell, and the region
# The device without interrupts. Bit 1 of its register COMMAND, at 4, turns answers to memory accesses on.
REGION = f"$(for one in {DEVICES}; do [ -e $one/resource1 ] || realpath $one; done)"


@pytest.mark.fault("device_del and device_add of a peer's region")
def test_region_unplugged(pair: Pair, outcome: Outcome, rounds: Iterator[int]) -> None:
    """QEMU unplugs a member's region, and plugs it in again."""
    with _streaming(pair, outcome) as (third, stream):
        for _ in rounds:
            with outcome.timed("unplugged in"):
                third.unplug("ring0")
            _goes_on(pair, third, stream)
            with outcome.timed("on rings again after"):
                third.plug(pair.site.daemon.region)
                wait_members(*pair.both, third)
                wait_on_rings(pair, third, STREAMS)


@pytest.mark.fault("a peer removes region and doorbell, and rescans")
def test_devices_removed(pair: Pair, outcome: Outcome, rounds: Iterator[int]) -> None:
    """A guest removes region and doorbell from its bus, and finds them again."""
    with _streaming(pair, outcome) as (third, stream):
        for _ in rounds:
            with outcome.timed("removed in"):
                third.run(f"for one in {DEVICES}; do echo 1 > $one/remove; done")
            _goes_on(pair, third, stream)
            with outcome.timed("on rings again after"):
                third.run("echo 1 > /sys/bus/pci/rescan")
                wait_members(*pair.both, third)
                wait_on_rings(pair, third, STREAMS)


@pytest.mark.fault("a peer's region answers no more, then is removed")
def test_region_vanishes(pair: Pair, outcome: Outcome, rounds: Iterator[int]) -> None:
    """A member's region stops to answer at once: its streams end as TCP's do, and others go on."""
    # A peer that copies while the slot changes its generation must discard the bytes.
    with bystander(pair, outcome, broken=True), victim(pair) as third:
        for _ in rounds:
            stream = Stream(third, pair.a, conns=STREAMS, both=TELLING)
            wait_on_rings(pair, third, STREAMS)
            third.run(f"cd {REGION} && printf '\\0\\0' | dd of=config bs=1 seek=4 conv=notrunc status=none")
            with outcome.timed("missed after"):
                wait_missed(pair, third)
            # Their peer lives: connections that lost nothing end in order.
            ended_as_tcp(stream, stream.client.wait(60), least=1)
            third.run(f"cd {REGION} && echo 1 > remove; echo 1 > /sys/bus/pci/rescan")
            wait_members(*pair.both, third)
        check(third.verdict().ok, str(third.verdict()))


@pytest.mark.fault("device_del and device_add, nothing else", rounds=100)
@pytest.mark.kernel("6.12")
def test_plug_cycles(pair: Pair, outcome: Outcome, rounds: Iterator[int]) -> None:
    """A region can be plugged in any number of times."""
    with bystander(pair, outcome), victim(pair) as third:
        for _ in rounds:
            third.unplug("ring0")
            third.plug(pair.site.daemon.region)
            with outcome.timed("a member after"):
                wait_members(pair.a, third)
        Stream(third, pair.a, conns=STREAMS, seconds=1).finish()
        check(counters(third)["tx_promoted"] >= STREAMS, "nothing is promoted after the last time")


@contextlib.contextmanager
def _streaming(pair: Pair, outcome: Outcome) -> Iterator[tuple[VM, Stream]]:
    """Boot a third VM, with streams on rings that must go on to the end of the block."""
    with bystander(pair, outcome), victim(pair) as third:
        stream = Stream(third, pair.a, conns=STREAMS)
        wait_on_rings(pair, third, STREAMS)
        yield third, stream
        stream.stop()
        stream.finish()
        pair.healthy()


def _goes_on(pair: Pair, third: VM, stream: Stream) -> None:
    """Wait until the others miss the VM, and its streams go on without a ring."""
    wait_missed(pair, third)
    wait_for(lambda: not count_on_rings(pair.a, third), "its streams are on TCP")
    before = _received(third)
    wait_for(lambda: _received(third) > before + 50_000, "bytes go over the wire")
    stream.check_running("with its region gone")


def _received(vm: VM) -> int:
    return int(vm.get("/sys/class/net/eth0/statistics/rx_bytes"))
