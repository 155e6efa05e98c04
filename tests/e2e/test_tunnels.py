# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Tunnels: AF_VSOCK between two VMs, through rings."""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import Any

import pytest
from hallway_lab.vm import VM
from hallway_tests import library, tunnels, vsocktest
from hallway_tests.guests import REPO, Delta, insmod, loaded, odd, rmmod, status, wait_members
from hallway_tests.pair import Pair
from hallway_tests.suite import wait_for
from hallway_tests.tunnels import KINDS, PORT, Talk, cid, run, served

pytestmark = pytest.mark.xdist_group("e2e-tunnels")

TRIPS = 5000
HANG_UPS = 500
CLOSES = 300
COPIED_BYTES = 3_000_000
CALLERS = 600  # more than a queue of the kernel works at
MULTICAST = 0x80000000  # HALLWAY_CID_MULTICAST
OWN_TIMEOUT = 5  # seconds that connect() may take, by a socket's own word; usually it is 2
KILLED_BYTES = 100_000  # that a peer has sent when it dies
# What stock kernels' own transport within a guest does in another way.
DIFFERENT = {
    "packet not_blocking": "6.12's own, on a busy machine, polls as writable where a send has no space",
    "packet peeked": "6.1's own refuses MSG_PEEK",
    "stream lowat_of_most": "6.12's own leaves the writer asleep",
    "stream lowat_above_ring": "a kernel's own leaves both asleep",
}


@pytest.mark.xen
def test_each_byte(pair: Pair) -> None:
    """Streams and packets come back, byte for byte and message for message, and all went through rings."""
    pair.load()
    with tunnels.tunnels(pair), served(pair.b):
        delta = Delta(*pair.both)
        for kind in KINDS:
            words = f"echo {kind} {cid(pair.b)} {PORT} 2000000 1"
            said = run(pair.a, words, 300 * pair.slow)
            assert not said["wrong"], said["wrong"]
            a, b = delta.of(pair.a), delta.of(pair.b)
            assert a["tx_bytes_tunnel"] == b["rx_bytes_tunnel"] == said["sent"]
            assert b["tx_bytes_tunnel"] == a["rx_bytes_tunnel"] == said["sent"] - 16
            assert a["tunnel_connections"] == b["tunnel_arrivals"] == 1
            tunnels.check(pair, delta)
            delta = Delta(*pair.both)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_many_at_once(pair: Pair) -> None:
    """Fifty connections of each type at once."""
    pair.load()
    with tunnels.tunnels(pair), served(pair.b):
        delta = Delta(*pair.both)
        for kind in KINDS:
            words = f"echo {kind} {cid(pair.b)} {PORT} 60000 50"
            said = run(pair.a, words, 300 * pair.slow)
            assert not said["wrong"], said["wrong"]
        assert delta.of(pair.b)["tunnel_arrivals"] == 100
        tunnels.check(pair, delta)


@pytest.mark.xen
@pytest.mark.slow_on("6.12")
@pytest.mark.parametrize("kind", ["stream", pytest.param("packet", marks=pytest.mark.slow)])
def test_trips(pair: Pair, kind: str) -> None:
    """Thousands of round trips, of which each reader may sleep as its byte arrives: no wake-up is lost."""
    pair.load()
    with tunnels.tunnels(pair), served(pair.b):
        delta = Delta(*pair.both)
        assert run(pair.a, f"trips {kind} {cid(pair.b)} {PORT} {TRIPS}", 300 * pair.slow) == TRIPS
        a, b = delta.of(pair.a), delta.of(pair.b)
        assert a["rx_bytes_tunnel"] == b["tx_bytes_tunnel"] == TRIPS
        tunnels.check(pair, delta)


def test_each_call(pair: Pair) -> None:
    """Each call does what it does on the kernel's own transport within a guest."""
    pair.load()
    a, b = pair.both
    with tunnels.tunnels(pair), served(b):
        seen = run(a, f"rows {cid(b)} {PORT}", 300 * pair.slow)
        assert seen["stream lowat_of_most"] == [True, True]
        assert seen["stream lowat_above_ring"] == "woken"
        b.run("modprobe vsock_loopback")
        try:
            stock = run(b, f"rows 1 {PORT}", 300 * pair.slow)
        finally:
            wait_for(
                lambda: not b.run("rmmod vsock_loopback", check=False).code,
                "loopback is unloaded",
            )
    print(json.dumps(seen, indent=1))
    wrong = {name: (value, stock[name]) for name, value in seen.items() if value != stock[name]}
    assert wrong.keys() <= DIFFERENT.keys(), wrong
    assert seen["packet not_blocking"] == ["EAGAIN", "EAGAIN", True, True, ""]
    assert seen["packet peeked"] == ["aaaa", "aaaa"]
    for kind in KINDS:
        assert seen[f"{kind} low_ports"] == [1, 0]
        assert seen[f"{kind} connect_timeout"] == [[2, 0], [7, 0]]
        assert not isinstance(seen[f"{kind} buffer_sizes"], str)


CLOSER = """
import socket
at = socket.socket(socket.AF_VSOCK, socket.SOCK_{kind})
at.bind((socket.VMADDR_CID_ANY, 7300))
at.listen()
while True:
    one, _ = at.accept()
    one.send(b"x")
    one.close()
"""


@pytest.mark.slow_on("6.12")
@pytest.mark.parametrize("kind", ["STREAM", "SEQPACKET"])
def test_closed_both_ways(pair: Pair, kind: str) -> None:
    """A program that knows of its peer's close() can send no more, though DONE may be on its way."""
    pair.load()
    with tunnels.tunnels(pair):
        delta = Delta(*pair.both)
        job = pair.b.spawn(f"python3 -c '{CLOSER.format(kind=kind)}'")
        wait_for(lambda: "7300" in pair.b.run("ss -Hl --vsock").out, "it listens")
        lost = tunnels.send_to_closed(pair.a, kind, cid(pair.b), 7300, CLOSES, 200 * pair.slow)
        assert not lost, f"{lost} sends went nowhere"
        assert delta.of(pair.a)["rx_bytes_tunnel"] == CLOSES
        tunnels.check(pair, delta)
        job.kill(15)
        job.wait()


# Tests of the kernel's own that tunnels do not pass: docs/tunnels.md says why.
LACKED: dict[str, tuple[str, ...]] = {
    "6.12": (
        "SOCK_SEQPACKET msg bounds",
        "SOCK_STREAM MSG_ZEROCOPY",
        "SOCK_SEQPACKET MSG_ZEROCOPY",
    )
}


@pytest.mark.slow
@pytest.mark.needs("hallway_tests.vsocktest:prepare")
def test_kernels_own(pair: Pair) -> None:
    """The kernel's own tests of AF_VSOCK pass between two VMs, in both directions."""
    pair.load()
    for client, server in (pair.both, pair.both[::-1]):
        with tunnels.tunnels(pair):
            delta = Delta(*pair.both)
            names = vsocktest.listed(client)
            lacked = LACKED.get(pair.kernel, ())
            wanted = {name: "skipped" if name in lacked else "ok" for name in names}
            assert len(names) >= 11
            assert vsocktest.outcomes(client, server, 600 * pair.slow, lacked) == wanted
            assert delta.of(server)["rx_bytes_tunnel"]
            assert not odd(delta.of(server))
    document = (REPO / "docs/tunnels.md").read_text()
    assert not [name for name in names if f"| {name} |" not in document]


@pytest.mark.slow_on("6.12")
@pytest.mark.kernel("6.1")
@pytest.mark.needs("hallway_tests.library:prepare")
def test_library(pair: Pair) -> None:
    """The library's examples carry messages by a tunnel, and by TCP where nothing listens at one."""
    pair.load()
    a, b = pair.both
    lines = library.lines()
    a.put("".join(f"{line}\n" for line in lines), "/tmp/sent")
    answer = f"{len(lines)} messages"
    with tunnels.tunnels(pair):
        for number, (listener, sender) in enumerate(library.PAIRS):
            port = 7500 + number
            by_tunnel, by_tcp = f"vsock://{b.name}:{port}", f"tcp://{b.ip4}:{port}"
            for carrier, at in ((f"vsock://{cid(b)}:{port}", port), (by_tcp, by_tcp)):
                words = f"{library.example(listener, '/hallway/library')} listen {at}"
                b.run(">/tmp/said")
                job = b.spawn(f"exec {words} >/tmp/got 2>/tmp/said")
                wait_for(lambda: "listening" in b.get("/tmp/said"), "it listens")
                delta = Delta(*pair.both)
                words = f"{library.example(sender, '/hallway/library')} send {by_tunnel},{by_tcp}"
                said = a.run(f"{words} </tmp/sent", timeout=60 * pair.slow)
                assert (said.out.strip(), said.err.strip()) == (answer, f"connected to {carrier}")
                assert not job.wait(60 * pair.slow).code
                moved = delta.of(a)["tx_bytes_tunnel"], delta.of(b)["tx_bytes_tunnel"]
                sizes = sum(map(len, lines)), len(answer)
                assert moved == (sizes if at == port else (0, 0)), (listener, sender, at)
                assert delta.of(b)["tunnel_refusals"] == (at != port)
                sums = [vm.run(f"sha256sum <{name}").out for vm, name in ((a, "/tmp/sent"), (b, "/tmp/got"))]
                assert sums[0] == sums[1], (listener, sender, at)
                tunnels.check(pair, delta)


@pytest.mark.slow_on("6.12")
def test_too_long(pair: Pair) -> None:
    """A packet that no ring holds gives EMSGSIZE; the longest one that one holds arrives."""
    pair.load()
    a, b = pair.both
    script = (
        "import errno, socket, sys; s = socket.socket(socket.AF_VSOCK, socket.SOCK_SEQPACKET);"
        " sys.path.append('/hallway/guest'); from tunnel import connect;"
        f" connect(s, {{cid}}, {PORT + 1}); s.send(b'echo'.ljust(16)); longest = (256 << 10) - 8\n"
        "try: s.send(bytes(longest + 1))\n"
        "except OSError as error: print(errno.errorcode[error.errno])\n"
        "s.send(bytes(longest)); total = 0\n"
        "print(s.recv(1 << 20) == bytes(60000))"
    )
    with tunnels.tunnels(pair), served(b):
        said = a.run("python3 -", stdin=script.format(cid=cid(b)), timeout=60 * pair.slow).out
    assert said.split() == ["EMSGSIZE", "True"]


@pytest.mark.slow_on("6.12")
def test_shorter(pair: Pair) -> None:
    """A packet that fits is sent, also after a longer one that did not."""
    pair.load()
    a, b = pair.both
    with tunnels.tunnels(pair):
        listener = Talk(b, "hear packet 7 1")
        assert listener.hear() == "ready"
        assert run(a, f"smaller {cid(b)} 7", 60 * pair.slow) == ["none", "EAGAIN", "none"]
        listener.end()


@pytest.mark.slow_on("6.12")
def test_refused(pair: Pair) -> None:
    """Without the module there, without a listener and over the backlog, connect() fails at once."""
    pair.load()
    a, b = pair.both
    tunnels.load(a)
    script = (
        "import errno, socket; s = socket.socket(socket.AF_VSOCK)\n"
        "try: s.connect(({cid}, 7))\n"
        "except OSError as error: print(errno.errorcode[error.errno])"
    )
    for where, error in ((cid(b), "ECONNRESET"), (0x7FFFFFFF, "EHOSTUNREACH")):
        said = a.run("python3 -", stdin=script.format(cid=where), timeout=60 * pair.slow).out
        assert said.strip() == error
    tunnels.unload(a)
    with tunnels.tunnels(pair):
        listener = Talk(b, "hear stream 7 1")
        assert listener.hear() == "ready"
        delta = Delta(*pair.both)
        caller = Talk(a, f"try stream {cid(b)} 7 4")
        assert json.loads(caller.hear()) == ["none", "none", "ECONNRESET", "ECONNRESET"]
        listener.say("accept")
        assert listener.hear() == "accepted"
        second = Talk(a, f"try stream {cid(b)} 7 2")
        assert json.loads(second.hear()) == ["none", "ECONNRESET"]
        assert delta.of(b)["tunnel_refusals"] == 3
        # What was not accepted ends with its listener.
        for program in (listener, caller, second):
            program.end()


@pytest.mark.slow
def test_listener_in_fault(pair: Pair) -> None:
    """A listener's lock is kept in a page fault: its many callers wait, and no others do."""
    pair.load()
    a, b = pair.both
    with tunnels.tunnels(pair), served(b):
        keeper = Talk(b, f"keep 7 {CALLERS}")
        assert keeper.hear() == "kept"
        callers = Talk(a, f"begin {cid(b)} 7 {CALLERS}")
        assert callers.hear() == "begun"
        delta = Delta(*pair.both)
        for kind in KINDS:
            said = run(a, f"echo {kind} {cid(b)} {PORT} 100000 2", 60 * pair.slow)
            assert not said["wrong"], said["wrong"]
        assert delta.of(b)["tunnel_arrivals"] == 4
        for program in (keeper, callers):
            program.say("on")
        assert [keeper.hear(), callers.hear()] == [str(CALLERS)] * 2
        assert delta.of(b)["tunnel_arrivals"] == 4 + CALLERS
        tunnels.check(pair, delta)
        callers.end()
        assert keeper.hear() == str(CALLERS)
        keeper.end()


@pytest.mark.slow
def test_shut_early(pair: Pair) -> None:
    """A program shuts down before its connect() is answered: the other end reads the end."""
    pair.load()
    a, b = pair.both
    with tunnels.tunnels(pair):
        keeper = Talk(b, "keep 7 1")
        assert keeper.hear() == "kept"
        caller = Talk(a, f"shut {cid(b)} 7")
        assert caller.hear() == "EINPROGRESS none"
        keeper.say("on")
        assert [keeper.hear(), keeper.hear()] == ["1", "1"]
        for program in (caller, keeper):
            program.end()


@pytest.mark.slow
def test_hang_ups(pair: Pair) -> None:
    """poll() for POLLRDHUP alone never misses the end, though it may find the end mark itself."""
    pair.load()
    with tunnels.tunnels(pair), served(pair.b):
        words = f"hangups {cid(pair.b)} {PORT} {HANG_UPS}"
        assert run(pair.a, words, 300 * pair.slow) == HANG_UPS


@pytest.mark.slow_on("6.12")
def test_idle(pair: Pair) -> None:
    """A thousand idle tunnels fit into 32 MiB of each VM, and one that sends much has a larger ring."""
    pair.load(memory_bytes=32 << 20)
    a, b = pair.both
    with tunnels.tunnels(pair), served(b):
        # With the first OFFER each VM says that it supports rings that grow.
        first = run(a, f"echo stream {cid(b)} {PORT} 100 1", 60 * pair.slow)
        assert not first["wrong"]
        listener = Talk(b, "hear stream 7 1000")
        assert listener.hear() == "ready"
        delta = Delta(a, b)
        idle = Talk(a, f"try stream {cid(b)} 7 1000")
        assert json.loads(idle.hear(60 * pair.slow)) == ["none"] * 1000
        assert not any(delta.of(vm)["rings_grown"] for vm in (a, b))
        for kind in KINDS:
            busy = run(a, f"echo {kind} {cid(b)} {PORT} 2000000 1", 60 * pair.slow)
            assert not busy["wrong"], busy["wrong"]
            # A packet's largest size is that of the ring: it has it from the first.
            assert [delta.of(vm)["rings_grown"] for vm in (a, b)] == [1, 1], kind
        idle.end()
        listener.end()


@pytest.mark.slow_on("6.12")
def test_bounded(pair: Pair) -> None:
    """`tunnels_max` bounds the tunnels of two VMs."""
    pair.load()
    a, b = pair.both
    with tunnels.tunnels(pair, tunnels_max=3):
        listener = Talk(b, "hear packet 7 100")
        assert listener.hear() == "ready"
        caller = Talk(a, f"try packet {cid(b)} 7 5")
        assert json.loads(caller.hear()) == ["none"] * 3 + ["EUSERS"] * 2
        caller.end()
        # Closed on both sides, they are gone.
        for _ in range(3):
            listener.say("accept")
            assert listener.hear() == "accepted"
            listener.say("close")
            assert listener.hear() == "closed"

        def connects() -> bool:
            again = Talk(a, f"try packet {cid(b)} 7 1")
            found = json.loads(again.hear())
            again.end()
            return found == ["none"]

        wait_for(connects, "there is room again")
        listener.end()


def test_refused_are_gone(pair: Pair) -> None:
    """A socket that was refused is no tunnel: any number of these leave room for others."""
    pair.load()
    a, b = pair.both
    with tunnels.tunnels(pair, tunnels_max=3), served(b):
        refused = Talk(a, f"try packet {cid(b)} 9 40")
        assert json.loads(refused.hear()) == ["ECONNRESET"] * 40
        said = run(a, f"echo packet {cid(b)} {PORT} 100000 2", 60 * pair.slow)
        assert not said["wrong"], said["wrong"]
        refused.end()


@pytest.mark.slow_on("6.12")
@pytest.mark.parametrize("kind", ["stream", pytest.param("packet", marks=pytest.mark.slow)])
def test_peer_killed(pair: Pair, kind: str) -> None:
    """A peer is killed: what it sent is read, then ECONNRESET; the listener stays."""
    pair.load()
    a, b = pair.both
    with tunnels.tunnels(pair):
        third = pair.third()
        with pair.site.join(third):
            insmod(third)
            wait_members(a, b, third)
            tunnels.load(third)
            listener = Talk(a, f"hear {kind} 7 10")
            assert listener.hear() == "ready"
            caller = Talk(third, f"tell {kind} {cid(a)} 7 {KILLED_BYTES}")
            assert caller.hear() == "sent"
            listener.say("accept")
            assert listener.hear() == "accepted"
            delta = Delta(a)
            third.stop()
        wait_for(
            lambda: delta.of(a)["tunnel_resets"] == 1,
            "the death is noticed",
            30 * pair.slow,
        )
        listener.say("read")
        assert listener.hear() == f"{KILLED_BYTES} ECONNRESET"
        caller = Talk(b, f"tell {kind} {cid(a)} 7 1000")
        assert caller.hear() == "sent"
        listener.say("accept")
        assert listener.hear() == "accepted"
        caller.end()
        listener.say("read")
        assert listener.hear() == "1000 end"
        assert not odd(delta.of(a))
        listener.end()


@pytest.mark.slow_on("6.12")
@pytest.mark.parametrize("length", [0xFFFFFFF0, pytest.param(0, marks=pytest.mark.slow)])
def test_corrupt_frame(pair: Pair, length: int) -> None:
    """A frame that can not be resets its tunnel, is counted, and harms no other."""
    pair.load()
    a, b = pair.both
    with tunnels.tunnels(pair), served(b):
        listener = Talk(b, "hear packet 7 10")
        assert listener.hear() == "ready"
        caller = Talk(a, f"tell packet {cid(b)} 7 8")
        assert caller.hear() == "sent"
        listener.say("accept")
        assert listener.hear() == "accepted"
        delta = Delta(*pair.both)
        assert _overwrite_frames(pair.site.daemon.region.path, length) >= 1
        listener.say("read")
        assert listener.hear() == "0 ECONNRESET"
        assert delta.of(b)["corrupt_rings"] == 1
        wait_for(lambda: delta.of(a)["tunnel_resets"] == 1, "the other end is reset, too")
        said = run(a, f"echo packet {cid(b)} {PORT} 100000 2", 60 * pair.slow)
        assert not said["wrong"], said["wrong"]
        caller.end()
        listener.end()


@pytest.mark.slow_on("6.12")
def test_corrupt_frame_of_departed(pair: Pair) -> None:
    """A frame that can not be ends with ECONNRESET, also where its sender has departed, and not as an end."""
    pair.load()
    a, b = pair.both
    tunnels.load(a)
    tunnels.load(b)
    listener = Talk(a, "hear packet 7 10")
    assert listener.hear() == "ready"
    caller = Talk(b, f"tell packet {cid(a)} 7 8")
    assert caller.hear() == "sent"
    listener.say("accept")
    assert listener.hear() == "accepted"
    delta = Delta(a)
    assert _overwrite_frames(pair.site.daemon.region.path, 0xFFFFFFF0) >= 1
    plain = pair.site.daemon.region
    b.unplug(plain.id, 30 * pair.slow)
    wait_for(lambda: delta.of(a)["tunnel_resets"] == 1, "the other end is reset", 30 * pair.slow)
    listener.say("read")
    assert listener.hear() == "0 ECONNRESET"
    b.plug(plain)
    wait_members(a, b)
    for program in (caller, listener):
        program.end()
    tunnels.unload(a, b)


def _overwrite_frames(region: Path, length: int) -> int:
    """Give the messages that are the needle another length; return how many there are."""
    found = 0
    with open(region, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        frame = (8).to_bytes(8, "little") + b"needle!!"
        at = memory.find(frame)
        while at >= 0:
            memory[at : at + 4] = length.to_bytes(4, "little")
            found += 1
            at = memory.find(frame, at + 1)
    return found


@pytest.mark.xen
@pytest.mark.slow_on("6.1")
def test_unloading(pair: Pair) -> None:
    """The module stays while a tunnel is open, and goes when it is closed; hallway.ko does without it."""
    pair.load()
    a, b = pair.both
    with tunnels.tunnels(pair):
        listener = Talk(b, "hear stream 7 10")
        assert listener.hear() == "ready"
        caller = Talk(a, f"tell stream {cid(b)} 7 10000")
        assert caller.hear() == "sent"
        for vm in pair.both:
            said = vm.run("rmmod hallway_vsock", check=False)
            assert said.code and "in use" in said.err, said
        caller.end()
        listener.end()
    for vm in pair.both:
        assert not tunnels.loaded(vm)
        assert loaded(vm)
        rmmod(vm)


# One datagram, and what came of it.
DATAGRAM = """
import errno, socket
sock = socket.socket(socket.AF_VSOCK, socket.SOCK_DGRAM)
sock.settimeout(60)
try:
    sent = sock.sendto(b"datagram", ({cid}, 9))
    # The server exits when its sendto() fails, so the socket stays open until the echo is here.
    assert sock.recv(9) == b"datagram"
    print(sent)
except OSError as error:
    print(errno.errorcode[error.errno])
"""


@pytest.mark.slow_on("6.1")
def test_switched_off(pair: Pair) -> None:
    """Off, the open tunnels are reset, none begins, and the module can be unloaded; on, all is as before."""
    pair.load()
    a, b = pair.both
    with tunnels.tunnels(pair):
        server = Talk(b, "echo 9", tunnels.DATAGRAMS)
        assert server.hear() == "ready"
        assert a.run("python3 -", stdin=DATAGRAM.format(cid=cid(b))).out.strip() == "8"
        listeners = {vm: Talk(vm, f"hear {kind} 7 10") for vm, kind in ((a, "stream"), (b, "packet"))}
        assert all(one.hear() == "ready" for one in listeners.values())
        callers = [Talk(a, f"tell packet {cid(b)} 7 5000"), Talk(b, f"tell stream {cid(a)} 7 5000")]
        assert all(one.hear() == "sent" for one in callers)
        for one in listeners.values():
            one.say("accept")
            assert one.hear() == "accepted"
        delta = Delta(*pair.both)
        assert "tunnels are off" in a.run("hallway tunnels off").out
        for vm in pair.both:
            wait_for(lambda: delta.of(vm)["tunnel_resets"] == 2, f"{vm.name}: both are reset")  # noqa: B023
        # What is reset here is gone; the other end reads what it has first.
        for vm, bytes_read in ((a, 0), (b, 5000)):
            listeners[vm].say("read")
            assert listeners[vm].hear() == f"{bytes_read} ECONNRESET"
        for vm, other, error in ((a, b, "ENODEV"), (b, a, "ECONNRESET")):
            kind = "packet" if other is b else "stream"
            call = Talk(vm, f"try {kind} {cid(other)} 7 1")
            assert json.loads(call.hear()) == [error]
            callers.append(call)
        for to in (cid(b), MULTICAST):
            assert a.run("python3 -", stdin=DATAGRAM.format(cid=to)).out.strip() == "ENODEV"
        assert not odd(delta.of(a)) and not odd(delta.of(b))
        for program in (*callers, listeners[a]):
            program.end()
        tunnels.unload(a)
        said = a.run("hallway tunnels on", check=False)
        assert said.code == 1 and "hallway_vsock is not loaded" in said.err, said
        tunnels.load(a, enabled=0)
        assert "tunnels are off" in a.run("hallway tunnels").out
        a.run("hallway tunnels on")
        assert "tunnels are off" not in a.run("hallway tunnels").out
        again = Talk(a, f"tell packet {cid(b)} 7 3000")
        assert again.hear() == "sent"
        assert a.run("python3 -", stdin=DATAGRAM.format(cid=cid(b))).out.strip() == "8"
        for program in (again, listeners[b], server):
            program.end()


@pytest.mark.slow_on("6.1")
@pytest.mark.parametrize("kind", KINDS)
def test_half_closed_switched_off(pair: Pair, kind: str) -> None:
    """A reset reaches peers that read or poll, after what they have received, though they send no more."""
    pair.load()
    a, b = pair.both
    with tunnels.tunnels(pair):
        listener = Talk(a, f"hear {kind} 7 10")
        assert listener.hear() == "ready"
        callers = []
        for written in (0, 3000):
            caller = Talk(b, f"half {kind} {cid(a)} 7")
            assert caller.hear() == "shut"
            callers.append(caller)
            for word, answer in (("accept", "accepted"), ("read", "0 end"), (f"write {written}", "written")):
                listener.say(word)
                assert listener.hear() == answer
        asleep, polls = callers
        asleep.say("read")
        polls.say("poll")
        delta = Delta(a, b)
        a.run("hallway tunnels off")
        assert asleep.hear() == "0 ECONNRESET"
        assert "POLLRDHUP" in polls.hear()
        polls.say("read")
        assert polls.hear() == "3000 ECONNRESET"
        assert [delta.of(vm)["tunnel_resets"] for vm in pair.both] == [2, 2]
        assert not odd(delta.of(a)) and not odd(delta.of(b))
        for program in (listener, *callers):
            program.end()
        tunnels.unload(a)


def _count_tunnels(vm: VM) -> int:
    return sum(one["tunnels"] for one in json.loads(vm.run("hallway tunnels --json").out)["vms"])


@pytest.mark.xen
@pytest.mark.slow_on("6.12")
@pytest.mark.parametrize("kind", ["stream", pytest.param("packet", marks=pytest.mark.slow)])
def test_silent_peer(pair: Pair, kind: str) -> None:
    """connect() to a VM that stands still gives ETIMEDOUT when its time is over; later ones succeed."""
    pair.load()
    a, b = pair.both
    with tunnels.tunnels(pair), served(b):
        number, port = cid(b), PORT + KINDS.index(kind)
        with b.paused():
            call = Talk(a, f"try {kind} {number} {port} 2 0")
            assert json.loads(call.hear()) == ["ETIMEDOUT"] * 2
            patient = Talk(a, f"try {kind} {number} {port} 1 {OWN_TIMEOUT}")
            assert json.loads(patient.hear()) == ["ETIMEDOUT"]
        call.end()
        patient.end()
        delta = Delta(a)
        call = Talk(a, f"try {kind} {number} {port} 1")
        assert json.loads(call.hear()) == ["none"]
        assert delta.of(a)["tunnel_connections"] == 1
        call.end()
        # Nothing is left of those that nobody waits for.
        wait_for(lambda: _count_tunnels(a) == _count_tunnels(b) == 0, "no tunnel is left")


@pytest.mark.slow_on("6.12")
def test_region_unplugged(pair: Pair) -> None:
    """A VM leaves its region: tunnels are reset, and come back with it."""
    pair.load()
    a, b = pair.both
    tunnels.load(a)
    listener = Talk(a, "hear packet 7 10")
    assert listener.hear() == "ready"
    tunnels.load(b)
    caller = Talk(b, f"tell packet {cid(a)} 7 5000")
    assert caller.hear() == "sent"
    listener.say("accept")
    assert listener.hear() == "accepted"
    delta = Delta(*pair.both)
    plain = pair.site.daemon.region
    b.unplug(plain.id, 30 * pair.slow)
    wait_for(
        lambda: delta.of(a)["tunnel_resets"] == 1,
        "the other end is reset",
        30 * pair.slow,
    )
    listener.say("read")
    assert listener.hear() == "5000 ECONNRESET"
    b.plug(plain)
    wait_members(a, b)
    again = Talk(b, f"tell packet {cid(a)} 7 3000")
    assert again.hear() == "sent"
    for program in (caller, again, listener):
        program.end()
    tunnels.unload(a, b)


@pytest.mark.slow_on("6.12")
@pytest.mark.parametrize("first", [pytest.param("virtio", marks=pytest.mark.slow), "hallway"])
def test_beside_virtio(pair: Pair, first: str) -> None:
    """Beside virtio-vsock, in both orders of loading: the host's CID stays virtio's."""
    pair.load()
    a, b = pair.both
    virtio = "modprobe vmw_vsock_virtio_transport"
    if first == "virtio":
        tunnels.load(a, prepare=virtio)
    else:
        tunnels.load(a)
        a.run(virtio)
    tunnels.load(b)
    with served(b):
        said = run(a, f"echo packet {cid(b)} {PORT} 100000 2", 60 * pair.slow)
        assert not said["wrong"], said["wrong"]
        delta = Delta(*pair.both)
        host = Talk(a, "try stream 2 7 1")
        assert json.loads(host.hear()) != ["none"]
        assert not delta.of(a)["tunnel_calls"]
        host.end()
    tunnels.unload(a, b)
    a.run("rmmod vmw_vsock_virtio_transport")


def test_cids(pair: Pair) -> None:
    """Each VM knows the CIDs of all, and the programs of the kernel do."""
    pair.load()
    a, b = pair.both
    with tunnels.tunnels(pair):
        known: list[dict[str, Any]] = []
        for vm in pair.both:
            shown = json.loads(vm.run("hallway tunnels --json").out)
            assert shown["loaded"]
            known.append({one["uuid"]: one["cid"] for one in shown["vms"]})
            assert _local_cid(vm) == cid(vm) == known[-1][vm.uuid]
        assert known[0] == known[1]
        # hallwayd's own slot has none: it would never answer.
        assert [one["cid"] for one in status(a)["members"] if one["host"]] == [0]
        assert str(cid(b)) in a.run("hallway tunnels").out


def _local_cid(vm: VM) -> int:
    script = (
        "import fcntl, struct; print(struct.unpack('I', fcntl.ioctl(open('/dev/vsock'), 0x7b9, bytes(4)))[0])"
    )
    return int(vm.run("python3 -", stdin=script).out)
