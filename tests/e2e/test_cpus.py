# SPDX-License-Identifier: Apache-2.0 OR MIT
"""CPUs for VMs that send: the guest's module parks others, or the VM's cgroup gets more weight."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import pytest
from hallway_lab.measure import direction
from hallway_lab.vm import VM
from hallway_tests import tunnels
from hallway_tests.cpus import PRESENT, RULES, STILL, WEIGHT, Cpus, apart, obey, online, order, report
from hallway_tests.guests import Delta, Stream, autopsy, connections, counters, odd
from hallway_tests.streams import one_way
from hallway_tests.suite import wait_for
from hallway_tests.talker import Talker
from hallway_tests.tunnels import served

pytestmark = [pytest.mark.xdist_group("e2e-cpus"), pytest.mark.slow_on("6.12")]

PORT = 4990
ROUNDS = 20


def _on_rings(vm: VM) -> int:
    return sum(one["tx"]["via"] == "ring" for one in connections(vm))


@contextlib.contextmanager
def _sending(cpus: Cpus) -> Iterator[None]:
    """Have the first VM send to the second one on two connections, by rings; each byte is checked."""
    a, b = cpus.both
    delta = Delta(a, b)
    patience = 120 * cpus.slow
    with one_way(a, b, patience, port=PORT), one_way(a, b, patience, port=PORT + 1):
        with autopsy(a, b):
            wait_for(lambda: _on_rings(a) == 2, "both are on rings", 60 * cpus.slow)
        yield
    sent, received = delta.of(a), delta.of(b)
    way = direction(sent, received)
    assert way.sent_ring == way.received_ring > way.sent_tcp
    assert not odd(sent, watchdog=False)
    assert not odd(received, watchdog=False)


def test_sender_gets_a_cpu(cpus: Cpus) -> None:
    """A VM that sends on two connections gets a second CPU, its receiver does not; idle, it loses it."""
    a, b = cpus.both
    with cpus.loaded():
        for vm in (a, b):
            cpus.wait_given(vm, 1)
            assert counters(vm)["cpus_parked"] == 1
        assert cpus.shown(a)["why"] == "begins with the least"
        with _sending(cpus):
            cpus.wait_given(a, 2)
            shown = cpus.shown(a)
            assert shown["why"] == "sends on 2 connections, CPUs busy"
            assert not shown["problem"]
            wait_for(lambda: cpus.shown(a)["senders"] == 2, "it sends on both", 60 * cpus.slow)
            assert cpus.shown(b)["senders"] == 0
        cpus.wait_given(a, 1)
        # On a busy machine a CPU may be parked and returned more than once.
        counted = counters(a)
        assert counted["cpus_parked"] == counted["cpus_returned"] + 1, counted
        assert 2 <= counted["cpus_parked"] <= 4, counted
        # The receiver never had another one.
        assert counters(b)["cpus_parked"] == 1
        said = cpus.say("cpus")
        assert a.name in said
        # One of the two may end well before the other.
        assert any(why in said for why in ("sends nothing", "sends on 1 connection", "CPUs idle")), said
        assert f'hallway_vm_cpus{{vm="{a.name}"}} 1' in cpus.say("metrics")
    for vm in (a, b):
        assert online(vm) == PRESENT


def test_tunnels_count(cpus: Cpus) -> None:
    """A VM that sends on tunnels gets a second CPU, as for connections; without them it loses it."""
    a, b = cpus.both
    with cpus.loaded():
        cpus.wait_given(a, 1)
        with tunnels.tunnels(cpus), served(b):
            talker = Talker(a, b)
            cpus.wait_given(a, 2)
            assert "sends on" in cpus.shown(a)["why"]
            wait_for(lambda: cpus.shown(a)["senders"] >= 2, "its tunnels are counted", 60 * cpus.slow)
            talker.wait_progress("with two CPUs")
            assert not talker.counted()["failed"]
            talker.end()
        cpus.wait_given(a, 1)


def test_guest_refuses(cpus: Cpus) -> None:
    """A guest that refuses keeps all of its CPUs, and that is shown; once it does not, they are parked."""
    a, b = cpus.both
    with cpus.loaded(cpus="N"):
        wait_for(lambda: "refuses" in (cpus.shown(a)["problem"] or ""), "that is shown", 30 * cpus.slow)
        assert report(a) == (1, "refused", PRESENT, PRESENT)
        assert "its guest refuses" in cpus.say("doctor")
        with _sending(cpus):
            pass
        assert online(a) == PRESENT
        assert not counters(a)["cpus_parked"]
        for vm in (a, b):
            obey(vm, True)
            cpus.wait_given(vm, 1)
        wait_for(lambda: not cpus.shown(a)["problem"], "all is well", 30 * cpus.slow)
        obey(a, False)
        wait_for(lambda: online(a) == PRESENT, "its CPUs are back", 30 * cpus.slow)


def test_daemon_killed(cpus: Cpus) -> None:
    """While hallwayd is dead nothing changes; the next one goes on with what was given."""
    a = cpus.a
    with cpus.loaded():
        with _sending(cpus):
            cpus.wait_given(a, 2)
            cpus.site.daemon.kill()
            assert (online(a), report(a)) == (2, (2, "done", 2, PRESENT))
            cpus.site.daemon.start()
            wait_for(lambda: cpus.shown(a)["given"] == 2, "it goes on", 30 * cpus.slow)
            assert "before hallwayd started" in cpus.shown(a)["why"]
        cpus.wait_given(a, 1)
        assert counters(a)["cpus_parked"] == 2


def test_weight(cpus: Cpus) -> None:
    """With `mechanism = "weight"` a sender's cgroup gets weight; however hallwayd ends, it loses it again."""
    a, b = cpus.both
    with apart(a) as file, contextlib.ExitStack() as stack:
        base = int(file.read_text())

        def wait_weight(wanted: int) -> None:
            wait_for(lambda: int(file.read_text()) == wanted, f"the weight is {wanted}", 60 * cpus.slow)

        stack.callback(cpus.configure)
        cpus.configure(RULES, WEIGHT)
        stack.enter_context(cpus.loaded())
        wait_for(lambda: cpus.shown(a)["given"] == 1, "it begins", 30 * cpus.slow)
        assert cpus.shown(a)["why"] == "begins with the least"
        # The other one is with all that this run has started.
        why = f"beside QEMU's {b.pid}: start each QEMU"
        wait_for(lambda: why in (cpus.shown(b)["problem"] or ""), "that one is left alone", 30 * cpus.slow)
        assert "in a cgroup of its own" in cpus.say("cpus")
        with _sending(cpus):
            wait_weight(2 * base)
            wait_for(lambda: cpus.shown(a)["weight"] == 2 * base, "that is shown", 30 * cpus.slow)
            shown = cpus.shown(a)
            assert (shown["given"], shown["why"]) == (2, "sends on 2 connections, CPUs busy")
            assert not shown["problem"]
            # Nothing is parked.
            assert online(a) == PRESENT
            cpus.site.daemon.kill()
            assert int(file.read_text()) == 2 * base
            cpus.site.daemon.start()
            wait_for(lambda: cpus.shown(a)["given"] == 2, "the next one goes on", 30 * cpus.slow)
            assert "before hallwayd started" in cpus.shown(a)["why"]
            assert int(file.read_text()) == 2 * base
        wait_weight(base)
        wait_for(lambda: cpus.shown(a)["given"] == 1, "that is shown", 30 * cpus.slow)
        assert not counters(a)["cpus_parked"]
        with _sending(cpus):
            wait_weight(2 * base)
            cpus.site.daemon.kill(signal.SIGTERM)
            assert int(file.read_text()) == base
            cpus.site.daemon.start()
            wait_weight(2 * base)
            # Killed, and the next one is not to give weight.
            cpus.configure()
            wait_weight(base)


@pytest.mark.last  # QEMUs do not connect to the next hallwayd
def test_daemon_stopped(cpus: Cpus) -> None:
    """`hallwayd --stop` gives all CPUs back."""
    a = cpus.a
    with cpus.loaded():
        cpus.wait_given(a, 1)
        cpus.site.daemon.stop()
        try:
            # It reports once the last one is back.
            back = (0, "done", PRESENT, PRESENT)
            wait_for(lambda: report(a) == back, "its CPUs are back", 30 * cpus.slow)
            assert online(a) == PRESENT
        finally:
            cpus.site.daemon.start()


def test_nonsense(cpus: Cpus) -> None:
    """A guest does nothing about more CPUs than it has, and CPU 0 stays; without [vm.cpus] all come back."""
    a = cpus.a
    with cpus.loaded():
        cpus.wait_given(a, 1)
        cpus.site.daemon.kill()
        try:
            for count in (PRESENT + 1, 0xFFFFFFFF):
                order(a, count)
                wanted = (count, "invalid", 1, PRESENT)
                wait_for(lambda: report(a) == wanted, f"{count} is refused", 30 * cpus.slow)  # noqa: B023
            assert online(a) == 1
            assert a.run("cat /sys/devices/system/cpu/online", first=True).out.strip() == "0"
        finally:
            cpus.site.daemon.start()
        cpus.wait_given(a, 1)
        try:
            cpus.configure("", "")
            wait_for(lambda: report(a) == (0, "done", PRESENT, PRESENT), "all come back", 60 * cpus.slow)
            assert "no VM" in cpus.say("cpus")
        finally:
            cpus.configure()


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_come_and_go(cpus: Cpus) -> None:
    """CPUs of both VMs come and go again and again under load; each byte arrives, and all are counted."""
    cpus.configure(STILL)
    try:
        with cpus.loaded(), tunnels.tunnels(cpus), served(cpus.b):
            for vm in cpus.both:
                cpus.wait_given(vm, 1)
            delta = Delta(*cpus.both)
            talker = Talker(cpus.a, cpus.b)
            stream = Stream(cpus.b, cpus.a, conns=4, stall=120)
            for count in range(2 * ROUNDS):
                for vm in cpus.both:
                    obey(vm, count % 2 == 1)
                wanted = 1 if count % 2 else PRESENT
                for vm in cpus.both:
                    wait_for(lambda: online(vm) == wanted, f"round {count}", 60 * cpus.slow)  # noqa: B023
                stream.check_running(f"in round {count}")
            talker.wait_progress("after all rounds")
            assert not talker.counted()["failed"]
            talker.end()
            moved = [delta.of(vm) for vm in cpus.both]
            stream.stop()
            stream.finish(120 * cpus.slow)
            for vm, before in zip(cpus.both, moved, strict=True):
                after = delta.of(vm)
                assert before["cpus_parked"] >= ROUNDS
                assert before["cpus_returned"] >= ROUNDS
                assert not odd(after, watchdog=False)
                assert not after["resets"]
            ends = [delta.of(vm) for vm in cpus.both]
            for way in (direction(*ends), direction(*ends[::-1])):
                assert way.received_ring > 0
                assert way.sent_ring == way.received_ring + way.unread
    finally:
        cpus.configure()
