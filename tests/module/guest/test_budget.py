"""Ring memory is a budget: what a connection gets of it, and when it gives it back."""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import threading
import time

import pytest
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

IDLE, NO_MEMORY = 27, 4  # of abi/hallway/reason.h
NEVER = 2**31 - 1
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
    """A connection that sends nothing gives its rings back, and gets new ones when it is in use again."""
    delta = Delta()
    with pair() as (a, b):
        sent = fill(a)
        with parameter("idle_ms", 100):
            wait_for(lambda: not on_ring(a, b), "both rings were given back")
        assert take(b, len(sent)) == sent, "other bytes came than were sent"
        moved = delta()
        assert moved["rings_idle"] == 2, f"{moved['rings_idle']} rings were given back, not 2"
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


def test_budget_grows():
    """A writer that keeps filling a small ring gets one of ring_bytes, once, and no byte is lost."""
    delta = Delta()
    data = pattern(1 << 16)
    with pair() as (a, b), parameter("ring_bytes", 16 * SMALL):
        last = threading.Event()
        written = 0

        def drain():
            got = 0
            while not last.is_set() or got < written:
                piece = b.recv(1 << 16)
                place = got % len(data)
                assert piece == (data * 2)[place:][: len(piece)] != b"", "other bytes came than were sent"
                got += len(piece)

        def write(end=False):
            nonlocal written
            written += len(data)
            if end:
                last.set()
            a.sendall(data)

        def grown():
            write()
            return delta()["rings_grown"] and on_ring(a)

        reader = Sleeper(drain)
        wait_for(grown, "the ring grew")
        write(end=True)
        reader.result()
        sent = fill(a)
        assert len(sent) == 16 * SMALL, f"the ring holds {len(sent)} bytes"
        assert take(b, len(sent)) == sent, "other bytes came than were sent"
        assert delta()["rings_grown"] == 1, f"it grew {delta()['rings_grown']} times"
    delta.expect(tx_bytes_ring=SMALL)


def test_budget_slow_reader():
    """A ring that is full because nobody reads does not grow."""
    delta = Delta()
    with pair() as (a, b), parameter("ring_bytes", 16 * SMALL):
        sent = fill(a)
        assert len(sent) == SMALL, f"the ring holds {len(sent)} bytes"
        until = time.monotonic() + 1.5  # past the second in which no ring grows
        while time.monotonic() < until:
            with contextlib.suppress(BlockingIOError):
                a.send(b"x", socket.MSG_DONTWAIT)
                pytest.fail("more fits into it")
        assert take(b, len(sent)) == sent, "other bytes came than were sent"
    moved = delta()
    assert not moved["rings_grown"], "it grew"


def test_budget_refused():
    """Without memory a connection stays on TCP, says why, and gets a ring once another gave its own back."""
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
        assert delta()["rings_idle"] >= 1, "nobody gave a ring back"


def test_budget_wanted():
    """While memory is wanted a ring goes back soon, with bytes in it, which come in order."""
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


def test_budget_shrinks():
    """A late connection gets a small ring; while memory is wanted large ones that don't fill become small."""
    with (
        loaded(memory_bytes=room_for(SHARE, 4 * SMALL), ring_bytes=4 * SMALL, pause_ms=NEVER),
        contextlib.ExitStack() as stack,
    ):
        delta = Delta()
        a, b = (stack.enter_context(sock) for sock in connect())

        def one_write(source, sink, count):
            source.sendall(pattern(count))
            assert take(sink, count) == pattern(count), "other bytes came than were sent"
            return on_ring(source)

        wait_for(lambda: one_write(a, b, 1), "the first one has a ring")
        sent = fill(a)
        assert take(b, len(sent)) == sent, "other bytes came than were sent"
        assert len(sent) == 4 * SMALL, f"the ring holds {len(sent)} bytes, though there was memory"
        refused = False
        while not refused:
            c, d = (stack.enter_context(sock) for sock in connect())
            wait_for(lambda: one_write(c, d, 1) or reasons(c) == {NO_MEMORY}, "a ring, or none left")  # noqa: B023
            refused = not on_ring(c)
        wait_for(
            lambda: one_write(c, d, 1) | one_write(a, b, 1) and on_ring(c), "the last one has a ring, too"
        )
        assert delta()["rings_shrunk"] == 1, f"{delta()['rings_shrunk']} rings shrank"
        # That was seen, so what it sends now is in the ring that came after.
        wait_for(lambda: one_write(a, b, 1), "the one that shrank has a ring, too")
        sent = fill(a)
        assert take(b, len(sent)) == sent, "other bytes came than were sent"
        assert len(sent) == SMALL, f"the ring holds {len(sent)} bytes now"
