# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Ring memory is a budget: what a connection gets of it, and when it is demoted."""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess

import pytest
from native import Unpaged
from pairs import (
    PARAMS,
    Delta,
    Sleeper,
    connect,
    fill,
    insmod,
    pair,
    pattern,
    promote,
    rmmod,
    setting,
    shown,
    take,
    wait_for,
)

pytestmark = pytest.mark.slow_on("6.1")

IDLE, NO_MEMORY = 27, 4  # of abi/hallway/reason.h
NEVER = 2**31 - 1
LARGE = 4 << 20  # bytes that a ring grows to by default
SMALL = 16384  # bytes of the smallest ring, while memory is short
HEADER = 4096
SHARE = 8  # a peer holds at most this many times what it leaves free


def parameter(name, value):
    """A parameter of the module has another value in the block."""
    return setting(f"/sys/module/hallway/parameters/{name}", value)


@contextlib.contextmanager
def loaded(**params):
    """The module runs with other parameters in the block."""
    rmmod()
    words = [f"{name}={value}" for name, value in params.items()]
    given = [word for word in PARAMS if word.split("=")[0] not in params]
    subprocess.run(["insmod", "/hallway/hallway.ko", *given, *words], check=True)
    try:
        yield
    finally:
        rmmod()
        insmod()


def room_for(rings, size=SMALL):
    """Return how much ring memory gives one peer this number of rings."""
    return rings * (size + HEADER) * (SHARE + 1) // SHARE + HEADER


def on_ring(*socks):
    """Tell how many of these sockets send by ring."""
    return sum(c["tx"]["carrier"] % 2 for c in shown(*socks))


def reasons(*socks):
    """Return why these sockets are not on rings."""
    return {c["reason"] for c in shown(*socks)}


def test_budget_idle():
    """A connection that sends nothing is demoted, and gets new rings when it is in use again."""
    delta = Delta()
    with pair() as (a, b):
        sent = fill(a)
        with parameter("idle_ms", 100):
            wait_for(lambda: not on_ring(a, b), "both directions were demoted")
        assert take(b, len(sent)) == sent, "other bytes came than were sent"
        moved = delta()
        assert moved["rings_idle"] == 2, f"{moved['rings_idle']} directions were demoted, not 2"
        assert reasons(a, b) == {IDLE}, f"the reasons are {reasons(a, b)}"
        promote(a, b)
        data = pattern(5000)
        a.sendall(data)
        assert take(b, 5000) == data, "other bytes came than were sent"
    delta.expect(tx_promoted=4, rx_demoted=2, rx_bytes_requeued=SMALL)


def test_budget_pauses():
    """Sends that are further apart than pause_ms don't add up to a ring; those of one use do."""
    a, b = connect()
    with a, b, parameter("promote_ms", NEVER), parameter("promote_bytes", 3000):
        for _ in range(4):
            a.sendall(pattern(1000))
            take(b, 1000)
            select.select([b], [], [], 0.15)
            with parameter("pause_ms", 100):
                a.sendall(b"x")
                take(b, 1)
        assert not on_ring(a), "bytes before a pause earned a ring"
        with parameter("pause_ms", NEVER):

            def promoted():
                a.sendall(pattern(1000))
                take(b, 1000)
                return on_ring(a)

            wait_for(promoted, "bytes without a pause earn a ring")


def on_full(a, b):
    """Fill the ring twice, and read all: enough for a ring to grow that may."""
    sent = fill(a)
    assert take(b, len(sent) // 2) == sent[: len(sent) // 2], "other bytes came than were sent"
    sent = sent[len(sent) // 2 :] + fill(a)
    assert take(b, len(sent)) == sent, "other bytes came than were sent"


def ring_holds(a, b):
    """Return how many bytes fit into the ring of a, once it has one."""
    wait_for(lambda: one_write(a, b), "it has a ring")
    sent = fill(a)
    assert take(b, len(sent)) == sent, "other bytes came than were sent"
    return len(sent)


def one_write(a, b):
    """Send and receive a byte; tell whether a sends by ring."""
    a.sendall(b"x")
    assert take(b, 1) == b"x", "another byte came than was sent"
    return on_ring(a)


def test_budget_grows():
    """A ring that its writer keeps filling grows to ring_bytes_max, at once, and no byte is lost."""
    delta = Delta()
    with pair() as (a, b), parameter("ring_bytes_max", LARGE):
        sent = fill(a)
        assert len(sent) == SMALL, f"the first ring holds {len(sent)} bytes"
        assert not delta()["rings_grown"], "it grew when it was full for the first time"
        assert take(b, SMALL // 2) == sent[: SMALL // 2], "other bytes came than were sent"
        sent = sent[SMALL // 2 :] + fill(a)
        assert delta()["rings_grown"] == 1, f"it grew {delta()['rings_grown']} times"
        assert take(b, len(sent)) == sent, "other bytes came than were sent"
        holds = ring_holds(a, b)
        assert holds == LARGE, f"the next ring holds {holds} bytes"
        on_full(a, b)
        assert delta()["rings_grown"] == 1, f"it grew {delta()['rings_grown']} times"
    delta.expect(tx_bytes_ring=2 * LARGE)


def test_budget_replaces():
    """Bytes wait while a ring is replaced: none goes over TCP between the two."""
    data = pattern(LARGE)

    def replaced():
        with pair() as (a, b):
            delta = Delta()
            writer = Sleeper(a.sendall, data)
            assert take(b, len(data)) == data, "other bytes came than were sent"
            writer.result()
            moved = delta()
            assert moved["rings_grown"] == 1, f"it grew {moved['rings_grown']} times"
            return not moved["tx_bytes_tcp"]

    with parameter("ring_bytes_max", LARGE):
        wait_for(replaced, "a ring is replaced in time")


def test_budget_replaces_late():
    """They do not wait for long: where the peer does not answer they go over TCP."""
    with pair() as (a, b), parameter("ring_bytes_max", LARGE):
        sent = fill(a)
        assert take(b, SMALL // 2) == sent[: SMALL // 2], "other bytes came than were sent"
        with contextlib.closing(Unpaged()) as memory:
            stuck = Sleeper(memory.send, b, 100).asleep("send")
            delta = Delta()
            a.sendall(pattern(SMALL))
            moved = delta()
            assert moved["rings_grown"] == 1, f"it grew {moved['rings_grown']} times"
            assert moved["tx_bytes_tcp"] == SMALL // 2, f"{moved['tx_bytes_tcp']} bytes went over TCP"
        sent = sent[SMALL // 2 :] + pattern(SMALL)
        assert take(b, len(sent)) == sent, "other bytes came than were sent"
        assert stuck.result() == 100, "send() returned another count"
        assert take(a, 100) == bytes(100), "other bytes came than were sent"


def test_budget_half_closed():
    """A ring does not grow once the peer has shut down: it would accept no other."""
    delta = Delta()
    with pair() as (a, b), parameter("ring_bytes_max", LARGE):
        b.shutdown(socket.SHUT_WR)
        assert a.recv(1) == b"", "no end of the stream"
        on_full(a, b)
        assert on_ring(a), "it is on TCP"
    assert not delta()["rings_grown"], "it grew"


def test_budget_slow_reader():
    """A ring that is full because nobody reads does not grow."""
    delta = Delta()
    with pair() as (a, b), parameter("ring_bytes_max", LARGE):
        sent = fill(a)
        assert len(sent) == SMALL, f"the ring holds {len(sent)} bytes"
        for _ in range(100):
            with contextlib.suppress(BlockingIOError):
                a.send(b"x", socket.MSG_DONTWAIT)
                pytest.fail("more fits into it")
        assert take(b, len(sent)) == sent, "other bytes came than were sent"
    moved = delta()
    assert not moved["rings_grown"], "it grew"


def connect_until_refused(stack, meanwhile=lambda: None):
    """Return connections that have all the memory; the last one found none."""
    found = []
    while not found or on_ring(found[-1][0]):
        meanwhile()
        a, b = (stack.enter_context(sock) for sock in connect())
        wait_for(lambda: one_write(a, b) or reasons(a) == {NO_MEMORY}, "a ring, or none left")  # noqa: B023
        found.append((a, b))
    return found


def test_budget_wants_back():
    """While a connection finds no ring, one that grew shrinks to ring_bytes, full or not; it grows again."""
    with (
        loaded(memory_bytes=room_for(SHARE + 1, 4 * SMALL), ring_bytes_max=4 * SMALL, pause_ms=NEVER),
        contextlib.ExitStack() as stack,
    ):
        a, b = (stack.enter_context(sock) for sock in connect())
        delta = Delta()
        wait_for(lambda: one_write(a, b), "the first one has a ring")
        on_full(a, b)
        assert delta()["rings_grown"] == 1, f"it grew {delta()['rings_grown']} times"
        wait_for(lambda: one_write(a, b), "it has a large ring")
        sent = fill(a)
        assert len(sent) == 4 * SMALL, f"the ring holds {len(sent)} bytes"

        def refill():
            """Read half of what is there, and fill the ring again: it is of use."""
            nonlocal sent
            half = len(sent) // 2
            assert take(b, half) == sent[:half], "other bytes came than were sent"
            sent = sent[half:] + fill(a)

        with contextlib.ExitStack() as crowd:
            c, d = connect_until_refused(crowd, refill)[-1]
            wait_for(lambda: refill() or one_write(c, d), "the last one has a ring, too")
            assert delta()["rings_shrunk"] == 1, f"{delta()['rings_shrunk']} rings shrank"
            assert take(b, len(sent)) == sent, "other bytes came than were sent"
            holds = ring_holds(a, b)
            assert holds == SMALL, f"the ring holds {holds} bytes now"
        wait_for(lambda: on_full(a, b) or delta()["rings_grown"] == 2, "it grew again")


def test_budget_refused():
    """Without memory a connection stays on TCP, says why, and gets a ring once another is demoted."""
    with loaded(memory_bytes=room_for(4), pause_ms=NEVER), contextlib.ExitStack() as stack:
        delta = Delta()
        holders = [stack.enter_context(pair()) for _ in range(2)]
        a, b = (stack.enter_context(sock) for sock in connect())
        for _ in range(500):
            a.sendall(b"please")
            assert take(b, 6) == b"please", "other bytes came than were sent"
        assert reasons(a) == {NO_MEMORY}, f"the reasons are {reasons(a)}"
        refused = delta()["rings_refused"]
        assert 0 < refused < 50, f"it asked {refused} times in 500 sends"
        assert on_ring(*(end for ends in holders for end in ends)) == 4, "the others lost their rings"
        # An idle ring goes to a connection that wants memory, and to no other.
        with parameter("pause_ms", 300):

            def promoted():
                a.sendall(b"please")
                assert take(b, 6) == b"please", "other bytes came than were sent"
                return on_ring(a)

            wait_for(promoted, "it got a ring when others were idle")
        assert delta()["rings_idle"] >= 1, "no direction was demoted"


def test_budget_wanted():
    """While memory is wanted a direction is demoted soon, with bytes in its ring, which come in order."""
    with loaded(memory_bytes=room_for(2), pause_ms=300), contextlib.ExitStack() as stack:
        delta = Delta()
        a, b = stack.enter_context(pair())
        sent = fill(a)
        c, d = (stack.enter_context(sock) for sock in connect())

        def promoted():
            c.sendall(b"please")
            assert take(d, 6) == b"please", "other bytes came than were sent"
            return on_ring(c) and not on_ring(a)

        wait_for(promoted, "the ring of a connection that does not read went to another")
        assert take(b, len(sent)) == sent, "other bytes came than were sent"
        assert delta()["rx_bytes_requeued"] >= len(sent), "they were not in the ring"


@contextlib.contextmanager
def large_ring():
    """A connection has a ring of 4 * SMALL, where few find memory for such."""
    with loaded(memory_bytes=room_for(SHARE, 4 * SMALL), ring_bytes=4 * SMALL, pause_ms=NEVER):
        a, b = connect()
        with a, b:
            wait_for(lambda: one_write(a, b), "the first one has a ring")
            yield a, b


def test_budget_shrinks():
    """A late connection gets a small ring; while memory is wanted large ones that don't fill become small."""
    with large_ring() as (a, b), contextlib.ExitStack() as stack:
        delta = Delta()
        sent = fill(a)
        assert take(b, len(sent)) == sent, "other bytes came than were sent"
        assert len(sent) == 4 * SMALL, f"the ring holds {len(sent)} bytes, though there was memory"
        c, d = connect_until_refused(stack)[-1]
        wait_for(lambda: one_write(c, d) | one_write(a, b) and on_ring(c), "the last one has a ring, too")
        assert delta()["rings_shrunk"] == 1, f"{delta()['rings_shrunk']} rings shrank"
        # That was seen, so what it sends now is the ring that came after.
        wait_for(lambda: one_write(a, b), "the one that shrank has a ring, too")
        sent = fill(a)
        assert take(b, len(sent)) == sent, "other bytes came than were sent"
        assert len(sent) == SMALL, f"the ring holds {len(sent)} bytes now"


def test_budget_shrinks_with_space():
    """While a ring shrinks no program that does not wait finds a full buffer: there was space before."""
    with large_ring() as (a, b), contextlib.ExitStack() as stack:
        delta = Delta()
        c, d = connect_until_refused(stack)[-1]
        sent = 0
        # The peer can't take another ring meanwhile.
        with contextlib.closing(Unpaged()) as memory:
            stuck = Sleeper(memory.send, b, 100).asleep("send")

            def shrunk():
                nonlocal sent
                one_write(c, d)
                sent += a.send(b"x", socket.MSG_DONTWAIT)
                return delta()["rings_shrunk"] and not on_ring(a)

            wait_for(shrunk, "its ring has shrunk")
            sent += a.send(bytes(1000), socket.MSG_DONTWAIT)
        assert stuck.result() == 100, "send() returned another count"
        assert take(b, sent) == b"x" * (sent - 1000) + bytes(1000), "other bytes came than were sent"
        assert take(a, 100) == bytes(100), "other bytes came than were sent"


def test_budget_begins_small():
    """While memory is wanted a ring begins small, though others left much of it; a later one does not."""
    large = 4 * SMALL
    with (
        # Half of it is enough for a large one: rings are freed a moment after they are closed.
        loaded(memory_bytes=room_for(2 * SHARE, large), ring_bytes=large, pause_ms=NEVER),
        contextlib.ExitStack() as stack,
    ):
        *others, last = connect_until_refused(stack)
        for sock in (sock for ends in others for sock in ends):
            sock.close()
        holds = ring_holds(*last)
        assert holds == SMALL, f"the ring holds {holds} bytes, while memory is wanted"
        stack.close()

        def begins_large():
            with contextlib.ExitStack() as ends:
                return ring_holds(*(ends.enter_context(sock) for sock in connect())) == large

        wait_for(begins_large, "it is wanted no more")


def test_budget_small_once():
    """A ring that shrank is no reason for a small one later: its reader may wait for more than it holds."""
    with large_ring() as (a, b):
        b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, SMALL)
        with contextlib.ExitStack() as stack:
            delta = Delta()
            c, d = connect_until_refused(stack)[-1]
            wait_for(lambda: one_write(c, d) | one_write(a, b) and delta()["rings_shrunk"], "it has shrunk")
        wait_for(lambda: one_write(a, b), "it has a ring that holds as much")
