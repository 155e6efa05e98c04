# SPDX-License-Identifier: Apache-2.0 OR MIT
"""SOCK_DGRAM of AF_VSOCK between two VMs: all programs share one ring each way."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hallway_lab import hostend
from hallway_lab.vm import VM
from hallway_tests import tunnels
from hallway_tests.guests import Delta, insmod, odd, wait_members
from hallway_tests.pair import Pair
from hallway_tests.suite import wait_for
from hallway_tests.tunnels import DATAGRAMS, PORT, Talk, cid, run

pytestmark = pytest.mark.xdist_group("e2e-tunnels")

PROGRAMS = 20
TRIPS = 30  # of each program
FLOOD = 3000
RCVBUF = 200_000
STARVED = 40  # programs that get no CPU
SHARES = 8  # programs that send at once
LEAST_SHARE = 0.8  # of an equal one
COPIED_BYTES = 150_000  # two of the longest datagrams, and the rest


def _talk(vm: VM, words: str) -> Talk:
    """Start a program of datagrams; it is ready."""
    talk = Talk(vm, words, DATAGRAMS)
    assert talk.hear() == "ready"
    return talk


@contextmanager
def _echoing(pair: Pair) -> Iterator[None]:
    """Have the second VM echo datagrams at PORT."""
    pair.load()
    with tunnels.tunnels(pair):
        server = _talk(pair.b, f"echo {PORT}")
        yield
        server.end()


@contextmanager
def _third_echoing(pair: Pair) -> Iterator[VM]:
    """Have a third VM there, which echoes datagrams at PORT, too."""
    third = pair.third()
    with pair.site.join(third):
        insmod(third)
        wait_members(*pair.both, third)
        tunnels.load(third)
        _talk(third, f"echo {PORT}")
        yield third


@pytest.mark.slow_on("6.12")
def test_many_programs(pair: Pair) -> None:
    """Datagrams of many programs come back whole, from their sender, through one ring each way."""
    with _echoing(pair):
        delta = Delta(*pair.both)
        words = f"trips {cid(pair.b)} {PORT} {TRIPS} {PROGRAMS}"
        said = run(pair.a, words, 300 * pair.slow, DATAGRAMS)
        assert not said["wrong"], said["wrong"]
        for vm in pair.both:
            moved = delta.of(vm)
            assert moved["tunnel_datagrams_sent"] == moved["tunnel_datagrams_received"] == PROGRAMS * TRIPS
            assert moved["tx_bytes_tunnel"] == moved["rx_bytes_tunnel"] == said["sent"]
            assert moved["trunks"] == moved["offers"] == 1
            assert not moved["tunnel_datagrams_dropped"]
            assert not odd(moved)


@pytest.mark.slow_on("6.12")
def test_one_does_not_read(pair: Pair) -> None:
    """A program that does not read loses what its buffer does not hold, and delays no other one."""
    with _echoing(pair):
        deaf = _talk(pair.b, f"deaf {PORT + 1} {RCVBUF}")
        delta = Delta(*pair.both)
        words = f"flood {cid(pair.b)} {PORT + 1} {FLOOD} 1000"
        assert run(pair.a, words, 120 * pair.slow, DATAGRAMS) == FLOOD
        said = run(pair.a, f"trips {cid(pair.b)} {PORT} 5 2", 120 * pair.slow, DATAGRAMS)
        assert not said["wrong"], said["wrong"]
        deaf.say("read")
        kept = int(deaf.hear())
        moved = delta.of(pair.b)
        assert 0 < kept < FLOOD
        assert moved["tunnel_datagrams_dropped"] == FLOOD - kept
        assert not odd(moved)
        deaf.end()


@pytest.mark.slow_on("6.12")
def test_commands(pair: Pair) -> None:
    """The commands cat and listen: all senders are heard, and the first one gets the answers."""
    pair.load()
    a, b = pair.both
    with tunnels.tunnels(pair):
        listener, to = _bound(b, f"listen --datagrams {PORT}"), f"{b.name}:{PORT}"
        delta = Delta(*pair.both)
        first = Talk(a, f"cat --datagrams {to}", "hallway")
        first.say("question")
        assert listener.hear() == "question"
        a.run(f"echo another | hallway cat --datagrams {to}", timeout=60 * pair.slow)
        assert listener.hear() == "another"
        listener.say("answer")
        assert first.hear() == "answer"
        for vm, sent, length in ((a, 2, len("question\nanother\n")), (b, 1, len("answer\n"))):
            moved = delta.of(vm)
            assert moved["tunnel_datagrams_sent"] == sent
            assert moved["tx_bytes_tunnel"] == length
            assert not odd(moved)
        for program in (first, listener):
            program.end()
        said = a.run(f"hallway cat --datagrams {hostend.CID}:{PORT}", check=False)
        assert said.code == 1 and "there are no datagrams with the host" in said.err, said

        copier = b.spawn(f"exec hallway listen --datagrams {PORT} >/tmp/got </dev/null")
        _wait_bound(b)
        delta = Delta(*pair.both)
        a.run(f"head -c {COPIED_BYTES} /dev/urandom >/tmp/sent")
        a.run(f"hallway cat --datagrams {to} </tmp/sent", timeout=60 * pair.slow)
        wait_for(lambda: int(b.run("stat -c %s /tmp/got").out) == COPIED_BYTES, "all arrives")
        sums = [vm.run(f"sha256sum <{name}").out for vm, name in ((a, "/tmp/sent"), (b, "/tmp/got"))]
        assert sums[0] == sums[1]
        assert delta.of(a)["tunnel_datagrams_sent"] == delta.of(b)["tunnel_datagrams_received"] == 3
        assert delta.of(a)["tx_bytes_tunnel"] == delta.of(b)["rx_bytes_tunnel"] == COPIED_BYTES
        assert copier.poll() is None
        copier.kill(15)
        copier.wait()


def _wait_bound(vm: VM) -> None:
    wait_for(lambda: f":{PORT} " in vm.run("ss -Hl --vsock").out, "it has its port")


def _bound(vm: VM, words: str) -> Talk:
    """Start a command that receives datagrams at PORT."""
    talk = Talk(vm, words, "hallway")
    _wait_bound(vm)
    return talk


@pytest.mark.slow
def test_perf(pair: Pair) -> None:
    """The command perf counts what arrives, and what is lost as its server stands still."""
    pair.load()
    a, b = pair.both
    with tunnels.tunnels(pair):
        server = _bound(b, f"perf --datagrams --serve {PORT}")
        for more, seconds, done in (
            ("", 3, r"(\d+) messages of 100 bytes .* messages/s, .* MB/s, (\d+) lost"),
            # They last longer than the server stands still.
            ("--round-trip", 20, r"(\d+) round trips of 100 bytes: .* us, (\d+) lost"),
        ):
            delta = Delta(*pair.both)
            b.run("pkill -STOP -x hallway")
            words = f"perf --datagrams --seconds {seconds} --size 100 {more} {b.name}:{PORT}"
            client = a.spawn(f"exec hallway {words}")
            # Of round trips the first one is over, and was lost.
            enough = "tunnel_datagrams_received" if more else "tunnel_datagrams_dropped"
            wait_for(lambda: delta.of(b)[enough] > 1, "the server gets no more")  # noqa: B023
            b.run("pkill -CONT -x hallway")
            said = client.wait(60 * pair.slow)
            found = re.fullmatch(done, said.out.strip())
            assert found, said
            count, lost = map(int, found.groups())
            there, here = delta.of(b), delta.of(a)
            assert lost
            if more:
                assert here["tunnel_datagrams_sent"] == count + lost
                assert there["tunnel_datagrams_received"] == count + lost
                # Late answers find no socket.
                assert here["tunnel_datagrams_received"] == count
            else:
                # Questions for the count may be lost, too, but not the last one.
                questions = here["tunnel_datagrams_sent"] - count
                assert 0 <= there["tunnel_datagrams_dropped"] - lost < questions
                assert sum(_moved(delta, b)) == here["tunnel_datagrams_sent"]
            for moved in (there, here):
                assert not odd(moved)
        said = a.run(f"hallway perf --datagrams --seconds 1 --round-trip {b.name}:9", check=False)
        assert said.code == 1 and "no message came back, " in said.err, said
        server.end()


@pytest.mark.slow
def test_shares(pair: Pair) -> None:
    """Programs that send at once, through a ring that is full, have alike shares."""
    with _echoing(pair):
        deaf = _talk(pair.b, f"deaf {PORT + 1} {RCVBUF}")
        words = f"share {cid(pair.b)} {PORT + 1} 3 16384 {SHARES}"
        sent = run(pair.a, words, 120 * pair.slow, DATAGRAMS)
        print("shares:", sent)
        assert min(sent) >= LEAST_SHARE * sum(sent) / SHARES
        deaf.end()


@pytest.mark.xen
def test_calls(pair: Pair) -> None:
    """Calls of SOCK_DGRAM do what they do for other datagrams."""
    with _echoing(pair):
        seen = run(pair.a, f"calls {cid(pair.b)} {PORT}", 120 * pair.slow, DATAGRAMS)
        assert seen == {
            "port": True,
            "taken": "EADDRINUSE",
            "too long": "EMSGSIZE",
            "nowhere": "EHOSTUNREACH",
            "host": "EINVAL",
            "not connected": "EINVAL",
            "empty": "EAGAIN",
            "readable": True,
            "peeked": "he",
            "cut": ["he", True, True],
            "length": 5,
            "drained": "EAGAIN",
            "timeout": True,
            "reserved": "EACCES",
        }


@pytest.mark.slow_on("6.12")
def test_trunk_ends(pair: Pair) -> None:
    """A trunk ends with its last socket, at either end; the next datagram opens one."""
    pair.load()
    a, b = pair.both
    with tunnels.tunnels(pair):
        sender = _talk(a, f"send {cid(b)} {PORT}")
        delta = Delta(*pair.both)

        def sends(how: str = "once") -> str:
            sender.say(how)
            return sender.hear()

        # No program has a socket there: datagrams are lost until that is known.
        assert sends("till refused") == "ECONNREFUSED"
        assert delta.of(b)["tunnel_refusals"] >= 1
        for _ in range(2):
            deaf = _talk(b, f"deaf {PORT} {RCVBUF}")
            before = Delta(b)
            wait_for(lambda: sends() == "none" and before.of(b)["tunnel_datagrams_received"], "one arrives")  # noqa: B023
            said = b.run("rmmod hallway_vsock", check=False)
            assert said.code and "in use" in said.err, said
            deaf.end()
            assert sends("till refused") == "ECONNREFUSED"
        sender.end()
        wait_for(lambda: delta.of(a)["trunks"] >= 3, "each reader got a trunk of its own")
        for vm in pair.both:
            assert not odd(delta.of(vm))


@pytest.mark.slow_on("6.12")
def test_full_ring(pair: Pair) -> None:
    """While the reader's VM stands still, a writer waits; then all its datagrams arrive."""
    with _echoing(pair):
        deaf = _talk(pair.b, f"deaf {PORT + 1} {RCVBUF}")
        delta = Delta(*pair.both)
        words = f"flood {cid(pair.b)} {PORT + 1} 100 16384"
        with pair.b.paused():
            job = pair.a.spawn(f"exec {DATAGRAMS} {words}")
            wait_for(lambda: delta.of(pair.a)["tunnel_datagrams_sent"] >= 15, "the ring is full")
            assert job.poll() is None
            assert delta.of(pair.a)["tunnel_datagrams_sent"] < 100
        assert job.wait(60 * pair.slow).out.strip() == "100"
        wait_for(lambda: sum(_moved(delta, pair.b)) == 100, "all arrive")
        deaf.end()


@pytest.mark.xen
def test_late(pair: Pair) -> None:
    """Programs that wait for the ring, and get no CPU then, do not delay one behind them."""
    with _echoing(pair):
        deaf = _talk(pair.b, f"deaf {PORT + 1} {RCVBUF}")
        delta = Delta(*pair.both)
        words = f"late {cid(pair.b)} {PORT + 1} 16384 {STARVED}"
        with pair.b.paused():
            late = Talk(pair.a, words, DATAGRAMS)
            assert late.hear() == "waiting"
        assert late.hear() == "in time"
        # One of each, besides those that filled the ring.
        assert delta.of(pair.a)["tunnel_datagrams_sent"] > STARVED
        wait_for(lambda: sum(_moved(delta, pair.b)) > STARVED, "all arrive")
        for vm in pair.both:
            assert not odd(delta.of(vm))
        deaf.end()


def _moved(delta: Delta, vm: VM) -> tuple[int, int]:
    moved = delta.of(vm)
    return moved["tunnel_datagrams_received"], moved["tunnel_datagrams_dropped"]


@pytest.mark.slow_on("6.12")
def test_corrupt_letter(pair: Pair) -> None:
    """A datagram that can not be ends its trunk, and is counted; the next trunk works."""
    with _echoing(pair):
        delta = Delta(*pair.both)
        sender = _talk(pair.a, f"send {cid(pair.b)} {PORT}")
        with pair.b.paused():
            sender.say("send")
            assert sender.hear() == "none"
            assert _overwrite_letters(pair.site.daemon.region.path) >= 1
        wait_for(lambda: delta.of(pair.b)["corrupt_rings"] == 1, "it is counted")

        def arrives() -> bool:
            sender.say("send")
            return sender.hear() == "none" and delta.of(pair.b)["tunnel_datagrams_received"] > 0

        wait_for(arrives, "there is another trunk")
        sender.end()


def _overwrite_letters(region: Path) -> int:
    """Give the datagrams that are the needle a length that none has; return how many there are."""
    found = 0
    with open(region, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        at = memory.find(b"needle!!")
        while at >= 0:
            if memory[at - 16 : at - 12] == (8).to_bytes(4, "little"):
                memory[at - 16 : at - 12] = (0xFFFFFFF0).to_bytes(4, "little")
                found += 1
            at = memory.find(b"needle!!", at + 1)
    return found


@pytest.mark.slow_on("6.12")
def test_multicast(pair: Pair) -> None:
    """Each other VM gets one copy; one that stands still loses its own, and delays no other one."""
    with _echoing(pair), _third_echoing(pair) as third:
        delta = Delta(*pair.both, third)

        def announced(count: int, length: int, *vms: VM) -> str:
            cids = " ".join(str(cid(vm)) for vm in vms)
            return run(pair.a, f"announce {PORT} {count} {length} {cids}", 60 * pair.slow, DATAGRAMS)

        assert not announced(20, 1000, pair.b, third)
        moved = {vm.name: delta.of(vm) for vm in (*pair.both, third)}
        for name, sent, received in (("vm1", 40, 40), ("vm2", 20, 20), ("vm3", 20, 20)):
            assert moved[name]["tunnel_datagrams_sent"] == sent, name
            assert moved[name]["tunnel_datagrams_received"] == received, name
            assert not moved[name]["tunnel_copies_dropped"], name

        delta = Delta(*pair.both)
        with third.paused():
            # More bytes than a trunk holds.
            assert not announced(40, 16384, pair.b)
        moved = {vm.name: delta.of(vm) for vm in pair.both}
        lost = moved["vm1"]["tunnel_copies_dropped"]
        assert 0 < lost < 40
        assert moved["vm1"]["tunnel_datagrams_sent"] == 80 - lost
        assert moved["vm2"]["tunnel_datagrams_received"] == 40
        for one in moved.values():
            assert not odd(one)


@pytest.mark.slow
def test_peer_killed(pair: Pair) -> None:
    """A peer is killed: datagrams to it fail, those to others do not."""
    with _echoing(pair):
        with _third_echoing(pair) as third:
            dead = cid(third)
            said = run(pair.a, f"trips {dead} {PORT} 2 1", 60 * pair.slow, DATAGRAMS)
            assert not said["wrong"], said["wrong"]
            sender = _talk(pair.a, f"send {dead} {PORT}")
            third.stop()

        def fails() -> bool:
            sender.say("send")
            return sender.hear() == "EHOSTUNREACH"

        wait_for(fails, "the death is noticed", 60 * pair.slow)
        said = run(pair.a, f"trips {cid(pair.b)} {PORT} 2 1", 60 * pair.slow, DATAGRAMS)
        assert not said["wrong"], said["wrong"]
        sender.end()
