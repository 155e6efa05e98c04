# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Connections through NAT, and sockets that claim addresses of another."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from hallway_lab.vm import VM
from hallway_tests.guests import (
    AT_ONCE,
    Delta,
    Stream,
    connections,
    insmod,
    members,
    rmmod,
    wait_members,
)
from hallway_tests.pair import Pair
from hallway_tests.streams import CALM
from hallway_tests.suite import wait_for

pytestmark = pytest.mark.xdist_group("e2e-peers")


@pytest.mark.slow
@pytest.mark.not_on("debug", "the kernel has no traffic control")
def test_nat(pair: Pair) -> None:
    """Connections through NAT stay on TCP with NO_MATCH, also where another socket claims their address."""
    pair.load(**AT_ONCE)
    a, b = pair.both
    other = {vm.name: f"10.77.0.10{vm.config.number}" for vm in pair.both}
    for vm in pair.both:
        vm.run(f"ip addr add {other[vm.name]}/24 dev eth0; tc qdisc add dev eth0 clsact")
    try:
        wait_for(lambda: other["vm1"] in members(b) and other["vm2"] in members(a), "both serve all")
        # b calls a's second address, which a translates to its first.
        port = Stream.port + 1
        _translate(a, "ingress", f"dst_ip {other['vm1']} dst_port {port}", other["vm1"], a.ip4)
        _translate(a, "egress", f"src_ip {a.ip4} src_port {port}", a.ip4, other["vm1"])
        with _stays_on_tcp(pair, other["vm1"]):
            _forge(pair, other["vm1"], port)
        # b calls from its first address, which b translates to its second.
        port = Stream.port + 1
        _translate(b, "egress", f"src_ip {b.ip4} dst_port {port}", b.ip4, other["vm2"])
        _translate(b, "ingress", f"dst_ip {other['vm2']} src_port {port}", other["vm2"], b.ip4)
        with _stays_on_tcp(pair, a.ip4):
            pass
        # The translation was the reason, not the addresses.
        pair.stream_on_rings(a, b, to=other["vm1"], conns=2, enough=300_000, both=CALM)
    finally:
        for vm in pair.both:
            vm.run(f"ip addr del {other[vm.name]}/24 dev eth0; tc qdisc del dev eth0 clsact")


@pytest.mark.slow
def test_address_claimed(pair: Pair) -> None:
    """A third VM publishes a peer's address, after the peer or before it: rings are shared with the peer."""
    pair.load(**AT_ONCE)
    a, b = pair.both
    third = pair.third()
    with pair.site.join(third):
        third.run(f"sysctl -q net.ipv4.conf.all.arp_ignore=1; ip addr add {b.ip4}/32 dev lo")
        insmod(third, **AT_ONCE)
        wait_members(a, b, third)
        _claimed_in_vain(pair)
        rmmod(b)
        wait_for(lambda: b.ip6 not in members(a), "the peer has left")
        insmod(b, **AT_ONCE)
        wait_for(lambda: b.ip6 in members(a), "the peer is back")
        _claimed_in_vain(pair)


def _claimed_in_vain(pair: Pair) -> None:
    stream = Stream(pair.b, pair.a, to=pair.b.ip4, conns=3, both=CALM)
    pair.wait_on_rings(3)
    stream.stop()
    stream.finish(60 * pair.slow)


def _translate(vm: VM, way: str, match: str, old: str, new: str) -> None:
    vm.run(
        f"tc filter add dev eth0 {way} protocol ip flower ip_proto tcp {match}"
        f" action nat {way} {old}/32 {new}"
    )


@contextlib.contextmanager
def _stays_on_tcp(pair: Pair, to: str) -> Iterator[None]:
    """Run a stream from b to that address of a: TCP alone carries it, and both ends give the reason."""
    delta = Delta(*pair.both)
    stream = Stream(pair.a, pair.b, to=to, conns=3, both=CALM)
    for vm in pair.both:
        wait_for(
            lambda: sum(c["reason_name"] == "NO_MATCH" for c in connections(vm)) == 3,  # noqa: B023
            f"{vm.name} says NO_MATCH",
            20 * pair.slow,
        )
        shown = vm.run("hallway connections").out
        assert "3 NO_MATCH: the peer has no such connection (NAT or a proxy between?)" in shown
    yield
    stream.stop()
    stream.finish(60 * pair.slow)
    pair.check_counters(delta)
    for vm in pair.both:
        moved = delta.of(vm)
        assert not moved["tx_promoted"], vm.name
        assert moved["tx_bytes_tcp"], vm.name


def _forge(pair: Pair, address: str, port: int) -> None:
    """Put a socket of another connection where b's offers look for one: a declines them all the same."""
    a, b = pair.both
    called = next(c["local_port"] for c in connections(b) if c["remote_port"] == port)
    forger = a.spawn(f"python3 -B /hallway/guest/forge.py {address} {port} {b.ip4} {called}")

    def forged() -> str:
        assert forger.poll() is None, "the socket cannot be forged"
        return a.run(f"ss -Htn src {address} sport = :{port}").out

    wait_for(forged, "the socket is forged", 60 * pair.slow)
    # The module attaches sockets when they connect, which this one did not, and when it is switched on.
    a.run("hallway off; hallway on")
    wait_for(lambda: any(c["local"] == address for c in connections(a)), "the forged socket is attached")
    # Offers become rarer after each that was declined: start again.
    b.run("hallway off; hallway on")
    delta = Delta(b)
    wait_for(lambda: delta.of(b)["offers_declined"] >= 9, "b continued to offer", 30 * pair.slow)
    forger.kill()
