# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A VM under the load of several programs migrates, is saved and restored, or stands still."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hallway_lab.hosts import Host, Move, migrate, restore, save
from hallway_lab.vm import VM, Job
from hallway_tests import tunnels
from hallway_tests.doomed import ended_as_tcp
from hallway_tests.guests import AT_ONCE, Delta, Stream, healthy, members, odd, rmmod, wait_members
from hallway_tests.record import Outcome
from hallway_tests.streams import TELLING
from hallway_tests.suite import check, wait_for
from hallway_tests.talker import Talker
from hallway_tests.tunnels import cid
from hallway_tests.two_hosts import Hosts

from .load import BOTH_WAYS, STREAMS, Load, held_by_both, loaded

pytestmark = [
    *(pytest.mark.record("faults"), pytest.mark.kernel("6.1"), pytest.mark.two_hosts),
    pytest.mark.xdist_group("faults-two-hosts"),
]

STILL = 5  # seconds that a VM is away
TUNNEL = "python3 -B /root/guest/run.py tunnel"  # these VMs have no shared folder


@pytest.mark.fault("hallway migrate there, or back", rounds=40)
@pytest.mark.kernel("6.12")
def test_migrates_there_and_back(hosts: Hosts, outcome: Outcome, rounds: Iterator[int]) -> None:
    """From host to host: on rings where both VMs are on one host, on TCP where not."""
    _migrate_each_round(hosts, outcome, rounds, hosts.migrate, hosts.there, hosts.here)


@pytest.mark.fault("hallway migrate to another QEMU")
def test_migrates_on_one_host(hosts: Hosts, outcome: Outcome, rounds: Iterator[int]) -> None:
    """From one QEMU to another on the same host: on rings before and after."""
    _migrate_each_round(hosts, outcome, rounds, hosts.migrate, hosts.here)


@pytest.mark.fault("migrates to another host, or back, by QMP")
def test_migrates_by_hand(hosts: Hosts, outcome: Outcome, rounds: Iterator[int]) -> None:
    """By QMP, without `hallway migrate`."""
    hosts = hosts.by_hand()
    _migrate_each_round(hosts, outcome, rounds, lambda to: migrate(hosts.moves, to), hosts.there, hosts.here)


@pytest.mark.fault("hallway migrate is cancelled, or fails")
def test_migration_fails(hosts: Hosts, outcome: Outcome, rounds: Iterator[int]) -> None:
    """A migration is cancelled, or its destination dies: all is on rings again."""
    with loaded(hosts, outcome) as load:
        for number in rounds:
            hosts.wait_on_rings(BOTH_WAYS)
            hosts.interrupt_migration(("cancelled", "QEMU failed to migrate")[number % 2])
            with outcome.timed("on rings again after"):
                hosts.wait_on_rings(BOTH_WAYS)
            load.check_running(f"in round {number}")


@pytest.mark.fault("the same without Hallway, to compare")
@pytest.mark.kernel("6.12")
def test_migrates_without(hosts: Hosts, outcome: Outcome, rounds: Iterator[int]) -> None:
    """The VM that migrates has neither module nor region: figures to compare the others with."""
    hosts = hosts.by_hand()
    moves = hosts.moves
    rmmod(moves)
    moves.unplug("ring0")
    load = Load(hosts)
    for number in rounds:
        to = hosts.here if number % 2 else hosts.there
        with _measured(outcome, load, lambda: migrate(moves, to, plugged=False)):  # noqa: B023
            hosts.wait_on_wire()
        load.check_running(f"in round {number}")
    load.finish()
    load.kill()
    if moves.config.host != hosts.here.name:
        migrate(moves, hosts.here, plugged=False)
    moves.run("insmod /root/hallway.ko " + " ".join(f"{name}={value}" for name, value in AT_ONCE.items()))
    hosts.here.plug(moves)
    healthy(*hosts.both)


@pytest.mark.fault("hallway migrate there and back, with tunnels")
@pytest.mark.kernel("6.1", "6.12")
def test_tunnels_migrate(hosts: Hosts, outcome: Outcome, rounds: Iterator[int]) -> None:
    """A VM migrates: its tunnels are reset, and come again on its first host, by the same CID."""
    before, known = held_by_both(hosts), cid(hosts.moves)
    with _tunnels(hosts):
        talkers = [Talker(vm, to, TUNNEL) for vm, to in (hosts.both, hosts.both[::-1])]
        for number in rounds:
            failed = [talker.counted()["failed"] for talker in talkers]
            hosts.migrate(hosts.there)
            for talker, count in zip(talkers, failed, strict=True):
                talker.wait_failed(count)
            hosts.migrate(hosts.here)
            with outcome.timed("tunnels again after"):
                wait_members(*hosts.both)
                for talker in talkers:
                    talker.wait_progress(f"in round {number}")
            check(cid(hosts.moves) == known, f"its CID was {known}, and is {cid(hosts.moves)}")
        for talker in talkers:
            talker.end()
    wait_for(lambda: held_by_both(hosts) == before, f"as much is held as before: {before}", 60)
    healthy(*hosts.both)


@contextlib.contextmanager
def _tunnels(hosts: Hosts) -> Iterator[None]:
    """Have both VMs serve tunnels in the block."""
    for vm in hosts.both:
        tunnels.load(vm, folder="/root")
    servers = [tunnels.Talk(vm, f"serve {tunnels.PORT}", TUNNEL) for vm in hosts.both]
    for server in servers:
        assert server.hear() == "ready"
    yield
    for server in servers:
        server.end()
    tunnels.unload(*hosts.both)


@pytest.mark.fault("is saved to a file, and restored", rounds=3)
def test_saved_and_restored(hosts: Hosts, outcome: Outcome, rounds: Iterator[int]) -> None:
    """A VM is saved to a file and restored a while later: its connections go on, on rings again."""
    hosts = hosts.by_hand()
    path = _scratch("saved")
    with loaded(hosts, outcome) as load:
        for number in rounds:
            hosts.wait_on_rings(BOTH_WAYS)
            save(hosts.moves, path)
            restore(hosts.moves, hosts.here, path, after=STILL)
            load.check_running(f"in round {number}")
            with outcome.timed("on rings again after"):
                hosts.wait_on_rings(BOTH_WAYS)


@pytest.mark.fault("is restored after its peer has timed out", rounds=3)
def test_saved_too_long(hosts: Hosts, outcome: Outcome, rounds: Iterator[int]) -> None:
    """A VM is saved until its peer's connections time out: once restored, its own are reset."""
    hosts = hosts.by_hand()
    stays, moves = hosts.both
    path, delta = _scratch("saved"), Delta(stays)
    stays.run("sysctl -q net.ipv4.tcp_retries2=3")  # sooner than after 15 minutes
    # Requeued bytes that fill the receive buffer close the window. Linux 6.1 then waits for 2 to 4 minutes,
    # whatever tcp_retries2 is: let the buffer hold a ring and what TCP has.
    former = moves.run("sysctl -n net.ipv4.tcp_rmem").out.strip()
    moves.run(f"sysctl -q net.ipv4.tcp_rmem='4096 131072 {16 << 20}'")
    for _ in rounds:
        stream = Stream(stays, moves, conns=STREAMS, both=TELLING)
        hosts.wait_on_rings(STREAMS)
        save(moves, path)
        with outcome.timed("timed out after"):
            ended_as_tcp(stream, stream.server.wait(60))
        restore(moves, hosts.here, path, after=0)
        with outcome.timed("reset, once restored, after"):
            ended_as_tcp(stream, stream.client.wait(60))
    stays.run("sysctl -q net.ipv4.tcp_retries2=15")
    moves.run(f"sysctl -q net.ipv4.tcp_rmem='{former}'")
    outcome.add_ring_bytes(delta.of(stays)["tx_bytes_ring"])
    healthy(*hosts.both)


@pytest.mark.fault("savevm, and loadvm later", rounds=3)
def test_snapshot_loaded(hosts: Hosts, outcome: Outcome, rounds: Iterator[int]) -> None:
    """A snapshot is taken under a stream, and loaded when that is over: the next stream is on rings.

    The snapshot does not disturb the stream. Once it is loaded, the VM has
    connections that its peer has closed, and each ends as TCP's does.
    """
    hosts = hosts.by_hand()
    stays, moves = hosts.both
    delta = Delta(stays)
    for _ in rounds:
        stream = Stream(stays, moves, conns=STREAMS, both=TELLING)
        hosts.wait_on_rings(STREAMS)
        moves.run("touch /tmp/then")
        with _unplugged(hosts):
            _monitor(moves, "savevm then")
        moves.run("rm /tmp/then")
        hosts.wait_on_rings(STREAMS)
        stream.stop()
        stream.finish(120)
        with _unplugged(hosts):
            _monitor(moves, "loadvm then")
        moves.run("rm /tmp/then")
        # The job object has seen its end already: another one waits for the process of the snapshot.
        past = Job(moves, stream.client.pid, stream.command)
        ended_as_tcp(stream, past.wait(60))
        with outcome.timed("on rings again after"):
            stream = Stream(stays, moves, conns=STREAMS)
            hosts.wait_on_rings(STREAMS)
        stream.stop()
        stream.finish(120)
    moved = delta.of(stays)
    outcome.add_ring_bytes(moved["tx_bytes_ring"])
    found = odd(moved, watchdog=False)
    check(not found and not moved["resets"], f"{stays.name}: {found}, resets is {moved['resets']}")
    healthy(*hosts.both)


@pytest.mark.fault("QEMU's stop and cont", rounds=3)
def test_stopped(hosts: Hosts, outcome: Outcome, rounds: Iterator[int]) -> None:
    """QEMU's `stop`, and `cont` once the other VM has noticed: connections go on, on rings again."""
    stays, moves = hosts.both
    with loaded(hosts, outcome) as load:
        for number in rounds:
            hosts.wait_on_rings(BOTH_WAYS)
            moves.qmp.command("stop")
            wait_for(lambda: not members(stays) & {moves.ip4, moves.ip6}, "it is unresponsive")
            moves.qmp.command("cont")
            with outcome.timed("on rings again after"):
                hosts.wait_on_rings(BOTH_WAYS)
            load.check_running(f"in round {number}")


def _migrate_each_round(
    hosts: Hosts, outcome: Outcome, rounds: Iterator[int], move: Callable[[Host], Move], *places: Host
) -> None:
    """Migrate to one place after the other, and at the end to the first host."""
    with loaded(hosts, outcome) as load:
        load.wait_carried(hosts.here)
        for number in rounds:
            to = places[number % len(places)]
            with _measured(outcome, load, lambda: move(to)):  # noqa: B023
                load.wait_carried(to)
            load.check_running(f"in round {number}, on the way to {to.name}")
        if hosts.moves.config.host != hosts.here.name:
            move(hosts.here)


@contextlib.contextmanager
def _measured(outcome: Outcome, load: Load, move: Callable[[], Move]) -> Iterator[None]:
    """Migrate, and measure; the block waits until streams have their carrier."""
    load.longest_pause()
    done = move()
    with outcome.timed("streams on their carrier after"):
        yield
    for what, seconds in (
        ("memory taken out in", done.unplugged),
        ("migrated in", done.migrated),
        ("QEMU's downtime", done.downtime),
        ("longest pause of a stream", load.longest_pause()),
    ):
        outcome.note(what, seconds)


@contextlib.contextmanager
def _unplugged(hosts: Hosts) -> Iterator[None]:
    """Have the VM without its region in the block."""
    hosts.moves.unplug("ring0")
    yield
    hosts.here.plug(hosts.moves)


def _monitor(vm: VM, command: str) -> None:
    """Run a command of QEMU's monitor for people; it prints nothing if all is well."""
    said = vm.qmp.command("human-monitor-command", command_line=command)
    check(not said.strip(), f"{command}: {said}")


def _scratch(name: str) -> Path:
    return Path(os.environ["TMPDIR"]) / name
