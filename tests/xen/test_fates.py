# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What becomes of a domain under load: saved, checkpointed, crashed, destroyed. All by stock xl."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hallway_lab import xen
from hallway_tests.domains import Domains
from hallway_tests.guests import (
    AT_ONCE,
    Delta,
    Stream,
    autopsy,
    connections,
    insmod,
    members,
    settle_in,
    status,
    wait_members,
)
from hallway_tests.pair import on_rings
from hallway_tests.suite import check, wait_for

pytestmark = pytest.mark.xen

OFTEN = pytest.param(20, marks=[pytest.mark.slow, pytest.mark.timeout(4 * 3600)])
# Saving and restoring a domain takes a minute.
PATIENT = "--stall 400"
# Where programs are frozen, a blocking call ends with what it has: so it is on TCP alone, too.
SHORT = "--short"
CONNS = 3
HERE = "/root/here"  # what xl reaches the other host by: it is this one
# The same where that host takes all that a domain is, and fails then.
TAKES_ALL = """#!/usr/bin/python3
import os, select
os.write(1, b"xl migration receiver ready, send binary domain data.\\n")
while select.select([0], [], [], 20)[0] and os.read(0, 1 << 20):
    pass
"""
REFUSAL = "logdirty"  # what xl says when it can't migrate a PV domain
FREEZE = 0.3  # seconds, with CROWD connections on rings
CROWD = 100


@pytest.mark.parametrize("rounds", [1, OFTEN])
def test_saved(pair: Domains, rounds: int) -> None:
    """A domain is saved and restored: no byte is lost, rings come back, and no zombie stays."""

    def save(domain: xen.Domain) -> None:
        old = domain.domid
        domain.save()
        check(not _zombies(pair), "memory of the saved domain is in use")
        domain.restore()
        check(domain.domid != old, "the domain was not restored under another number")

    _repeat_under_load(pair, rounds, save)


@pytest.mark.parametrize("rounds", [1, OFTEN])
def test_checkpointed(pair: Domains, rounds: int) -> None:
    """A domain is saved and goes on as it is: no byte is lost, and rings come back."""
    _repeat_under_load(pair, rounds, xen.Domain.checkpoint)


@pytest.mark.parametrize("rounds", [1, OFTEN])
def test_not_saved(pair: Domains, rounds: int) -> None:
    """The disk is full while a domain is saved, and xl has it go on: no byte is lost, and rings come back."""

    def fail(domain: xen.Domain) -> None:
        old = domain.domid
        said = pair.xen.run(f"xl save {domain.name} /mnt/saved", timeout=300, check=False)
        check(said.code and "resuming domain" in said.err, f"xl: {said}")
        pair.xen.run("rm -f /mnt/saved")
        domain.find_agent()
        check(domain.domid == old, "the domain has another number")

    pair.xen.run("mount -t tmpfs -o size=16M none /mnt")
    try:
        _repeat_under_load(pair, rounds, fail)
    finally:
        pair.xen.run("umount /mnt")


@pytest.mark.parametrize("rounds", [1, OFTEN])
def test_migrated(pair: Domains, rounds: int) -> None:
    """A PVH domain migrates live, here to the host that it is on: no byte is lost, and rings come back.

    Debian's Xen refuses to migrate a PV domain, and xl says so: rings carry its streams as before.
    """
    pair.xen.put('#!/bin/sh\nshift\nexec "$@"\n', HERE)
    pair.xen.run(f"chmod +x {HERE}")

    def migrate(domain: xen.Domain) -> None:
        old = domain.domid
        pair.xen.run(f"xl migrate -s {HERE} {domain.name} localhost", timeout=600)
        domain.find_agent()
        check(domain.domid != old, "the domain is the one of before")
        wait_for(lambda: not _zombies(pair), "no zombie is left", 5 * pair.slow)

    def refuse(domain: xen.Domain) -> None:
        members = status(pair.a)["members"]
        said = pair.xen.run(f"xl migrate -s {HERE} {domain.name} localhost", timeout=300, check=False)
        check(said.code and REFUSAL in said.err, f"xl: {said}")
        check(status(pair.a)["members"] == members, "the members are others")

    if pair.xen.kind == "pvh":
        _repeat_under_load(pair, rounds, migrate)
    else:
        _repeat_under_load(pair, rounds, refuse, demotes=False)


@pytest.mark.parametrize("rounds", [1, OFTEN])
def test_migration_fails(pair: Domains, rounds: int) -> None:
    """A domain that was suspended to migrate goes on where it was: no byte is lost, and rings come back."""
    if pair.xen.kind == "pv":
        pytest.skip("Debian's Xen refuses to migrate a PV domain")
    pair.xen.put(TAKES_ALL, HERE)
    pair.xen.run(f"chmod +x {HERE}")

    def fail(domain: xen.Domain) -> None:
        old = domain.domid
        said = pair.xen.run(f"xl migrate -s {HERE} {domain.name} localhost", timeout=600, check=False)
        check(said.code, f"xl: {said}")
        domain.find_agent()
        check(domain.domid == old, "the domain has another number")

    _repeat_under_load(pair, rounds, fail)


@pytest.mark.not_on("debug", "all takes longer there")
def test_frozen(pair: Domains) -> None:
    """Before a domain is saved, a hundred connections leave their rings within FREEZE seconds."""
    pair.load(**AT_ONCE, ring_bytes=16384, ring_bytes_max=16384)
    a = pair.domains[0]
    stream = Stream(pair.b, pair.a, conns=CROWD, both=f"--mode level {PATIENT}", client_only=SHORT)
    pair.wait_on_rings(CROWD)
    trace = "/sys/kernel/tracing"
    a.run(f"printf 'p:hall/begin hallway:freeze\\nr:hall/end hallway:freeze\\n' >{trace}/kprobe_events")
    a.run(f"echo 1 >{trace}/events/hall/enable")
    before = Delta(a)
    a.checkpoint()
    check(before.of(a)["tx_demoted"] >= CROWD, "connections stayed on rings")
    said = a.run(f"cat {trace}/trace; echo 0 >{trace}/events/hall/enable; echo >{trace}/kprobe_events").out
    times = [float(at) for at in re.findall(r" (\d+\.\d+): (?:begin|end): ", said)]
    check(len(times) == 2, f"it was not suspended once: {said}")
    took = times[1] - times[0]
    print(f"{CROWD} connections left their rings within {took * 1000:.0f} ms")
    check(took < FREEZE, f"it took {took} s")
    wait_members(*pair.both, timeout=60 * pair.slow)
    stream.stop()
    stream.finish(120 * pair.slow)


def test_crashed(pair: Domains) -> None:
    """The peer's kernel panics, and Xen keeps it: it is unresponsive. Once destroyed, it has left."""
    domain = _lose(pair)
    domain.crash()
    wait_for(lambda: pair.b.ip4 not in members(pair.a), "the peer is unresponsive", 10)
    wait_for(lambda: not any(map(on_rings, connections(pair.a))), "its streams are on TCP", 10)
    shown = pair.xen.run("xl list").out
    check(re.search(rf"^{domain.name} .* \S*c\S* ", shown, re.M), f"it did not crash:\n{shown}")
    check(len(status(pair.a)["members"]) == 2, "the peer has left, and its memory is there yet")
    _destroy(pair, domain)
    _start(pair, domain)


def test_destroyed(pair: Domains) -> None:
    """The peer is destroyed: it leaves at once and no zombie stays; a new one arrives."""
    domain = _lose(pair)
    _destroy(pair, domain)
    _start(pair, domain)


def _zombies(pair: Domains) -> list[str]:
    """Return what has ended, and has memory that is in use."""
    return [line for line in pair.xen.run("xl list").out.splitlines() if "(null)" in line]


def _repeat_under_load(
    pair: Domains, rounds: int, step: Callable[[xen.Domain], None], *, demotes: bool = True
) -> None:
    """Do something to the first domain, over and over, with streams on rings each time."""
    pair.load()
    delta = Delta(*pair.both)
    stream = Stream(pair.b, pair.a, conns=CONNS, both=PATIENT, client_only=SHORT)
    pair.wait_on_rings(CONNS)
    for number in range(1, rounds + 1):
        before = Delta(*pair.both)
        step(pair.domains[0])
        wait_members(*pair.both, timeout=60 * pair.slow)
        stream.check_running(f"in round {number}")
        pair.wait_on_rings(CONNS)
        if demotes:
            check(before.of(pair.a)["tx_demoted"] >= CONNS, f"round {number}: streams stayed on rings")
    stream.stop()
    with autopsy(*pair.both):
        stream.finish(120 * pair.slow)
        pair.check_counters(delta)


def _lose(pair: Domains) -> xen.Domain:
    """Return the second domain, with streams on rings that its end will end."""
    pair.load()
    Stream(pair.b, pair.a, conns=2)
    pair.wait_on_rings(2)
    return pair.domains[1]


def _destroy(pair: Domains, domain: xen.Domain) -> None:
    domain.destroy()
    wait_for(lambda: len(status(pair.a)["members"]) < 2, "the peer has left", 10)
    wait_for(lambda: not _zombies(pair), "no zombie is left", 5)


def _start(pair: Domains, domain: xen.Domain) -> None:
    domain.start()
    domain.wait_boot()
    settle_in(domain)
    insmod(domain)
    wait_members(*pair.both, timeout=60 * pair.slow)
    pair.stream_on_rings(pair.b, pair.a, conns=1, enough=1_000_000)
