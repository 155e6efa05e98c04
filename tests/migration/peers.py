"""A peer's machine stops, dies, panics or is reset."""

from __future__ import annotations

import time
from collections.abc import Callable

from hallway_lab.vm import VM
from hallway_tests import kexec
from hallway_tests.doomed import Doomed, ended, stopped_qemu
from hallway_tests.guests import Stream, insmod, settle_in, wait_members
from hallway_tests.streams import TELLING
from hallway_tests.suite import check

from .scenario import KERNELS, Outcome, Scenario
from .stage import AT_ONCE, Stage, pair

# A kernel whose clock jumps would take that for a CPU or a task that is stuck.
MAY_STAND_STILL = "nosoftlockup rcupdate.rcu_cpu_stall_timeout=300 sysctl.kernel.hung_task_timeout_secs=0"
STREAMS = 4
STALL = 150  # seconds for which a stream may stand still


def killed(stage: Stage, outcome: Outcome) -> None:
    """A QEMU is killed."""
    _end(stage, outcome, VM.stop)


def panicked(stage: Stage, outcome: Outcome) -> None:
    """A guest panics, and its QEMU ends with it."""
    _end(stage, outcome, panic)


def powered_off(stage: Stage, outcome: Outcome) -> None:
    """A guest's kernel shuts its devices down and powers off: it leaves by its own word, without a FIN."""
    with stage.bystander(outcome):
        stage.pair.a.run("sysctl -q net.ipv4.tcp_retries2=3")
        for _ in outcome.rounds():
            with stage.victim() as third:
                streams = Stream(third, stage.pair.a, conns=STREAMS, both=TELLING)
                stage.on_rings(third, STREAMS)
                power_off(third)
                with outcome.timed("missed after"):
                    stage.missed(third)
                ended(streams, 60)
        stage.pair.a.run("sysctl -q net.ipv4.tcp_retries2=15")


def halted(stage: Stage, outcome: Outcome) -> None:
    """A machine stands still for ever, in a QEMU that lives: nobody but its heartbeat tells."""
    _end(stage, outcome, lambda third: third.qmp.command("stop"))


def reset(stage: Stage, outcome: Outcome) -> None:
    """A guest is reset and boots again in its QEMU, over and over."""
    with stage.bystander(outcome), stage.victim(reboots=True) as third:
        for _ in outcome.rounds():
            doomed = _dies(stage, outcome, third, VM.reset, "ETIMEDOUT", "ECONNRESET")
            third.wait_boot()
            third.run("rm -f /tmp/say /tmp/said")
            settle_in(third)
            # The firmware has put the region where guests map it uncached.
            third.unplug("ring0")
            insmod(third, **AT_ONCE)
            third.plug(stage.pair.site.daemon.region)
            wait_members(*stage.pair.both, third)
            doomed.forgotten()


def kexeced(stage: Stage, outcome: Outcome) -> None:
    """A guest's kernel starts another one, over and over: it leaves, and the next one knows no connection."""
    with stage.bystander(outcome), stage.victim() as third:
        kexec.lay_out(stage.pair.share, third)
        for _ in outcome.rounds():
            streams = Stream(third, stage.pair.a, conns=STREAMS, both=TELLING)
            stage.on_rings(third, STREAMS)
            kexec.kexec(third)
            stage.missed(third)
            third.wait_boot()
            ended(streams, 60)
            settle_in(third)
            insmod(third, **AT_ONCE)
            wait_members(*stage.pair.both, third)


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
    doomed.dies()
    die(third)
    with outcome.timed("missed after"):
        doomed.missed()
    after = doomed.ended(*ends)
    outcome.note("keep-alive ended an idle connection after", after["idle"])
    outcome.note("TCP_USER_TIMEOUT ended one after", after["hasty"])
    return doomed


def panic(vm: VM) -> None:
    """Have a guest's kernel panic; its QEMU ends with it."""
    vm.spawn("echo c > /proc/sysrq-trigger")


def power_off(vm: VM) -> None:
    """Have a guest's kernel shut its devices down, and its machine."""
    vm.spawn("echo o > /proc/sysrq-trigger")


def stopped(stage: Stage, outcome: Outcome) -> None:
    """A QEMU is stopped for a while: its streams go on over TCP, and then in rings again."""
    _absent(stage, outcome, lambda third: _stand_still(stage, third, 5))


def stopped_long(stage: Stage, outcome: Outcome) -> None:
    """A QEMU is stopped for a minute."""
    _absent(stage, outcome, lambda third: _stand_still(stage, third, 60))


def slept(stage: Stage, outcome: Outcome) -> None:
    """A guest suspends its machine to memory, and is woken."""
    _absent(stage, outcome, lambda third: _sleep(stage, third))


def _absent(stage: Stage, outcome: Outcome, away: Callable[[VM], None]) -> None:
    with stage.bystander(outcome), stage.victim(cmdline=MAY_STAND_STILL) as third:
        # On both sides: the one that stood still finds that so much time has passed.
        stream = Stream(third, stage.pair.a, conns=STREAMS, both=f"--stall {STALL}")
        for _ in outcome.rounds():
            stage.on_rings(third, STREAMS)
            away(third)
            with outcome.timed("on rings again after"):
                wait_members(*stage.pair.both, third, timeout=60)
                stage.on_rings(third, STREAMS, 90)
            stream.check_running("with its peer away")
        stream.stop()
        stream.finish()
        check(third.verdict().ok, str(third.verdict()))


def _stand_still(stage: Stage, third: VM, seconds: float) -> None:
    """Have a QEMU stand still for so long."""
    begin = time.monotonic()
    with stopped_qemu(stage.pair, third):
        time.sleep(max(0.0, begin + seconds - time.monotonic()))


def _sleep(stage: Stage, third: VM) -> None:
    """Have a guest sleep until the others have noticed."""
    third.spawn("echo mem > /sys/power/state")
    third.qmp.wait_event("SUSPEND", 30)
    stage.missed(third)
    third.qmp.command("system_wakeup")


SCENARIOS = (
    Scenario("qemu-killed", "kill -9 of a peer's QEMU", 20, pair, killed, KERNELS),
    Scenario("guest-panics", "a peer's kernel panics, its QEMU ends", 20, pair, panicked),
    Scenario("guest-powers-off", "a peer's kernel powers its machine off", 20, pair, powered_off),
    Scenario("guest-halted", "a peer stands still for ever, its QEMU lives", 20, pair, halted),
    Scenario("guest-reset", "a peer is reset, and boots again in its QEMU", 20, pair, reset),
    Scenario("guest-kexec", "a peer's kernel starts another one", 5, pair, kexeced),
    Scenario("guest-sleeps", "a peer suspends to memory (S3), and is woken", 20, pair, slept),
    Scenario("qemu-stopped", "a peer's QEMU stands still for 5 s", 20, pair, stopped),
    Scenario("long-stop", "a peer's QEMU stands still for 60 s", 3, pair, stopped_long),
)
