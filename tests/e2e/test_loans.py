# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Ring memory that is lent to programs: packets that no system call copies."""

from __future__ import annotations

import json

import pytest
from hallway_tests import library, tunnels
from hallway_tests.guests import Delta, wait_members
from hallway_tests.pair import Pair
from hallway_tests.suite import wait_for
from hallway_tests.tunnels import PORT, Talk, cid, run, served

pytestmark = pytest.mark.xdist_group("e2e-tunnels")

LOANS = "python3 -B /hallway/guest/run.py loans"
LIBRARY = f"{library.find('/hallway/library')} python3 -B /hallway/guest/run.py lent"
MUCH = 4_000_000  # bytes


def test_echo(pair: Pair) -> None:
    """Packets are written and read in ring memory at both ends, or at one; each byte arrives."""
    pair.load()
    a, b = pair.both
    with tunnels.tunnels(pair), served(b):
        lent = Talk(b, "serve 6000", LOANS)
        assert lent.hear() == "ready"
        for port, both in ((PORT + 1, False), (6000, True)):
            delta = Delta(a, b)
            assert not run(a, f"echo {cid(b)} {port} {MUCH}", 120 * pair.slow, LOANS)
            for vm, sends in ((a, True), (b, both)):
                moved = delta.of(vm)
                assert moved["tx_bytes_tunnel"] >= MUCH, vm.name
                assert (moved["tunnel_loans"] > 100) == sends, vm.name
            tunnels.check(pair, delta)
        lent.end()


@pytest.mark.slow_on("6.12")
@pytest.mark.needs("hallway_tests.library:prepare")
def test_library(pair: Pair) -> None:
    """The library's examples pass a file on in ring memory; by TCP, or without the device, in buffers."""
    pair.load()
    a, b = pair.both
    a.run(f"head -c {MUCH} /dev/urandom >/tmp/sent")
    with tunnels.tunnels(pair):
        for number, (listener, sender) in enumerate(library.PAIRS):
            for port, by, lent in ((7600, "vsock", True), (7610, "tcp", False), (7620, "vsock", False)):
                port += number
                hidden = by == "vsock" and not lent
                if hidden:
                    for vm in pair.both:
                        vm.run("mount --bind /dev/null /dev/hallway-loan")
                host = cid(b) if by == "vsock" else b.ip4
                at = port if by == "vsock" else f"tcp://{host}:{port}"
                b.run(">/tmp/said")
                job = b.spawn(f"exec {_pipe(listener)} listen {at} >/tmp/got 2>/tmp/said")
                wait_for(lambda: "listening" in b.get("/tmp/said"), "it listens")
                delta = Delta(a, b)
                said = a.run(f"{_pipe(sender)} send {by}://{host}:{port} </tmp/sent", timeout=60 * pair.slow)
                assert not job.wait(60 * pair.slow).code
                wanted = f"lent: {str(lent).lower()}"
                assert (wanted in said.err, wanted in b.get("/tmp/said")) == (True, True), (listener, sender)
                sums = [vm.run(f"sha256sum <{name}").out for vm, name in ((a, "/tmp/sent"), (b, "/tmp/got"))]
                assert sums[0] == sums[1], (listener, sender, at)
                for vm in pair.both:
                    assert (delta.of(vm)["tunnel_loans"] >= MUCH // 65536) == lent, vm.name
                tunnels.check(pair, delta)
                if hidden:
                    for vm in pair.both:
                        vm.run("umount /dev/hallway-loan")


def _pipe(language: str) -> str:
    return library.example(language, "/hallway/library", "pipe")


def test_calls(pair: Pair) -> None:
    """What is not a loan, or not this program's, gives an error; other calls on the socket are as ever."""
    pair.load()
    a, b = pair.both
    with tunnels.tunnels(pair), served(b):
        delta = Delta(a, b)
        seen = run(a, f"calls {cid(b)} {PORT + 1}", 60 * pair.slow, LOANS)
        assert seen == {
            "stream": "EPROTOTYPE",
            "TCP": "EPROTOTYPE",
            "no socket": "ENOTSOCK",
            "unconnected": "ENOTCONN",
            "fault": "EFAULT",
            "second": "EBUSY",
            "again": "EBUSY",
            "map to write": "EACCES",
            "map privately": "EINVAL",
            "map more": "EINVAL",
            "map elsewhere": "EINVAL",
            "map another's": "EINVAL",
            "commit without": "EINVAL",
            "send meanwhile": "EBUSY",
            "commit more": "EINVAL",
            "given up": "EINVAL",
            "unknown flag": "EINVAL",
            "too long": "EMSGSIZE",
            "far too long": "EMSGSIZE",
            "longest": "none",
            "release without": "EINVAL",
            "nothing": True,
            "recv in between": "one",
            "release of that": "EINVAL",
            "mixed": "two",
            "after shutdown": "EPIPE",
            "end": True,
            "records": [[3, 0], [3, 1], [3, 0]],
            "taken up again": "EBUSY",
            "a child's": -11,
        }
        tunnels.check(pair, delta)


@pytest.mark.slow_on("6.12")
def test_stale(pair: Pair) -> None:
    """A mapping of a ring that has ended reaches no other tunnel's memory, and a new one nothing old."""
    pair.load()
    a, b = pair.both
    with tunnels.tunnels(pair), served(b):
        delta = Delta(a, b)
        assert run(a, f"stale {cid(b)} {PORT + 1} 300000", 180 * pair.slow, LOANS) == []
        # Its memory has been others'.
        assert run(a, f"blank {cid(b)} {PORT + 1}", 60 * pair.slow, LOANS) == [0, 0]
        tunnels.check(pair, delta)


@pytest.mark.slow_on("6.12")
@pytest.mark.needs("hallway_tests.library:prepare")
def test_library_waits(pair: Pair) -> None:
    """The library's calls in place wait as those of a socket do: not at all, or for a time."""
    pair.load()
    a, b = pair.both
    with tunnels.tunnels(pair), served(b):
        delta = Delta(a, b)
        seen = run(a, f"waits {cid(b)} {PORT + 1}", 60 * pair.slow, LIBRARY)
        assert seen == {
            "nothing to read": "EAGAIN",
            "no space": ["EAGAIN", 4],
            "peek for a time": ["EAGAIN", True],
            "reserve for a time": ["EAGAIN", True],
        }
        tunnels.check(pair, delta)


@pytest.mark.slow_on("6.12")
@pytest.mark.needs("hallway_tests.library:prepare")
def test_region_unplugged(pair: Pair) -> None:
    """A region goes while packets are read in place: recv(), or the library, gives what was left."""
    pair.load()
    a, b = pair.both
    with tunnels.tunnels(pair), served(a), served(b):
        left = ["a" * 10, "b" * 20, "c" * 5]
        said = {
            LOANS: ["EREMCHG", "EPIPE", *left, "ECONNRESET"],
            LIBRARY: ["EREMCHG", *left, "ECONNRESET", "EPIPE"],
        }
        readers = [
            (Talk(vm, f"hold {cid(other)} {PORT + 1}", program), said[program])
            for vm, other in ((a, b), (b, a))
            for program in said
        ]
        for reader, _ in readers:
            assert reader.hear() == left[0]
        delta = Delta(a, b)
        plain = pair.site.daemon.region
        b.unplug(plain.id, 30 * pair.slow)
        for reader, wanted in readers:
            wait_for(
                lambda: delta.of(reader.vm)["tunnel_resets"] >= len(readers),  # noqa: B023
                "the reset is noticed",
                30 * pair.slow,
            )
            reader.say("")
            assert json.loads(reader.hear()) == wanted
            reader.end()
        b.plug(plain)
        wait_members(a, b)
