# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Connections between two domains of Xen get onto rings in granted memory, and off again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hallway_lab.vm import VM
from hallway_tests.guests import Delta, Stream, autopsy, insmod, rmmod, settle_in, status, wait_members
from hallway_tests.suite import check, wait_for

from .conftest import Domains

# Saving and restoring a domain takes a minute.
PATIENT = "--stall 400"
# Where programs are frozen, or the module waits for 2 s to be unloaded, a blocking call
# ends with what it has. The first is so on TCP alone, too.
SHORT = "--short"
HALLWAY = "/hallway/hallway"


def check_bytes(pair: Domains, delta: Delta, stream: Stream) -> None:
    """End a stream; each byte has come, and nothing was odd on the way."""
    stream.stop()
    stream.finish(120 * pair.slow)
    pair.check_counters(delta)


def test_promotion(pair: Domains) -> None:
    """With the default policy a stream starts on TCP and continues in a ring, both ways."""
    pair.load()
    assert {one["transport"] for one in status(pair.a)["members"]} == {"xen"}
    delta = Delta(*pair.both)
    pair.stream_on_rings(pair.b, pair.a, conns=3, enough=3_000_000)
    for vm in pair.both:
        moved = delta.of(vm)
        assert moved["tx_promoted"] >= 3, vm.name
        assert moved["tx_bytes_tcp"] > 0, f"{vm.name}: no byte went over TCP before the start mark"


def test_status(pair: Domains) -> None:
    """In dom0, `hallway status` shows domains and pairs, and what a pair waits for."""
    pair.load()

    def shown() -> dict[str, Any]:
        return json.loads(pair.xen.run(f"{HALLWAY} status --json").out)["xen"]

    domains = [{"number": one.domid, "name": one.name, "uuid": one.uuid} for one in pair.domains]
    numbers = sorted(one.domid for one in pair.domains)
    assert shown()["problem"] is None
    assert sorted(shown()["domains"], key=lambda one: str(one["name"])) == domains
    both = {"domains": numbers, "refused": None, "announced": numbers, "offering": numbers}
    wait_for(lambda: shown()["pairs"] == [both], "both offer memory", 30 * pair.slow)
    said = pair.xen.run(f"{HALLWAY} status").out
    assert "each offers the other a slice" in said, said
    # Neither finds anything, which would be an error.
    pair.xen.run(f"{HALLWAY} doctor")
    pair.a.run("hallway doctor")
    rmmod(pair.a)
    one = both | {"announced": [pair.domains[1].domid], "offering": []}
    wait_for(lambda: shown()["pairs"] == [one], "none offers any more", 30 * pair.slow)
    said = pair.xen.run(f"{HALLWAY} status").out
    assert f"no module is loaded in {pair.a.name}" in said, said
    _advises(pair.xen, f"{HALLWAY} doctor", f"{pair.a.name}: has no module loaded")
    _advises(pair.a, "hallway doctor", "run modprobe hallway", "/etc/modules-load.d/hallway.conf")
    lacks = ("this domain shares memory with no other", "in dom0: hallway doctor")
    wait_for(lambda: not status(pair.b)["members"], "the peer has left", 30 * pair.slow)
    _advises(pair.b, "hallway doctor", *lacks)


def _advises(vm: VM, command: str, *words: str) -> None:
    """Run doctor, which must find all of these, and nothing that other hypervisors need."""
    result = vm.run(command, check=False)
    assert result.code, "it finds nothing"
    for word in words:
        assert word in result.out, f"doctor does not say {word!r}:\n{result.out}{result.err}"
    assert "doorbell" not in result.out and "qemu-args" not in result.out, result.out


def test_unload(pair: Domains) -> None:
    """The module is unloaded and loaded at one end, under load: TCP carries the stream meanwhile."""
    pair.load()
    delta = Delta(pair.b)
    stream = Stream(pair.b, pair.a, conns=3, both=PATIENT, client_only=SHORT)
    pair.wait_on_rings(3)
    rmmod(pair.a)
    wait_for(lambda: not status(pair.b)["members"], "the peer has left", 30 * pair.slow)
    stream.check_running("without the module")
    insmod(pair.a)
    wait_members(*pair.both)
    pair.wait_on_rings(3)
    stream.stop()
    stream.finish(120 * pair.slow)
    moved = delta.of(pair.b)
    check(not moved["resets"] and not moved["corrupt_rings"], f"{moved}")


def _generations(pair: Domains) -> list[list[int]]:
    return [[one["generation"] for one in status(vm)["members"]] for vm in pair.both]


def test_daemon(pair: Domains) -> None:
    """hallwayd is killed in dom0: rings go on. Started again, it changes nothing."""
    pair.load()
    delta = Delta(*pair.both)
    stream = Stream(pair.b, pair.a, conns=2)
    pair.wait_on_rings(2)
    assert pair.xen.daemon
    generations = _generations(pair)
    pair.xen.daemon.kill(9)
    wait_for(pair.xen.daemon.poll, "hallwayd has ended")
    before = Delta(*pair.both)
    wait_for(lambda: before.of(pair.a)["tx_bytes_ring"] > 1_000_000, "rings go on", 30 * pair.slow)
    pair.xen.start_daemon()
    before = Delta(*pair.both)
    wait_for(lambda: before.of(pair.a)["tx_bytes_ring"] > 1_000_000, "rings go on yet", 30 * pair.slow)
    # A pair that ends and begins again has members of other generations.
    assert _generations(pair) == generations
    check_bytes(pair, delta, stream)


def test_saved(pair: Domains) -> None:
    """A domain is saved and restored under load, by the stock toolstack: no byte is lost, rings come back."""
    _save_and_restore(pair, 1)


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_saved_often(pair: Domains) -> None:
    """The same, over and over, under one load."""
    _save_and_restore(pair, 20)


def _save_and_restore(pair: Domains, rounds: int) -> None:
    pair.load()
    delta = Delta(*pair.both)
    stream = Stream(pair.b, pair.a, conns=3, both=PATIENT, client_only=SHORT)
    pair.wait_on_rings(3)
    for _ in range(rounds):
        _save_and_restore_once(pair, stream)
    with autopsy(*pair.both):
        check_bytes(pair, delta, stream)


def _save_and_restore_once(pair: Domains, stream: Stream) -> None:
    domain = pair.domains[0]
    old = domain.domid
    domain.save()
    zombies = pair.xen.run("xl list").out
    check("(null)" not in zombies, f"memory of the saved domain is in use:\n{zombies}")
    domain.restore()
    check(domain.domid != old, "the domain was not restored under another number")
    wait_members(*pair.both, timeout=60 * pair.slow)
    stream.check_running("after the domain was restored")
    pair.wait_on_rings(3)


@pytest.mark.last
def test_destroyed(pair: Domains) -> None:
    """The peer is destroyed under load: it leaves at once and no zombie stays; a new one is a member."""
    pair.load()
    Stream(pair.b, pair.a, conns=2)
    pair.wait_on_rings(2)
    domain = pair.domains[1]
    domain.destroy()
    wait_for(lambda: not status(pair.a)["members"], "the peer has left", 10)
    wait_for(lambda: "(null)" not in pair.xen.run("xl list").out, "no zombie is left", 5)
    domain.start()
    domain.wait_boot()
    settle_in(domain)
    insmod(domain)
    wait_members(*pair.both, timeout=60 * pair.slow)
    pair.stream_on_rings(pair.b, pair.a, conns=1, enough=1_000_000)
