"""Hallway is switched off, and its module unloaded, under calls that sleep."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

from hallway_lab.vm import VM, Job
from hallway_tests.guests import Delta, Stream, autopsy, connections, insmod, loaded, rmmod, wait_members
from hallway_tests.pair import Pair
from hallway_tests.streams import CALM, small_buffers
from hallway_tests.suite import check, wait_for

HOST = "10.77.0.254"  # of the bridge; no member
# Where the stream's threads sleep while their peer makes no call.
CALLS = ("sendmsg", "recvmsg", "epoll_wait")


def asleep_in_calls(pair: Pair) -> None:
    """`hallway off`, then rmmod: who sleeps in recv, send or epoll, and a kernel user, go on over TCP."""
    params = {"promote_bytes": 0, "promote_ms": 0, "ring_bytes": 16384}
    pair.load(**params)
    vm = pair.a
    delta = Delta(*pair.both)
    with small_buffers(*pair.both):
        disk = _disk(pair)
        stranger = _Stranger(pair)
        stream = Stream(pair.b, pair.a, conns=3, both=f"{CALM} --short --calls write,read --hold /tmp/hold")
        for unloads in (False, True):
            pair.wait_on_rings(4)
            check(not _with(vm, HOST), f"a stranger is attached: {_with(vm, HOST)}")
            with _asleep(pair, stream):
                if unloads:
                    _count_off(pair, delta)
                    rmmod(vm, 60 * pair.slow)
                else:
                    vm.run("hallway off", timeout=60 * pair.slow)
                    check(not connections(vm), f"off, and still attached: {connections(vm)}")
            check(stream.running() and not disk.poll(), f"{stream.client.poll()} {disk.poll()}")
            if unloads:
                insmod(vm, **params)
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
        check(used.code == 0 and int(used.out) > 4, f"the disk's user: {used}")
        pair.b.run("pkill -x nbd-server")
    _count_off(pair, delta)


def peer_stopped(pair: Pair) -> None:
    """`hallway off` while the peer's QEMU stands still: rings are cut, and the streams go on over TCP."""
    pair.load(promote_bytes=0, promote_ms=0)
    delta = Delta(*pair.both)
    stream = Stream(pair.b, pair.a, conns=6)
    for _ in range(20):
        pair.wait_on_rings(6)
        os.kill(pair.b.pid, signal.SIGSTOP)
        try:
            pair.a.run("hallway off", timeout=20 * pair.slow)
            check(not connections(pair.a), f"off, and still attached: {connections(pair.a)}")
        finally:
            os.kill(pair.b.pid, signal.SIGCONT)
        stream.check_running("with its peer stopped")
        pair.a.run("hallway on")
        if delta.of(pair.b)["tx_bytes_repeated"]:
            break
    pair.wait_on_rings(6)
    stream.stop()
    stream.finish(60 * pair.slow)
    check(delta.of(pair.a)["rx_cuts"] >= 6, f"no ring was cut: {delta.of(pair.a)}")
    check(delta.of(pair.b)["tx_bytes_repeated"], "no byte had to be repeated")
    pair.check_counters(delta, stopped=True)


def _count_off(pair: Pair, delta: Delta) -> None:
    for vm in pair.both:
        moved = delta.of(vm)
        check(moved["tx_bytes_ring"], f"{vm.name} sent nothing through rings")
    pair.check_counters(delta)


def _with(vm: VM, remote: str) -> list[Any]:
    return [c for c in connections(vm) if c["remote"] == remote]


@contextlib.contextmanager
def _asleep(pair: Pair, stream: Stream) -> Iterator[None]:
    """All the stream's threads in a sleep, also after the block; then bytes go over the wire."""
    pid = pair.a.run(f"pgrep -f '^stream client.*--port {stream.port} '").out.strip()

    def stacks() -> str:
        return pair.a.run(f"cat /proc/{pid}/task/*/stack").out

    def asleep() -> bool:
        said = stacks()
        return all(call in said for call in CALLS)

    pair.b.run("touch /tmp/hold")
    with autopsy(pair.a):
        wait_for(asleep, "all sleep in calls", 20 * pair.slow)
        check("[hallway]" in stacks(), "nobody sleeps in the module")
        yield
        wait_for(asleep, "all sleep in calls again, once TCP is full, too", 20 * pair.slow)
        check("[hallway]" not in stacks() or loaded(pair.a), "asleep in code that is gone")
    before = _sent(pair.b)
    pair.b.run("rm /tmp/hold")
    with autopsy(*pair.both):
        wait_for(lambda: _sent(pair.b) > before + 200_000, "bytes go over the wire", 20 * pair.slow)


def _sent(vm: VM) -> int:
    return int(vm.get("/sys/class/net/eth0/statistics/tx_bytes"))


def _disk(pair: Pair) -> Job:
    """Use a disk of b in a: both ends of its connection are a program's, then a's kernel is one."""
    pair.b.run("mkdir -p /tmp/nbd; truncate -s 1M /tmp/nbd/disk")
    pair.b.put("[generic]\n[disk]\nexportname = /tmp/nbd/disk\n", "/tmp/nbd/config")
    pair.b.run("nbd-server -C /tmp/nbd/config")
    pair.a.run("mkdir -p /tmp/nbd; modprobe nbd nbds_max=1")
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
        """End it; every byte must have come."""
        self._vm.run("pkill -TERM -f '^stream client.*--port 4800 '")
        guest = json.loads(self._guest.wait(60).out)
        host = json.loads(self._host.communicate(timeout=60)[0])
        check(not guest["errors"] and not host["errors"], f"{guest} {host}")
        check(guest["per"] == [p[::-1] for p in host["per"]], f"not all came: {guest} {host}")


TESTS = (asleep_in_calls, peer_stopped)
