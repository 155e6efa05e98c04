# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Carriers change at random times under load; the stream program checks every byte."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hallway_lab.kernels import DEBUG
from hallway_lab.vm import VM
from hallway_tests.guests import AT_ONCE, Delta, Stream, counters
from hallway_tests.pair import Pair
from hallway_tests.streams import small_buffers
from hallway_tests.suite import wait_for

pytestmark = [pytest.mark.xdist_group("e2e-streams"), pytest.mark.xen]

# Counters of the situations that a run has to meet.
SITUATIONS = (
    *("ring_full", "ring_empty", "ring_wraps"),
    *("switch_in_tcp", "switch_in_ring", "switch_reader", "switch_writer"),
)


@pytest.mark.slow_on("6.12")
def test_switching_small_ring(pair: Pair, rng: random.Random) -> None:
    """200 switches each way with rings of 4 KiB: they fill, empty and wrap all the time."""
    with small_buffers(*pair.both):
        _switch(pair, rng, SITUATIONS, ring_bytes=4096, ring_bytes_max=4096)


@pytest.mark.slow
def test_switching_big_ring(pair: Pair, rng: random.Random) -> None:
    """The same with rings of the default size, which hold many bytes at each switch."""
    with small_buffers(*pair.both):
        # A writer rarely waits for a large ring: the 50 switches on the debug kernel need not meet that.
        _switch(pair, rng, SITUATIONS if pair.kernel not in DEBUG else ())


@pytest.mark.slow_on("6.12")
def test_metrics(pair: Pair) -> None:
    """The metrics of a guest: its counters, what carries its connections, and what demoted them."""
    pair.load(**AT_ONCE, ring_bytes=1 << 18, ring_bytes_max=1 << 18)  # none grows
    stream = Stream(pair.b, pair.a)
    pair.wait_on_rings()
    on_rings = 'hallway_connections{sends="ring",receives="ring",reason="NONE"}'
    wait_for(lambda: _read_metrics(pair.a).get(on_rings) == 1, "it is on rings both ways")
    assert _read_metrics(pair.a)["hallway_enabled"] == 1
    pair.a.run("hallway off")
    off = 'hallway_demotions_total{reason="OFF"}'
    wait_for(lambda: off in _read_metrics(pair.a), "it is demoted")
    after, counted = _read_metrics(pair.a), counters(pair.a)
    stream.stop()
    stream.finish(60 * pair.slow)
    # On a busy machine a VM may have stood still before: that demotes, too.
    assert after[off] == 1
    assert after["hallway_enabled"] == 0
    assert after["hallway_tx_promoted_total"] == counted["tx_promoted"] >= 1
    assert {f"hallway_{name}_total" for name in counted} <= set(after)


def _read_metrics(vm: VM) -> dict[str, float]:
    """Return the samples of `hallway metrics`."""
    lines = vm.run("hallway metrics").out.splitlines()
    assert lines[-1] == "# EOF"
    samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in samples}


def _switch(pair: Pair, rng: random.Random, situations: Sequence[str], **params: object) -> None:
    """Switch Hallway off and on in both VMs at random until carriers have changed 200 times each way.

    All the situations were met then.
    """
    times = 200 // pair.slow
    pair.load(**AT_ONCE, **params)
    delta = Delta(*pair.both)
    stream = Stream(pair.b, pair.a, conns=6)
    seeds = [rng.randrange(1 << 30) for _ in pair.both]
    toggles = [
        vm.spawn(f"toggle {seed} 700 hallway off on") for vm, seed in zip(pair.both, seeds, strict=True)
    ]

    def enough() -> bool:
        stream.check_running("early")
        moved = [delta.of(vm) for vm in pair.both]
        return not find_missed(moved) and all(
            m["tx_promoted"] + m["tx_demoted"] >= times and m["rx_promoted"] + m["rx_demoted"] >= times
            for m in moved
        )

    def find_missed(moved: list[dict[str, int]]) -> list[str]:
        # The 50 switches on the debug kernel meet each in one of the VMs.
        met = min if pair.kernel not in DEBUG else max
        return [name for name in situations if not met(m[name] for m in moved)]

    try:
        wait_for(enough, f"{times} switches, in all situations", 60 * pair.slow)
    except AssertionError as error:
        moved = [delta.of(vm) for vm in pair.both]
        said: list[object] = [f"not met: {find_missed(moved)}", *moved]
        said += [j.poll() for j in (stream.client, stream.server, *toggles)]
        raise AssertionError(f"{error} {said}") from error
    finally:
        for vm in pair.both:
            vm.run("pkill -TERM -x toggle", check=False, first=True)
    for toggle in toggles:
        done = toggle.wait(180 * pair.slow)
        assert done.code == 0, f"toggle: {done}"
    stream.stop()
    try:
        stream.finish(60 * pair.slow)
    except AssertionError as error:
        lines = "".join(f"\n{vm.name}: {delta.of(vm)}" for vm in pair.both)
        raise AssertionError(f"{error}{lines}") from error
    pair.check_counters(delta)
