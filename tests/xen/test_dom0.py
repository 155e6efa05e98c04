# SPDX-License-Identifier: Apache-2.0 OR MIT
"""dom0: what it shows of domains, and hallwayd there, which is killed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hallway_lab.vm import VM
from hallway_tests.domains import Domains
from hallway_tests.guests import Delta, Stream, rmmod, status
from hallway_tests.suite import wait_for

pytestmark = pytest.mark.xen

HALLWAY = "/hallway/hallway"


def test_status(pair: Domains) -> None:
    """In dom0, `hallway status` shows domains and pairs, and what a pair waits for."""
    pair.load()
    assert {one["transport"] for one in status(pair.a)["members"]} == {"xen"}

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
    stream.stop()
    stream.finish(120 * pair.slow)
    pair.check_counters(delta)
