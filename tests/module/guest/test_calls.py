# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a program sees of a connection on rings: the same as of TCP."""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import os
import select
import socket
import struct
import termios
import time

import pytest
from native import Unpaged
from pairs import (
    KINDS,
    PATIENCE,
    RING,
    Delta,
    Sleeper,
    connect,
    fill,
    pair,
    pattern,
    promote,
    setting,
    shown,
    take,
    wait_for,
    waits_for_lock,
)

SO_SNDBUFFORCE = 32
MUCH = 512 << 10
NEVER = 2**31 - 1  # bytes, and milliseconds, that no connection here reaches


@pytest.mark.parametrize("kind", KINDS)
def test_integrity(kind):
    """Many rings' worth of bytes come out as they went in, both ways at once."""
    delta = Delta()
    with pair(kind) as (a, b):
        there, back = pattern(RING * 20), pattern(RING * 20, 4000)
        jobs = [Sleeper(a.sendall, there), Sleeper(b.sendall, back), Sleeper(take, a, len(back))]
        assert take(b, len(there)) == there, "other bytes came than were sent"
        assert jobs[2].result() == back, "other bytes came back than were sent"
        for job in jobs:
            job.result()
    delta.expect(
        tx_promoted=2,
        rx_promoted=2,
        tx_bytes_ring=2 * len(there),
        rx_bytes_ring=2 * len(there),
        ring_wraps=30,
    )
    moved = delta()
    assert moved["tx_bytes_ring"] == moved["rx_bytes_ring"], f"bytes stayed in rings: {moved}"


@pytest.mark.parametrize("carrier", ["ring", "tcp"])
def test_small_calls_wait(carrier):
    """Small calls wait while a thread has the socket's lock, and faults: its bytes come first."""
    with contextlib.ExitStack() as stack:
        if carrier == "ring":
            a, b = stack.enter_context(pair())
        else:
            for name in ("bytes", "ms"):
                stack.enter_context(setting(f"/sys/module/hallway/parameters/promote_{name}", NEVER))
            a, b = map(stack.enter_context, connect())
        # A call of each kind has shown that no other one is inside.
        for source, sink in ((a, b), (b, a)):
            source.sendall(b"knock")
            assert take(sink, 5) == b"knock", "other bytes came than were sent"
        delta = Delta()
        b.sendall(b"there")
        memory = stack.enter_context(contextlib.closing(Unpaged()))
        holder = Sleeper(memory.send, a, 100).asleep("send")
        sender, reader = Sleeper(a.send, b"behind"), Sleeper(a.recv, 5)
        waits_for_lock(sender)
        waits_for_lock(reader)
        memory.fill(b"before")
        assert (holder.result(), sender.result()) == (100, 6), "other counts were sent"
        assert reader.result() == b"there", "other bytes came back"
        assert take(b, 106) == b"before" + bytes(94) + b"behind", "the bytes come in another order"
    delta.expect(**{f"tx_bytes_{carrier}": 111, f"rx_bytes_{carrier}": 111})


def test_half_close():
    """After shutdown() the other side gets the rest and EOF, and may still answer."""
    delta = Delta()
    with pair() as (a, b):
        data = pattern(9000)
        a.sendall(data)
        a.shutdown(socket.SHUT_WR)
        assert take(b, 9000) == data, "other bytes came than were sent"
        assert b.recv(1) == b"", "no EOF"
        b.sendall(data)
        b.close()
        assert take(a, 9000) == data, "other bytes came back"
        assert a.recv(1) == b"", "no EOF the other way"
    delta.expect(tx_bytes_ring=9000, rx_bytes_ring=9000)


def test_close_unread():
    """A close with bytes unread resets the connection."""
    delta = Delta()
    with pair() as (a, b):
        a.sendall(b"x" * 4000)
        b.close()
        try:
            got = a.recv(1)
            pytest.fail(f"recv() returned {got!r}, not ECONNRESET")
        except ConnectionResetError:
            pass
    # TCP's RST and the ring's end race to say so; the winner may count a reset
    delta.expect(tx_bytes_ring=4000, resets=1)


def test_epipe():
    """Sending to a closed peer ends in EPIPE."""
    delta = Delta()
    with pair() as (a, b):
        b.close()
        assert a.recv(1) == b"", "no EOF"
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                a.send(b"x")
            except OSError as error:
                assert error.errno == errno.EPIPE, f"{error}, not EPIPE"
                break
            assert time.monotonic() < deadline, "sends go on for ever"
    # a byte that went into the ring before the peer gave it up resets, as TCP's would
    delta.expect(tx_promoted=2, resets=1)


def test_dont_wait():
    """An empty ring and a full one give EAGAIN; a full one holds what it should."""
    delta = Delta()
    with pair() as (a, b):
        try:
            got = b.recv(1, socket.MSG_DONTWAIT)
            pytest.fail(f"recv() returned {got!r}, not EAGAIN")
        except BlockingIOError:
            pass
        sent = fill(a)
        assert len(sent) == RING, f"{len(sent)} bytes fit"
        assert take(b, len(sent)) == sent, "other bytes came than were sent"
        assert a.send(b"x", socket.MSG_DONTWAIT) == 1, "nothing fits into an empty ring"
        assert b.recv(9) == b"x", "other bytes came"
    delta.expect(ring_empty=1, ring_full=1, tx_bytes_ring=RING + 1, rx_bytes_ring=RING + 1)


def test_timeouts():
    """SO_RCVTIMEO and SO_SNDTIMEO end a wait."""
    delta = Delta()
    with pair() as (a, b):
        tenth = struct.pack("ll", 0, 100000)
        b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, tenth)
        a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, tenth)
        fill(a)
        for call, word in ((a.send, b"x"), (b.recv, RING * 2)):
            begin = time.monotonic()
            try:
                while True:
                    call(word)
                    begin = time.monotonic()
            except BlockingIOError:
                took = time.monotonic() - begin
                # a guest's ticks lag where its host is busy, and then hurry
                assert 0.05 <= took < PATIENCE, f"the wait took {took} s"
    delta.expect(tx_sleeps=1, rx_sleeps=1)


def test_edge_readable():
    """An edge for each time that an empty ring gets bytes, and none without."""
    delta = Delta()
    with pair() as (a, b), select.epoll() as epoll:
        epoll.register(b, select.EPOLLIN | select.EPOLLET)
        epoll.poll(0)
        for turn in range(10):
            assert not epoll.poll(0), "an edge with nothing to read"
            a.sendall(b"%05d" % turn)
            assert epoll.poll(PATIENCE) == [(b.fileno(), select.EPOLLIN)], "no edge"
            assert b.recv(99) == b"%05d" % turn, "other bytes came"
            try:
                b.recv(99, socket.MSG_DONTWAIT)
                pytest.fail("more bytes than were sent")
            except BlockingIOError:
                pass
        waiter = Sleeper(epoll.poll, PATIENCE).asleep("epoll")
        a.sendall(b"x")
        assert waiter.result(), "no edge for a waiter"
        assert b.recv(9) == b"x", "other bytes came"
    delta.expect(tx_bytes_ring=51, rx_bytes_ring=51)


def test_poll_exact():
    """poll() alone wakes a program that reads what it knows to be there and never finds nothing."""
    delta = Delta()
    with pair() as (a, b):
        poll = select.poll()
        poll.register(b, select.POLLIN)
        for turn in range(10):
            waiter = Sleeper(poll.poll, PATIENCE * 1000).asleep("poll")
            a.sendall(b"%05d" % turn)
            assert waiter.result() == [(b.fileno(), select.POLLIN)], "poll() missed the bytes"
            assert b.recv(5) == b"%05d" % turn, "other bytes came"
    delta.expect(tx_bytes_ring=50, rx_bytes_ring=50)


def test_edge_after_short_read():
    """A program may take a short read for "drained": what comes then is an edge again."""
    delta = Delta()
    with pair() as (a, b), select.epoll() as epoll:
        epoll.register(b, select.EPOLLIN | select.EPOLLET)
        epoll.poll(0)
        for turn in range(5):
            a.sendall(b"%05d" % turn)
            assert epoll.poll(PATIENCE) == [(b.fileno(), select.EPOLLIN)], f"no edge, turn {turn}"
            assert b.recv(99) == b"%05d" % turn, "other bytes came"
    delta.expect(tx_bytes_ring=25, rx_bytes_ring=25)


def test_edge_after_inq():
    """A program may read what FIONREAD reported and no more: what comes after that is an edge again."""
    delta = Delta()
    with pair() as (a, b), select.epoll() as epoll:
        epoll.register(b, select.EPOLLIN | select.EPOLLET)
        epoll.poll(0)
        for turn in range(5):
            a.sendall(b"%05d" % turn)
            assert epoll.poll(PATIENCE) == [(b.fileno(), select.EPOLLIN)], f"no edge, turn {turn}"
            reported = array.array("i", [0])
            fcntl.ioctl(b, termios.FIONREAD, reported)
            assert reported[0] == 5, f"FIONREAD reported {reported[0]} bytes, not 5"
            if turn % 2:
                a.sendall(b"later")
                assert epoll.poll(PATIENCE), f"no edge for later bytes, turn {turn}"
                assert b.recv(5) == b"%05d" % turn, "other bytes came"
            assert len(b.recv(5)) == 5, "other bytes came"
            if turn % 2:
                fcntl.ioctl(b, termios.FIONREAD, reported)
                assert reported[0] == 0, f"FIONREAD reported {reported[0]} bytes, not 0"
    delta.expect(tx_bytes_ring=35, rx_bytes_ring=35)


def test_duplicated():
    """A socket that one thread has under several numbers is known to be in nobody else's hands."""
    a, b = connect()
    with a, b, a.dup(), b.dup() as other:
        for sock in (a, other):
            with contextlib.suppress(BlockingIOError):
                sock.recv(1, socket.MSG_DONTWAIT)
        a.sendall(b"hello")
        reasons = {c["reason_name"] for c in shown(a, b)}
        assert "BUSY" not in reasons, f"not promoted: {reasons}"
        assert take(b, 5) == b"hello", "other bytes came than were sent"
        promote(a, b)


def spliced(sock, count):
    """Read exactly this number of bytes by splice()."""
    source, sink = os.pipe()
    with open(source, "rb") as pipe, open(sink, "wb"):
        data = b""
        while len(data) < count:
            moved = os.splice(sock.fileno(), sink, count - len(data))
            assert moved, f"EOF after {len(data)} of {count} bytes"
            data += pipe.read(moved)
    return data


def test_never_called():
    """A ring comes to a socket that nobody has called since it was accepted; splice() finds it, too."""
    delta = Delta()
    a, b = connect()
    with a, b:
        a.sendall(b"first")
        wait_for(lambda: shown(a)[0]["tx"]["carrier"] % 2, "a ring for an end that never made a call")
        a.sendall(b"second")
        assert spliced(b, 11) == b"firstsecond", "other bytes came than were sent"
    delta.expect(rx_bytes_ring=6)


def test_mptcp_listener():
    """MPTCP's listener gives what it accepts of TCP to TCP when the lock is free: splice() finds its ring."""
    with socket.socket() as a, contextlib.ExitStack() as stack:
        try:
            listener = stack.enter_context(socket.socket(proto=socket.IPPROTO_MPTCP))
        except OSError:
            return  # this kernel has none
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        a.connect(listener.getsockname())
        b = stack.enter_context(listener.accept()[0])
        delta = Delta()
        promote(a, b)
        a.sendall(b"spliced")
        assert spliced(b, 7) == b"spliced", "other bytes came than were sent"
        delta.expect(rx_bytes_ring=7)


def test_send_buffer():
    """A program that sets SO_SNDBUF is stopped by a ring, too, where TCP's buffers would be full."""
    delta = Delta()
    with setting("/sys/module/hallway/parameters/ring_bytes", MUCH):
        for asked, least, most in ((None, MUCH, MUCH), (4096, 4096, MUCH // 2), (MUCH, MUCH, MUCH)):
            a, b = connect()
            with a, b:
                if asked:
                    a.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, asked)
                promote(a, b)
                sent = fill(a)
                assert least <= len(sent) <= most, f"SO_SNDBUF {asked}: {len(sent)} bytes fit"
                assert take(b, len(sent)) == sent, "other bytes came than were sent"
    delta.expect(tx_bytes_ring=2 * MUCH, ring_full=3)


def test_edge_writable():
    """An edge when a full ring gets space."""
    delta = Delta()
    with pair() as (a, b), select.epoll() as epoll:
        epoll.register(a, select.EPOLLOUT | select.EPOLLET)
        for _ in range(10):
            sent = fill(a)
            epoll.poll(0)
            assert not epoll.poll(0), "an edge with no space"
            waiter = Sleeper(epoll.poll, PATIENCE).asleep("epoll")
            assert take(b, len(sent)) == sent, "other bytes came than were sent"
            assert waiter.result() == [(a.fileno(), select.EPOLLOUT)], "no edge"
    delta.expect(ring_full=10, rx_bytes_ring=10 * RING)


def test_peek():
    """MSG_PEEK shows bytes and leaves them."""
    delta = Delta()
    with pair() as (a, b):
        data = pattern(3000)
        before = delta()["rx_bytes_ring"]
        a.sendall(data)
        for _ in range(2):
            assert b.recv(3000, socket.MSG_PEEK) == data, "other bytes were shown than sent"
        assert delta()["rx_bytes_ring"] == before, "peeking counted as reading"
        assert take(b, 3000) == data, "other bytes came than were shown"
        assert delta()["rx_bytes_ring"] == before + 3000, "reading was not counted"
    delta.expect()


def test_siocinq():
    """SIOCINQ counts the bytes in the ring."""
    with pair() as (a, b):
        for sent, read, left in ((1000, 400, 600), (5000, 0, 5600), (0, 5600, 0)):
            a.sendall(bytes(sent))
            take(b, read)
            said = array.array("i", [-1])
            fcntl.ioctl(b, termios.FIONREAD, said)
            assert said[0] == left, f"SIOCINQ says {said[0]}, not {left}"


def test_tcp_info():
    """TCP_INFO counts a ring's bytes as it does TCP's, and the times since the last ones."""

    def reported(sock):
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        acked, received = struct.unpack_from("QQ", info, 120)
        return {"sent": struct.unpack_from("Q", info, 200)[0], "acked": acked, "received": received}

    delta = Delta()
    with pair() as (a, b):
        before = reported(a), reported(b)
        for size in (1000, 7000):
            a.sendall(bytes(size))
            take(b, size)
        b.sendall(b"x")
        take(a, 1)
        moved = []
        for sock, then in zip((a, b), before, strict=True):
            now = reported(sock)
            moved.append({name: now[name] - then[name] for name in now})
        assert moved[0] == {"sent": 8000, "acked": 8000, "received": 1}, f"TCP_INFO moved by {moved[0]}"
        assert moved[1] == {"sent": 1, "acked": 1, "received": 8000}, f"TCP_INFO moved by {moved[1]}"
    delta.expect(tx_bytes_ring=8001, rx_bytes_ring=8001)


def test_wakes():
    """A reader and a writer that sleep are woken by each other."""
    delta = Delta()
    with pair() as (a, b):
        reader = Sleeper(b.recv, 99).asleep("recv")
        wait_for(lambda: delta()["rx_sleeps"], "the reader sleeps on the ring")
        a.sendall(b"hello")
        assert reader.result() == b"hello", "other bytes came"
        sent = fill(a)
        writer = Sleeper(a.sendall, b"more").asleep("send")
        wait_for(lambda: delta()["tx_sleeps"], "the writer sleeps on the ring")
        assert take(b, RING + 4) == sent + b"more", "other bytes came than were sent"
        writer.result()
    delta.expect(rx_sleeps=1, tx_sleeps=1)
