"""A member's devices are unplugged and plugged in again, from outside and from inside."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from hallway_lab.vm import VM
from hallway_tests.doomed import ended_as_tcp
from hallway_tests.guests import Stream, counters, wait_members
from hallway_tests.streams import TELLING
from hallway_tests.suite import check, wait_for

from .scenario import KERNELS, Outcome, Scenario
from .stage import Stage, pair

STREAMS = 4
DEVICES = "/sys/bus/pci/drivers/hallway/*:*"  # of QEMU: the doorbell, and the region
# The one without interrupts. Its register COMMAND, at 4, says whether it answers to memory accesses.
REGION = f"$(for one in {DEVICES}; do [ -e $one/resource1 ] || realpath $one; done)"


def unplugged(stage: Stage, outcome: Outcome) -> None:
    """QEMU unplugs a member's region, and plugs it in again."""
    with _streaming(stage, outcome) as (third, stream):
        for _ in outcome.rounds():
            with outcome.timed("unplugged in"):
                third.unplug("ring0")
            _goes_on(stage, third, stream)
            with outcome.timed("on rings again after"):
                third.plug(stage.pair.site.daemon.region)
                wait_members(*stage.pair.both, third)
                stage.on_rings(third, STREAMS)


def removed(stage: Stage, outcome: Outcome) -> None:
    """A guest removes region and doorbell from its bus, and finds them again."""
    with _streaming(stage, outcome) as (third, stream):
        for _ in outcome.rounds():
            with outcome.timed("removed in"):
                third.run(f"for one in {DEVICES}; do echo 1 > $one/remove; done")
            _goes_on(stage, third, stream)
            with outcome.timed("on rings again after"):
                third.run("echo 1 > /sys/bus/pci/rescan")
                wait_members(*stage.pair.both, third)
                stage.on_rings(third, STREAMS)


def vanished(stage: Stage, outcome: Outcome) -> None:
    """A member's region is gone from one moment to the next: streams end as TCP's, and others go on."""
    # A peer that copies when the slot is another generation's has to throw the bytes away.
    with stage.bystander(outcome, broken=True), stage.victim() as third:
        for _ in outcome.rounds():
            stream = Stream(third, stage.pair.a, conns=STREAMS, both=TELLING)
            stage.on_rings(third, STREAMS)
            third.run(f"cd {REGION} && printf '\\0\\0' | dd of=config bs=1 seek=4 conv=notrunc status=none")
            with outcome.timed("missed after"):
                stage.missed(third)
            # Their peer lives: it closes those of which nothing was lost.
            ended_as_tcp(stream, stream.client.wait(60), least=1)
            third.run(f"cd {REGION} && echo 1 > remove; echo 1 > /sys/bus/pci/rescan")
            wait_members(*stage.pair.both, third)
        check(third.verdict().ok, str(third.verdict()))


@contextlib.contextmanager
def _streaming(stage: Stage, outcome: Outcome) -> Iterator[tuple[VM, Stream]]:
    """Bring a third VM, with streams on rings that must come through it all."""
    with stage.bystander(outcome), stage.victim() as third:
        stream = Stream(third, stage.pair.a, conns=STREAMS)
        stage.on_rings(third, STREAMS)
        yield third, stream
        stream.stop()
        stream.finish()
        stage.pair.healthy()


def _goes_on(stage: Stage, third: VM, stream: Stream) -> None:
    """The others miss it at once, and its streams go on without a ring."""
    stage.missed(third)
    wait_for(lambda: not stage.ringed(third), "its streams are TCP's")
    before = _received(third)
    wait_for(lambda: _received(third) > before + 50_000, "bytes go over the wire")
    stream.check_running("with its region gone")


def _received(vm: VM) -> int:
    return int(vm.get("/sys/class/net/eth0/statistics/rx_bytes"))


def over_and_over(stage: Stage, outcome: Outcome) -> None:
    """Nothing on the machine minds how often a region was plugged in."""
    with stage.bystander(outcome), stage.victim() as third:
        for _ in outcome.rounds():
            third.unplug("ring0")
            third.plug(stage.pair.site.daemon.region)
            with outcome.timed("a member after"):
                wait_members(stage.pair.a, third)
        Stream(third, stage.pair.a, conns=STREAMS, seconds=1).finish()
        check(counters(third)["tx_promoted"] >= STREAMS, "a VM that was plugged in last is not promoted")


SCENARIOS = (
    Scenario("region-unplugged", "device_del and device_add of a peer's region", 20, pair, unplugged),
    Scenario("devices-removed", "a peer removes region and doorbell, and rescans", 20, pair, removed),
    Scenario("region-vanishes", "a peer's region answers no more, then is removed", 20, pair, vanished),
    Scenario("plug-cycles", "device_del and device_add, nothing else", 100, pair, over_and_over, KERNELS),
)
