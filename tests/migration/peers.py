"""A peer's machine stops, dies, panics or is reset."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from e2e import kernel
from e2e.peers import Doomed, standing_still
from e2e.streams import CALM
from hallway_lab.vm import VM
from hallway_tests.guests import Stream, insmod, settle_in, wait_members
from hallway_tests.suite import check

from .scenario import Outcome, Scenario
from .stage import AT_ONCE, Stage, pair

# A kernel whose clock jumps would take that for a CPU or a task that is stuck.
MAY_STAND_STILL = "nosoftlockup rcupdate.rcu_cpu_stall_timeout=300 sysctl.kernel.hung_task_timeout_secs=0"
STREAMS = 4
SILENT = 3  # seconds until the silence is noticed


def killed(stage: Stage, outcome: Outcome) -> None:
    """A QEMU is killed."""
    _end(stage, outcome, VM.stop)


def panicked(stage: Stage, outcome: Outcome) -> None:
    """A guest panics, and its QEMU ends with it."""
    _end(stage, outcome, _panic)


def halted(stage: Stage, outcome: Outcome) -> None:
    """A machine stands still for ever, in a QEMU that lives: nobody but its heartbeat tells."""
    _end(stage, outcome, lambda third: third.qmp.command("stop"))


def reset(stage: Stage, outcome: Outcome) -> None:
    """A guest is reset and boots again in its QEMU, over and over."""
    with stage.bystander(outcome), stage.victim(reboots=True) as third:
        for _ in outcome.rounds():
            doomed = _boots_again(stage, outcome, third, VM.reset)
            # The firmware has put the region where guests map it uncached.
            third.unplug("ring0")
            insmod(third, **AT_ONCE)
            third.plug(stage.pair.site.daemon.region)
            wait_members(*stage.pair.both, third)
            doomed.forgotten()


def kexeced(stage: Stage, outcome: Outcome) -> None:
    """A guest's kernel starts another one, over and over."""
    with stage.bystander(outcome), stage.victim() as third:
        kernel.lay_out(stage.pair.share, third)
        for _ in outcome.rounds():
            doomed = _boots_again(stage, outcome, third, kernel.kexec)
            insmod(third, **AT_ONCE)
            wait_members(*stage.pair.both, third)
            doomed.forgotten()


def _boots_again(stage: Stage, outcome: Outcome, third: VM, boot: Callable[[VM], object]) -> Doomed:
    doomed = _dies(stage, outcome, third, boot, "ETIMEDOUT", "ECONNRESET")
    third.wait_boot()
    third.run("rm -f /tmp/say /tmp/said")
    settle_in(third)
    return doomed


def _end(stage: Stage, outcome: Outcome, end: Callable[[VM], object]) -> None:
    """Have a VM end each round; a QEMU that lives on is killed then."""
    with stage.bystander(outcome):
        for _ in outcome.rounds():
            with stage.victim() as third:
                doomed = _dies(stage, outcome, third, end)
                third.stop()
                doomed.forgotten()


def _dies(stage: Stage, outcome: Outcome, third: VM, die: Callable[[VM], object], *ends: str) -> Doomed:
    doomed = Doomed(stage.pair, third)
    die(third)
    with outcome.timed("missed after"):
        doomed.missed()
    with outcome.timed("ended after"):
        doomed.ended(*ends)
    return doomed


def _panic(vm: VM) -> None:
    vm.spawn("echo c > /proc/sysrq-trigger")


def stopped(stage: Stage, outcome: Outcome) -> None:
    """A QEMU is stopped for a while: its streams go on over TCP, and then in rings again."""
    _stopped(stage, outcome, 5)


def stopped_long(stage: Stage, outcome: Outcome) -> None:
    """A QEMU is stopped for a minute."""
    _stopped(stage, outcome, 60)


def _stopped(stage: Stage, outcome: Outcome, seconds: float) -> None:
    with stage.bystander(outcome), stage.victim(cmdline=MAY_STAND_STILL) as third:
        # On both sides: the one that stood still finds that so much time has passed.
        calls = f"{CALM} --stall {90 + seconds}"
        stream = Stream(third, stage.pair.a, conns=STREAMS, both=calls)
        for _ in outcome.rounds():
            stage.on_rings(third, STREAMS)
            with standing_still(stage.pair, third), _at_least(seconds - SILENT):
                pass
            with outcome.timed("on rings again after"):
                wait_members(*stage.pair.both, third, timeout=60)
                stage.on_rings(third, STREAMS, 90)
            stream.check_running("with its peer stopped")
        stream.stop()
        stream.finish()
        check(third.verdict().ok, str(third.verdict()))


@contextlib.contextmanager
def _at_least(seconds: float) -> Iterator[None]:
    """Let the block take that long."""
    begin = time.monotonic()
    yield
    time.sleep(max(0.0, begin + seconds - time.monotonic()))


SCENARIOS = (
    Scenario("qemu-killed", "kill -9 of a peer's QEMU", 20, pair, killed),
    Scenario("guest-panics", "a peer's kernel panics, its QEMU ends", 20, pair, panicked),
    Scenario("guest-halted", "a peer stands still for ever, its QEMU lives", 20, pair, halted),
    Scenario("guest-reset", "a peer is reset, and boots again in its QEMU", 20, pair, reset),
    Scenario("guest-kexec", "a peer's kernel starts another one", 20, pair, kexeced),
    Scenario("qemu-stopped", "a peer's QEMU stands still for 5 s", 20, pair, stopped),
    Scenario("long-stop", "a peer's QEMU stands still for 60 s", 3, pair, stopped_long),
)
