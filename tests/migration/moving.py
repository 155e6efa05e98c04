"""A VM under the load of several programs migrates, is saved and restored, stands still."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from hallway_lab import hosts
from hallway_lab.hosts import Host, Move
from hallway_lab.vm import VM, Job
from hallway_tests import two_hosts
from hallway_tests.doomed import ended_as_tcp
from hallway_tests.guests import AT_ONCE, Delta, Stream, connections, healthy, jobs_end, members, odd, rmmod
from hallway_tests.streams import TELLING
from hallway_tests.suite import check, wait_for
from hallway_tests.two_hosts import Hosts

from .scenario import KERNELS, PAUSE, Outcome, Scenario, Setting
from .stage import held

STREAMS, IPERFS, CLIENTS = 8, 6, 4  # with the session, and iperf3's own connection, 20
BOTH_WAYS = STREAMS + CLIENTS + 2  # with the session and the one that measures: iperf3's go one way
IPERF_PORT, REDIS_PORT = 5201, 6379
RECEIVED = re.compile(r":\d+\s+\S+:(\d+)\s.*?bytes_received:(\d+)")
STILL = 5  # seconds that a VM is away, or stands still


@contextlib.contextmanager
def hosts_of_two(setting: Setting) -> Iterator[Hosts]:
    """Boot two VMs on the first of two hosts."""
    with two_hosts.booted(setting.kernel, setting.share, setting.logs / "hosts", 3) as stage:
        for vm in stage.both:
            vm.run("redis-server --daemonize yes --save '' --protected-mode no --bind 0.0.0.0")
            vm.run("iperf3 -s -D")
        yield stage


class Load:
    """20 busy connections from the VM that migrates to the one that stays, and one that measures."""

    def __init__(self, stage: Hosts) -> None:
        self.stage, self._last = stage, dict[int, int]()
        stays, moves = stage.both
        # First: a program that starts under this load takes its time.
        self.measure = [moves.spawn("exec python3 -B /root/guest/pauses.py echo 4700")]
        wait_for(lambda: moves.run("ss -Hltn sport = :4700").out, "somebody echoes", 60)
        ask = f"exec python3 -B /root/guest/pauses.py ask {moves.ip4} 4700 /tmp/pauses"
        self.measure.append(stays.spawn(f": > /tmp/pauses; {ask}"))
        self.stream = Stream(stays, moves, conns=STREAMS, stall=60)
        self.session = moves.spawn(
            f"rm -f /tmp/stop; python3 -B /root/guest/session.py {stays.name} /tmp/stop"
        )
        self.programs = [
            moves.spawn(f"exec iperf3 -c {stays.ip4} -t 36000 -P {IPERFS} > /tmp/iperf3 2>&1"),
            moves.spawn(
                f"exec redis-benchmark -h {stays.ip4} -c {CLIENTS} -n 100000000 -t set > /tmp/redis 2>&1"
            ),
        ]

    def check_running(self, when: str) -> None:
        """Fail if one of the programs has ended, with what it said."""
        self.stream.check_running(when)
        for job in (self.session, *self.programs, *self.measure):
            check(job.poll() is None, f"{job.command} ended {when}: {job.poll()}")
        self._get_on(when)

    def _get_on(self, when: str) -> None:
        """Wait until each of iperf3's and Redis' connections has brought more than the last time."""

        def all_do() -> bool:
            now = self._received()
            moved = [port for port in self._last if now.get(port, 0) > self._last[port]]
            if len(moved) < IPERFS + CLIENTS:
                return False
            self._last = {port: now[port] for port in moved}
            return True

        self._last = self._last or self._received()
        wait_for(all_do, f"bytes come on {IPERFS + CLIENTS} connections {when}", 60)

    def _received(self) -> dict[int, int]:
        """Return what came on each connection of iperf3 and Redis, by their clients' ports."""
        where = f"'( sport = :{IPERF_PORT} or sport = :{REDIS_PORT} )'"
        shown = self.stage.stays.run(f"ss -HtniO state established {where}").out
        return {int(port): int(count) for port, count in RECEIVED.findall(shown)}

    def longest_pause(self) -> float:
        """Return how long the connection that measures stood still at most, since the last call."""
        stays = self.stage.stays

        def lines() -> list[str]:
            return stays.get("/tmp/pauses").split()

        before = len(lines())
        wait_for(lambda: len(lines()) > before, "a round trip", 90)
        said = stays.run("cat /tmp/pauses; : > /tmp/pauses").out.split()
        return max(map(float, said))

    def finish(self) -> None:
        """End what checks its bytes; every byte must have come."""
        self.stage.moves.run("touch /tmp/stop")
        self.stream.stop()
        self.stream.finish(120)
        jobs_end(self.session)

    def kill(self) -> None:
        """End the rest, whose connections may be reset: they had bytes unread. Who comes next counts anew."""
        for job in (*self.programs, *self.measure):
            job.kill()
        for vm in self.stage.both:
            wait_for(
                lambda: not vm.run("ss -Htn state established state close-wait").out,  # noqa: B023
                f"no program of {vm.name} has a connection",
                60,
            )


@contextlib.contextmanager
def loaded(stage: Hosts, outcome: Outcome) -> Iterator[Load]:
    """Load both VMs for the length of the block; afterwards nothing is odd."""
    # The daemons hear of channels at each heartbeat.
    wait_for(lambda: not _channels(stage), "no channel is left of what was before")
    before, delta = _held(stage), Delta(*stage.both)
    load = Load(stage)
    yield load
    load.check_running("at last")
    outcome.ring_bytes += sum(delta.of(vm)["tx_bytes_ring"] for vm in stage.both)
    load.finish()
    stage.check_counters(delta)
    load.kill()
    wait_for(lambda: _held(stage) == before, f"all is given back: {before}", 60)


def _channels(stage: Hosts) -> int:
    regions = [region for host in (stage.here, stage.there) for region in host.daemon.status()["regions"]]
    return sum(member["channels"] for region in regions for member in region["members"])


def _held(stage: Hosts) -> list[dict[str, object]]:
    return [held(host.daemon, *stage.both) for host in (stage.here, stage.there)]


def _settled(stage: Hosts, to: Host) -> None:
    """All connections are carried as they should be once the VM is there, iperf3's among them."""
    stage.wait_carried(to, BOTH_WAYS)
    if to is stage.here:
        wait_for(lambda: _iperf_rings(stage) >= IPERFS, f"{IPERFS} of iperf3's are on rings", 90)


def _iperf_rings(stage: Hosts) -> int:
    shown = connections(stage.stays)
    return sum(c["rx"]["carrier"] % 2 for c in shown if c["local_port"] == IPERF_PORT)


def _play(stage: Hosts, outcome: Outcome, move: Callable[[Host], Move], *places: Host) -> None:
    with loaded(stage, outcome) as load:
        _settled(stage, stage.here)
        for number in outcome.rounds():
            to = places[number % len(places)]
            with _noted(outcome, load, lambda: move(to)):  # noqa: B023
                _settled(stage, to)
            load.check_running(f"in round {number}, on the way to {to.name}")
        if stage.moves.config.host != stage.here.name:
            move(stage.here)


@contextlib.contextmanager
def _noted(outcome: Outcome, load: Load, move: Callable[[], Move]) -> Iterator[None]:
    """Have the VM move, and measure; the block waits until its streams are carried as they should be."""
    load.longest_pause()
    done = move()
    with outcome.timed("streams as they should be after"):
        yield
    for what, seconds in (
        ("memory taken out in", done.unplugged),
        ("migrated in", done.migrated),
        ("QEMU's downtime", done.downtime),
        (PAUSE, load.longest_pause()),
    ):
        outcome.note(what, seconds)


def there_and_back(stage: Hosts, outcome: Outcome) -> None:
    """From host to host: on rings where both are on one host, on TCP where not."""
    _play(stage, outcome, stage.migrate, stage.there, stage.here)


def on_one_host(stage: Hosts, outcome: Outcome) -> None:
    """From one QEMU to another on the same host: on rings before and after."""
    _play(stage, outcome, stage.migrate, stage.here)


def by_hand(stage: Hosts, outcome: Outcome) -> None:
    """By QMP, as a person would."""
    stage = stage.by_hand()
    _play(stage, outcome, lambda to: hosts.migrate(stage.moves, to), stage.there, stage.here)


def fails(stage: Hosts, outcome: Outcome) -> None:
    """It is cancelled, or its destination dies: all is on rings again."""
    with loaded(stage, outcome) as load:
        for number in outcome.rounds():
            stage.wait_on_rings(BOTH_WAYS)
            stage.interrupt_migration(("cancelled", "QEMU failed to migrate")[number % 2])
            with outcome.timed("on rings again after"):
                stage.wait_on_rings(BOTH_WAYS)
            load.check_running(f"in round {number}")


def plain(stage: Hosts, outcome: Outcome) -> None:
    """The same without the module or a region in the VM that migrates: what Hallway is compared with."""
    stage = stage.by_hand()
    moves = stage.moves
    rmmod(moves)
    moves.unplug("ring0")
    load = Load(stage)
    for number in outcome.rounds():
        to = stage.here if number % 2 else stage.there
        with _noted(outcome, load, lambda: hosts.migrate(moves, to, plugged=False)):  # noqa: B023
            stage.wait_on_wire()
        load.check_running(f"in round {number}")
    load.finish()
    load.kill()
    if moves.config.host != stage.here.name:
        hosts.migrate(moves, stage.here, plugged=False)
    moves.run("insmod /root/hallway.ko " + " ".join(f"{name}={value}" for name, value in AT_ONCE.items()))
    stage.here.plug(moves)
    healthy(*stage.both)


def saved(stage: Hosts, outcome: Outcome) -> None:
    """Saved to a file, gone for a while, restored from it: its connections go on, on rings again."""
    stage = stage.by_hand()
    path = Path(os.environ["TMPDIR"]) / "saved"
    with loaded(stage, outcome) as load:
        for number in outcome.rounds():
            stage.wait_on_rings(BOTH_WAYS)
            hosts.save(stage.moves, path)
            hosts.restore(stage.moves, stage.here, path, after=STILL)
            load.check_running(f"in round {number}")
            with outcome.timed("on rings again after"):
                stage.wait_on_rings(BOTH_WAYS)


def given_up(stage: Hosts, outcome: Outcome) -> None:
    """Saved until the other VM has given it up, whose connections end; restored, its own are reset."""
    stage = stage.by_hand()
    stays, moves = stage.both
    path, delta = Path(os.environ["TMPDIR"]) / "saved", Delta(stays)
    stays.run("sysctl -q net.ipv4.tcp_retries2=3")  # so that it gives up sooner than in 15 minutes
    for _ in outcome.rounds():
        stream = Stream(stays, moves, conns=STREAMS, both=TELLING)
        stage.wait_on_rings(STREAMS)
        hosts.save(moves, path)
        with outcome.timed("given up after"):
            ended_as_tcp(stream, stream.server.wait(60))
        hosts.restore(moves, stage.here, path, after=0)
        with outcome.timed("told so, once restored, after"):
            ended_as_tcp(stream, stream.client.wait(60))
    stays.run("sysctl -q net.ipv4.tcp_retries2=15")
    outcome.ring_bytes += delta.of(stays)["tx_bytes_ring"]
    healthy(*stage.both)


def snapshot(stage: Hosts, outcome: Outcome) -> None:
    """A snapshot is taken under a stream, and loaded when that is long over: the next one is on rings.

    Nothing happens to a stream by taking it. After loading it the VM believes in
    one that its peer has ended, which TCP tells each of its connections.
    """
    stage = stage.by_hand()
    stays, moves = stage.both
    delta = Delta(stays)
    for _ in outcome.rounds():
        stream = Stream(stays, moves, conns=STREAMS, both=TELLING)
        stage.wait_on_rings(STREAMS)
        moves.run("touch /tmp/then")
        with _unplugged(stage):
            _monitor(moves, "savevm then")
        moves.run("rm /tmp/then")
        stage.wait_on_rings(STREAMS)
        stream.stop()
        stream.finish(120)
        with _unplugged(stage):
            _monitor(moves, "loadvm then")
        moves.run("rm /tmp/then")
        # A job whose end was told before knows nothing of that: it is asked as a new one.
        past = Job(moves, stream.client.pid, stream.command)
        ended_as_tcp(stream, past.wait(60))
        with outcome.timed("on rings again after"):
            stream = Stream(stays, moves, conns=STREAMS)
            stage.wait_on_rings(STREAMS)
        stream.stop()
        stream.finish(120)
    moved = delta.of(stays)
    outcome.ring_bytes += moved["tx_bytes_ring"]
    found = odd(moved, watchdog=False)
    check(not found and not moved["resets"], f"{stays.name}: {found}, resets is {moved['resets']}")
    healthy(*stage.both)


@contextlib.contextmanager
def _unplugged(stage: Hosts) -> Iterator[None]:
    """Have the VM without its ring memory in the block."""
    stage.moves.unplug("ring0")
    yield
    stage.here.plug(stage.moves)


def _monitor(vm: VM, command: str) -> None:
    """Have QEMU do what its command for people does; it says nothing if all is well."""
    said = vm.qmp.command("human-monitor-command", command_line=command)
    check(not said.strip(), f"{command}: {said}")


def stopped(stage: Hosts, outcome: Outcome) -> None:
    """QEMU's `stop`, and `cont` once the other VM has noticed: its connections go on, on rings again."""
    stays, moves = stage.both
    with loaded(stage, outcome) as load:
        for number in outcome.rounds():
            stage.wait_on_rings(BOTH_WAYS)
            moves.qmp.command("stop")
            wait_for(lambda: not members(stays) & {moves.ip4, moves.ip6}, "its silence is noticed")
            moves.qmp.command("cont")
            with outcome.timed("on rings again after"):
                stage.wait_on_rings(BOTH_WAYS)
            load.check_running(f"in round {number}")


SCENARIOS = (
    Scenario(
        "migrates-there-and-back", "hallway migrate there, or back", 40, hosts_of_two, there_and_back, KERNELS
    ),
    Scenario("migrates-on-one-host", "hallway migrate to another QEMU", 20, hosts_of_two, on_one_host),
    Scenario("migration-fails", "hallway migrate is cancelled, or fails", 20, hosts_of_two, fails),
    Scenario("migrates-by-hand", "migrates to another host, or back, by QMP", 20, hosts_of_two, by_hand),
    Scenario("migrates-without", "the same without Hallway, to compare", 20, hosts_of_two, plain, KERNELS),
    Scenario("saved-and-restored", "is saved to a file, and restored", 3, hosts_of_two, saved),
    Scenario("saved-too-long", "is restored when it has been given up", 3, hosts_of_two, given_up),
    Scenario("snapshot-loaded", "savevm, and loadvm later", 3, hosts_of_two, snapshot),
    Scenario("stopped", "QEMU's stop and cont", 3, hosts_of_two, stopped),
)
