"""Connections that move between TCP and rings, and a module that comes and goes."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import subprocess
import tempfile

import nft
import pytest
from bpf import SK_SKB, STREAM_VERDICT, Sockmap, attached, redirection
from native import Unpaged
from pairs import (
    PATIENCE,
    RING,
    Delta,
    Sleeper,
    connect,
    connections,
    counters,
    fill,
    hallway,
    insmod,
    no_packets,
    pair,
    pattern,
    ports_of,
    promote,
    rmmod,
    setting,
    shown,
    shown_at,
    take,
    wait_for,
)
from rows.data import waiting

TCP_ULP = 31
LARGE = 4 << 20  # bytes that a ring grows to by default
CROWD = 300  # a queue of the kernel runs 256 work items at once


@contextlib.contextmanager
def unloaded():
    """The module is not loaded in the block, unless the block loads it, and is after it."""
    rmmod()
    try:
        yield
    finally:
        with open("/proc/modules") as file:
            there = "hallway " in file.read()
        if not there:
            insmod()


def exchange(a, b):
    """Bytes go both ways."""
    for source, sink in ((a, b), (b, a)):
        data = pattern(3000)
        source.sendall(data)
        assert take(sink, 3000) == data, "other bytes came than were sent"


def test_off_on():
    """`hallway off` leaves TCP connections that go on; `hallway on` promotes them again."""
    delta = Delta()
    with pair() as (a, b):
        a.sendall(b"left in the ring")
        hallway("off")
        try:
            wait_for(lambda: not any(c["tx"]["carrier"] % 2 for c in connections()), "all is on TCP")
            ringed = counters()["tx_bytes_ring"]
            assert take(b, 16) == b"left in the ring", "other bytes came than were sent"
            exchange(a, b)
            assert counters()["tx_bytes_ring"] == ringed, "bytes went into rings while off"
        finally:
            hallway("on")
        promote(a, b)
        exchange(a, b)
        assert counters()["tx_bytes_ring"] >= ringed + 6000, "no bytes went into rings again"
    delta.expect(tx_promoted=4, rx_promoted=4, tx_demoted=2)


def in_both(a):
    """Send until bytes that nobody has read are in TCP and in a ring; return them."""
    sent = bytearray()

    def in_ring():
        sent.extend(pattern(500, len(sent)))
        a.sendall(sent[-500:])
        return shown(a)[0]["tx"]["carrier"] % 2

    wait_for(in_ring, "bytes go into the ring")
    in_ring()
    return sent


def test_unread_on_both():
    """Bytes that wait in TCP and in the ring behind it come in order when all goes back to TCP."""
    delta = Delta()
    a, b = connect()
    with a, b:
        sent = in_both(a)
        hallway("off")
        hallway("on")
        assert take(b, len(sent)) == sent, "other bytes came than were sent"
        exchange(a, b)
    delta.expect(rx_bytes_requeued=500, switch_in_ring=1)


def parameter(name, value):
    """A parameter of the module has another value in the block."""
    return setting(f"/sys/module/hallway/parameters/{name}", value)


def test_earned_in_call():
    """A call that sends for long goes on in a ring that the connection gets meanwhile."""
    data = pattern(1 << 16) * 64
    a, b = connect()
    with a, b:
        for sock, option in ((a, socket.SO_SNDBUF), (b, socket.SO_RCVBUF)):
            sock.setsockopt(socket.SOL_SOCKET, option, 1 << 16)
        with parameter("promote_bytes", 2**32 - 1), parameter("promote_ms", 2**31 - 1):
            writer = Sleeper(a.send, data).asleep("send")
        got = bytearray()

        def in_ring():
            got.extend(take(b, 20000))
            return shown(a)[0]["tx"]["carrier"] % 2

        wait_for(in_ring, "the rest goes into a ring")
        got.extend(take(b, len(data) - len(got)))
        assert writer.result() == len(data), "send() returned another count"
        assert got == data, "other bytes came than were sent"
        exchange(a, b)


def test_older_than_module():
    """A reader from before the module gets its bytes; the connection is promoted after."""
    with unloaded():
        a, b = connect()
        with a, b:
            reader = Sleeper(b.recv, 99).asleep("recv")
            insmod()
            wait_for(lambda: len(shown(a, b)) == 2, "both ends are attached")
            a.sendall(b"hello")
            assert reader.result() == b"hello", "other bytes came"
            delta = Delta()
            promote(a, b)
            exchange(a, b)
            delta.expect(tx_bytes_ring=6000, rx_bytes_ring=6000)
            assert counters()["tx_promoted"] >= 2, "nothing was promoted"


def test_older_and_locked():
    """A thread that holds a socket's lock, and faults, holds up nobody; its connection is promoted after."""
    with unloaded():
        a, b = connect()
        c, d = connect()
        with a, b, c, d:
            ports = ports_of(a, b, c, d)
            with contextlib.closing(Unpaged()) as memory:
                writer = Sleeper(memory.send, a, 100).asleep("send")
                insmod()
                wait_for(lambda: len(shown_at(ports)) == 3, "all but one end are attached")
                subprocess.run(["unshare", "--net", "true"], check=True, timeout=PATIENCE)
                promote(c, d)
            assert writer.result() == 100, "send() returned another count"
            assert take(b, 100) == bytes(100), "other bytes came than were sent"
            wait_for(lambda: len(shown(a, b)) == 2, "both ends are attached")
            promote(a, b)
            exchange(a, b)


def test_off_while_locked():
    """So in our send(): connections are listed, and `hallway off` goes on without the one that is locked."""
    with pair() as (a, b), contextlib.ExitStack() as stack:
        port = ports_of(a)
        with contextlib.closing(Unpaged()) as memory:
            writer = Sleeper(memory.send, a, 100).asleep("send")
            stack.callback(hallway, "on")
            hallway("off")
            assert len(shown_at(port)) == 1, "the locked one has left"
        assert writer.result() == 100, "send() returned another count"
        wait_for(lambda: not shown(a, b), "all have left")
        assert take(b, 100) == bytes(100), "other bytes came than were sent"
        exchange(a, b)


def test_off_while_many_locked():
    """More of those than work items run at once: a connection that is not locked leaves all the same."""
    with contextlib.ExitStack() as stack:
        crowd = [connect() for _ in range(CROWD)]
        for ends in crowd:
            for end in ends:
                stack.enter_context(end)
        with contextlib.closing(Unpaged()) as memory:
            writers = [Sleeper(memory.send, a, 100) for a, _ in crowd]
            for writer in writers:
                writer.asleep("send")
            a, b = stack.enter_context(pair())
            stack.callback(hallway, "on")
            hallway("off")
            assert not shown(a, b), f"still attached: {shown(a, b)}"
            exchange(a, b)
        for writer, (_, b) in zip(writers, crowd, strict=True):
            assert writer.result() == 100, "send() returned another count"
            assert take(b, 100) == bytes(100), "other bytes came than were sent"
        wait_for(lambda: not connections(), "all have left")


def test_ktls():
    """TCP_ULP takes a socket off its rings; bytes go on as long as no key is set."""
    subprocess.run(["modprobe", "tls"], check=True)
    delta = Delta()
    with pair() as (a, b):
        a.sendall(b"there")
        b.sendall(b"back!")
        a.setsockopt(socket.IPPROTO_TCP, TCP_ULP, b"tls")
        assert not shown(a), f"still attached: {shown(a)}"
        assert take(b, 5) == b"there", "other bytes came than were sent"
        assert take(a, 5) == b"back!", "other bytes came back"
        exchange(a, b)
    delta.expect(tx_promoted=2, tx_demoted=1)


def test_sockmap():
    """A sockmap keeps nothing of the module: its sockets live, leave it and close after unloading."""
    with contextlib.closing(Sockmap()) as one, contextlib.closing(Sockmap()) as other:
        a, b = connect()
        c, d = connect()
        with a, b, c, d:
            one.put(a)
            other.put(c)
            assert not shown(a, c), f"still attached: {shown(a, c)}"
            hallway("off")
            hallway("on")
            # The scan takes sockets in their order in TCP's table: when the peers are there, it is done.
            wait_for(lambda: len(shown(b, d)) == 2, "the peers are attached again")
            assert not shown(a, c), f"attached, in a sockmap: {shown(a, c)}"
            with unloaded():
                exchange(a, b)
                one.drop()
                exchange(a, b)
                c.close()
                assert d.recv(1) == b"", "no EOF"
            exchange(a, b)


def test_sockmap_in_order():
    """A verdict program sees what lay in TCP, in a ring and behind it, each byte once and in order."""
    a, b = connect()
    c, d = connect()
    with a, b, c, d, contextlib.closing(Sockmap(2)) as held, contextlib.closing(Sockmap()) as other:
        sent = in_both(a)
        other.put(a)
        a.sendall(b"behind")
        wait_for(lambda: len(b.recv(1 << 20, socket.MSG_PEEK)) == len(sent) + 6, "all is there")
        verdict = redirection(held, SK_SKB, 1)
        with contextlib.closing(verdict), attached(held.fd, verdict, STREAM_VERDICT):
            held.put(c, 1)
            held.put(b, 0)
            a.sendall(b"last")
            assert take(d, len(sent) + 10) == sent + b"behindlast", "other bytes came than were sent"
            held.drop(0)
            held.drop(1)
        exchange(a, b)


def test_unload_reader():
    """rmmod under a blocked reader: it gets the bytes that come after."""
    with pair() as (a, b):
        reader = Sleeper(b.recv, 99).asleep("recv")
        with unloaded():
            reader.asleep("recv")
            a.sendall(b"hello")
            assert reader.result() == b"hello", "other bytes came"
            exchange(a, b)


def test_unload_idle():
    """rmmod under a reader of a connection that never earned a ring: it gets what comes after."""
    a, b = connect()
    with a, b:
        reader = Sleeper(b.recv, 99).asleep("recv")
        wait_for(lambda: len(shown(a, b)) == 2, "both ends are attached")
        with unloaded():
            a.sendall(b"hello")
            assert reader.result() == b"hello", "other bytes came"
            exchange(a, b)


def test_unload_writer():
    """rmmod under a blocked writer: all bytes come, those of the ring and the later ones."""
    with pair() as (a, b):
        sent = fill(a)
        data = pattern(1 << 20)
        writer = Sleeper(a.sendall, data).asleep("send")
        with unloaded():
            assert take(b, RING) == sent, "other bytes came out of the ring"
            assert take(b, len(data)) == data, "other bytes came after the ring's"
            writer.result()
            exchange(a, b)


def test_unload_splice():
    """rmmod under a blocked splice() and a blocked sendfile(), which go on natively."""
    size = 1 << 20
    with pair() as (a, b), pair() as (c, d), tempfile.TemporaryFile() as file:
        out, into = os.pipe()
        file.write(pattern(size))
        file.flush()
        splicer = Sleeper(os.splice, b.fileno(), into, 99).asleep("splice")
        sent = fill(c)
        sender = Sleeper(os.sendfile, c.fileno(), file.fileno(), 0, size).asleep("sendfile")
        with unloaded():
            splicer.asleep("splice")
            a.sendall(b"hello")
            assert splicer.result() == 5, "splice() moved another count"
            assert os.read(out, 99) == b"hello", "other bytes came"
            assert take(d, RING) == sent, "other bytes came out of the ring"
            assert take(d, size) == pattern(size), "other bytes came after the ring's"
            assert sender.result() == size, "sendfile() sent another count"
        os.close(out)
        os.close(into)


def test_unload_epoll():
    """rmmod under users of edges: the next change is an edge again."""
    with pair() as (a, b), pair() as (c, d), select.epoll() as readers, select.epoll() as writers:
        readers.register(b, select.EPOLLIN | select.EPOLLET)
        readers.poll(0)
        writers.register(c, select.EPOLLOUT | select.EPOLLET)
        sent = fill(c)
        writers.poll(0)
        with unloaded():
            readers.poll(0)  # the ring's end may be an edge, too
            waiter = Sleeper(readers.poll, PATIENCE).asleep("epoll")
            a.sendall(b"hello")
            assert waiter.result() == [(b.fileno(), select.EPOLLIN)], "no edge for the reader"
            assert take(b, 5) == b"hello", "other bytes came"
            assert writers.poll(PATIENCE) == [(c.fileno(), select.EPOLLOUT)], "no edge for the writer"
            assert take(d, RING) == sent, "other bytes came out of the ring"
            exchange(c, d)


def test_given_up_after_end():
    """A reader that closes on bytes of an ended ring resets the connection, with no RST to say so."""
    delta = Delta()
    a, b = connect()
    with a, b, no_packets():
        # TCP never brings its bytes: so the ring cannot give its own to it
        wait_for(lambda: a.send(b"x") and shown(a)[0]["tx"]["carrier"] % 2, "bytes go into the ring")
        a.sendall(b"unread")
        a.send(b"!", socket.MSG_OOB)
        assert not shown(a)[0]["tx"]["carrier"] % 2, "urgent data left the stream on the ring"
        b.close()
        a.settimeout(PATIENCE)
        try:
            got = a.recv(1)
            pytest.fail(f"recv() returned {got!r}, not ECONNRESET")
        except ConnectionResetError:
            pass
    moved = delta()
    assert moved["resets"] == 1, f"{moved['resets']} sockets were reset"
    assert moved["tx_bytes_unread"] == moved["tx_bytes_ring"], "not all bytes of the ring count as unread"
    delta.expect(resets=1, tx_demoted=1, tx_bytes_ring=6)


def test_left_before_tcp():
    """A reader that leaves a ring before TCP brought what comes ahead of it gets all of it from TCP."""
    delta = Delta()
    a, b = connect()
    with a, b:
        with no_packets():
            sent = in_both(a)
            b.setsockopt(socket.IPPROTO_TCP, TCP_ULP, b"tls")
            assert not shown(b), f"still attached: {shown(b)}"
        assert take(b, len(sent)) == sent, "other bytes came than were sent"
        exchange(a, b)
    delta.expect(rx_truncations=1, switch_in_ring=1)


def test_off_before_tcp():
    """`hallway off` does not wait for what TCP has yet to bring; the connections go on, and come back."""
    delta = Delta()
    a, b = connect()
    with a, b:
        with no_packets():
            sent = in_both(a)
            hallway("off")
        wait_for(lambda: not shown(a, b), "both ends left")
        hallway("on")
        assert take(b, len(sent)) == sent, "other bytes came than were sent"
        exchange(a, b)
        promote(a, b)
    delta.expect(switch_in_ring=1)


def test_ended_before_tcp():
    """A call that needs TCP on a ring that has ended, while TCP brings nothing, times the connection out."""
    delta = Delta()
    a, b = connect()
    with a, b, no_packets():
        in_both(a)
        a.send(b"!", socket.MSG_OOB)
        assert not shown(a)[0]["tx"]["carrier"] % 2, "urgent data left the stream on the ring"
        try:
            b.setsockopt(socket.IPPROTO_TCP, TCP_ULP, b"tls")
            pytest.fail("the socket left its ring")
        except TimeoutError:
            pass
        assert not shown(b), f"still attached: {shown(b)}"
        assert b.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ETIMEDOUT, "the socket goes on"
        # The ring tells the other end, too.
        wait_for(lambda: delta()["resets"] == 2, "both ends are reset")
    delta.expect(resets=2)


@contextlib.contextmanager
def alone():
    """Nobody else runs in the block as long as this thread does not sleep."""
    with setting("/sys/devices/system/cpu/cpu1/online", 0):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        try:
            yield
        finally:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def test_shut_above_a_cut():
    """Bytes written above a truncation that is not known yet go over TCP, ahead of shutdown()'s FIN."""
    delta = Delta()
    with pair() as (a, b), contextlib.closing(Sockmap()) as taken:
        a.sendall(b"taken")
        with alone():
            taken.put(b)
            a.sendall(b"repeated")
            a.shutdown(socket.SHUT_WR)
        assert take(b, 13) == b"takenrepeated", "other bytes came than were sent"
        assert b.recv(1) == b"", "no EOF"
    delta.expect(rx_truncations=1, tx_bytes_resent=8)


@contextlib.contextmanager
def large_pair():
    """Both ends of a connection on large rings, with noise that fills each."""
    with setting("/sys/module/hallway/parameters/ring_bytes", LARGE), pair() as (a, b):
        yield a, b, pattern(LARGE)


def test_large_requeued():
    """What is unread in large rings, both full, comes in order when all goes back to TCP."""
    delta = Delta()
    with large_pair() as (a, b, data), contextlib.ExitStack() as stack:
        for end in (a, b):
            assert end.send(data, socket.MSG_DONTWAIT) == LARGE, "the ring does not take all"
        stack.callback(hallway, "on")
        hallway("off")
        assert not shown(a, b), f"still attached: {shown(a, b)}"
        for source, sink in ((a, b), (b, a)):
            source.sendall(b"after")
            assert take(sink, LARGE + 5) == data + b"after", "other bytes came than were sent"
    delta.expect(rx_bytes_requeued=2 * LARGE)


def test_large_resent():
    """What fills a large ring above a truncation goes over TCP, all of it, ahead of shutdown()'s FIN."""
    delta = Delta()
    with large_pair() as (a, b, data), contextlib.closing(Sockmap()) as taken:
        a.sendall(data[: LARGE // 2])
        with alone():
            taken.put(b)
            assert a.send(data, socket.MSG_DONTWAIT) == LARGE, "the ring does not take all"
            a.shutdown(socket.SHUT_WR)
        assert take(b, LARGE // 2) == data[: LARGE // 2], "other bytes came than were requeued"
        assert take(b, LARGE) == data, "other bytes came than were resent"
        assert b.recv(1) == b"", "no EOF"
    delta.expect(rx_truncations=1, rx_bytes_requeued=LARGE // 2, tx_bytes_resent=LARGE)


def test_lowat_on_both():
    """SO_RCVLOWAT counts what TCP brings late together with what is in the ring behind it."""
    a, b = connect()
    c, d = connect()
    with a, b, c, d:
        with no_packets():
            for source, sink in ((a, b), (c, d)):
                sent = in_both(source)
                sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, len(sent))
            reader = Sleeper(b.recv, 1 << 20).asleep("recv")
            poller = Sleeper(select.select, [d], [], [], PATIENCE).asleep("select")
        assert reader.result() == sent, "other bytes came than were sent"
        assert poller.result()[0] == [d], "not readable"
        assert take(d, len(sent)) == sent, "other bytes came than were sent"


def test_lowat_in_ring():
    """A poller waits for SO_RCVLOWAT bytes, also where that is most of what a ring holds, or more."""
    with pair() as (a, b):
        poll = select.poll()
        poll.register(b, select.POLLIN)
        for least in (10000, 20000):
            b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)
            poller = Sleeper(poll.poll, PATIENCE * 1000).asleep("poll")
            a.sendall(bytes(least - 1))
            wait_for(lambda: waiting(b) == least - 1, "all but one byte are there")  # noqa: B023
            poller.asleep("poll")
            a.sendall(bytes(1))
            assert poller.result(), "not readable"
            take(b, least)
        assert shown(a)[0]["reason_name"] == "SMALL", f"on TCP for another reason: {shown(a)}"


def test_peek_above_ring():
    """A peek for more than a ring holds at once shows all of it."""
    data = pattern(20000)
    delta = Delta()
    with pair() as (a, b):
        peeker = Sleeper(b.recv, len(data), socket.MSG_PEEK | socket.MSG_WAITALL).asleep("recv")
        writer = Sleeper(a.sendall, data)
        assert peeker.result() == data, "other bytes were shown than were sent"
        writer.result()
        assert take(b, len(data)) == data, "other bytes came than were sent"
        promote(a, b)
        exchange(a, b)
    delta.expect(rx_demoted=1, tx_promoted=3)


def test_rules_come_and_go():
    """Rules for packets of one family keep its connections on TCP, while they are there and honoured."""
    with pair() as (a, b), pair("v6") as (c, d):

        def kept():
            exchange(a, b)
            return [(s["reason_name"], s["tx"]["carrier"] % 2) for s in shown(a, b)] == 2 * [("FILTERED", 0)]

        with nft.counting(9):
            wait_for(kept, "both directions are kept on TCP")
            delta = Delta()
            wait_for(lambda: kept() and delta()["tx_bytes_tcp"] > 100_000, "much is sent")
            moved = delta()
            assert not moved["tx_promoted"] and not moved["tx_bytes_ring"], f"rings were used: {moved}"
            assert all(s["tx"]["carrier"] % 2 for s in shown(c, d)), f"not on rings: {shown(c, d)}"
            with parameter("honour_filters", "N"):
                promote(a, b)
            wait_for(kept, "both directions are kept on TCP again")
        promote(a, b)
        exchange(a, b)
        delta.expect(tx_promoted=4)


def test_reload():
    """Connections live through unloading and loading and are promoted again."""
    with pair("v6") as (a, b):
        for _ in range(3):
            with unloaded():
                exchange(a, b)
            promote(a, b)
            exchange(a, b)
