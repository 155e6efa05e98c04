# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Hallway is switched off, and its module unloaded, under streams and under calls that sleep."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from hallway_lab.vm import VM, Job
from hallway_tests.guests import (
    AT_ONCE,
    Delta,
    Stream,
    autopsy,
    connections,
    insmod,
    loaded,
    rmmod,
    wait_members,
)
from hallway_tests.pair import Pair
from hallway_tests.streams import CALM, small_buffers
from hallway_tests.suite import wait_for

pytestmark = pytest.mark.xdist_group("e2e-peers")

HOST = "10.77.0.254"  # of the bridge; no member
SMALL_RINGS = AT_ONCE | {"ring_bytes": 16384, "ring_bytes_max": 16384}
# Where the stream's threads sleep while their peer makes no call.
CALLS = ("sendmsg", "recvmsg", "epoll_wait")


@pytest.mark.xen
@pytest.mark.slow_on("6.1")
def test_unload(pair: Pair, rng: random.Random) -> None:
    """The module is unloaded and loaded again at either end while streams run; no byte is lost."""
    pair.load(**SMALL_RINGS)
    stream = Stream(pair.b, pair.a, conns=6)
    for _ in range(2):
        for vm in rng.sample(pair.both, 2):
            pair.wait_on_rings()
            with autopsy(vm):
                rmmod(vm, 60 * pair.slow)
            stream.check_running(f"when {vm.name}'s module was unloaded")
            insmod(vm, **SMALL_RINGS)
            wait_members(*pair.both)
    stream.stop()
    stream.finish(60 * pair.slow)


@pytest.mark.slow
def test_asleep_in_calls(pair: Pair) -> None:
    """`hallway off`, then rmmod: threads asleep in recv, send, epoll, and a kernel user, continue on TCP."""
    pair.load(**SMALL_RINGS)
    vm = pair.a
    delta = Delta(*pair.both)
    with small_buffers(*pair.both):
        disk = _disk(pair)
        stranger = _Stranger(pair)
        stream = Stream(pair.b, pair.a, conns=3, both=f"{CALM} --short --calls write,read --hold /tmp/hold")
        for unloads in (False, True):
            pair.wait_on_rings(4)
            assert not _with_host(vm), "a connection with the host, which is no member, is attached"
            with _asleep(pair, stream):
                if unloads:
                    _check_counters(pair, delta)
                    rmmod(vm, 60 * pair.slow)
                else:
                    vm.run("hallway off", timeout=60 * pair.slow)
                    assert not connections(vm), "off, and still attached"
            stream.check_running(f"with Hallway {'unloaded' if unloads else 'off'}")
            assert disk.poll() is None, "the disk's user has ended"
            if unloads:
                insmod(vm, **SMALL_RINGS)
                delta = Delta(*pair.both)
            else:
                vm.run("hallway on")
            wait_members(*pair.both)
        pair.wait_on_rings(4)
        stream.stop()
        stream.finish(60 * pair.slow)
        stranger.finish()
        pair.a.run("touch /tmp/nbd/stop")
        used = disk.wait(60 * pair.slow)
        assert used.code == 0 and int(used.out) > 4, f"the disk's user: {used}"
        pair.b.run("pkill -x nbd-server")
    _check_counters(pair, delta)


@pytest.mark.xen
@pytest.mark.slow_on("6.12")
def test_off_with_peer_stopped(pair: Pair) -> None:
    """`hallway off` while the peer's QEMU is stopped truncates its rings; the streams continue on TCP."""
    pair.load(**AT_ONCE)
    delta = Delta(*pair.both)
    stream = Stream(pair.b, pair.a, conns=6)
    for _ in range(20):
        pair.wait_on_rings(6)
        with pair.b.paused():
            pair.a.run("hallway off", timeout=20 * pair.slow)
            # The command waits for 5 s at most.
            wait_for(lambda: not connections(pair.a), "all have left")
        stream.check_running("with its peer stopped")
        pair.a.run("hallway on")
        # The peer may have set an end mark just before it was stopped.
        if delta.of(pair.b)["tx_bytes_resent"] and delta.of(pair.a)["rx_truncations"] >= 6:
            break
    pair.wait_on_rings(6)
    stream.stop()
    stream.finish(60 * pair.slow)
    assert delta.of(pair.a)["rx_truncations"] >= 6, "no ring was truncated"
    assert delta.of(pair.b)["tx_bytes_resent"], "no byte had to be resent"
    pair.check_counters(delta, stopped=True)


def _check_counters(pair: Pair, delta: Delta) -> None:
    for vm in pair.both:
        assert delta.of(vm)["tx_bytes_ring"], f"{vm.name} sent nothing through rings"
    pair.check_counters(delta)


def _with_host(vm: VM) -> list[Any]:
    return [c for c in connections(vm) if c["remote"] == HOST]


@contextlib.contextmanager
def _asleep(pair: Pair, stream: Stream) -> Iterator[None]:
    """Have all the stream's threads asleep in calls, also at the block's end; then bytes go over the wire."""
    pid = pair.a.run(f"pgrep -f '^stream client.*--port {stream.port} '").out.strip()

    def stacks() -> str:
        return pair.a.run(f"cat /proc/{pid}/task/*/stack").out

    def asleep() -> bool:
        said = stacks()
        return all(call in said for call in CALLS)

    pair.b.run("touch /tmp/hold")
    with autopsy(pair.a):
        wait_for(asleep, "all sleep in calls", 20 * pair.slow)
        assert "[hallway]" in stacks(), "no thread sleeps in the module"
        yield
        wait_for(asleep, "all sleep in calls again, once TCP is full, too", 20 * pair.slow)
        assert "[hallway]" not in stacks() or loaded(pair.a), "asleep in code that is unloaded"
    before = _sent(pair.b)
    pair.b.run("rm /tmp/hold")
    with autopsy(*pair.both):
        wait_for(lambda: _sent(pair.b) > before + 200_000, "bytes go over the wire", 20 * pair.slow)


def _sent(vm: VM) -> int:
    return int(vm.get("/sys/class/net/eth0/statistics/tx_bytes"))


def _disk(pair: Pair) -> Job:
    """Use a disk of b in a; its connection is opened by programs, then used by a's kernel."""
    pair.b.run("mkdir -p /tmp/nbd; truncate -s 1M /tmp/nbd/disk")
    pair.b.put("[generic]\n[disk]\nexportname = /tmp/nbd/disk\n", "/tmp/nbd/config")
    pair.b.run("nbd-server -C /tmp/nbd/config")
    pair.a.run("mkdir -p /tmp/nbd; rm -f /tmp/nbd/stop; modprobe nbd nbds_max=1")
    pair.a.run(f"nbd-client -b 4096 -N disk {pair.b.ip4} /dev/nbd0")
    return pair.a.spawn("sh /hallway/guest/disk.sh /dev/nbd0")


class _Stranger:
    """A stream between a guest and the host, which is no member."""

    def __init__(self, pair: Pair) -> None:
        words = f"--port 4800 --conns 1 --seed 7 {CALM}"
        command = [pair.share / "stream", "server", *words.split()]
        self._host = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._guest = pair.a.spawn(f"stream client {HOST} {words}")
        self._vm = pair.a

    def finish(self) -> None:
        """End it; every byte must have arrived."""
        self._vm.run("pkill -TERM -f '^stream client.*--port 4800 '")
        guest = json.loads(self._guest.wait(60).out)
        host = json.loads(self._host.communicate(timeout=60)[0])
        assert not guest["errors"] and not host["errors"]
        assert guest["per"] == [p[::-1] for p in host["per"]], "not all bytes arrived"
