# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Connections that move between TCP and rings, and a module that comes and goes."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import nft
import pytest
from bpf import R0, SK_SKB, SOCKET_FILTER, STREAM_VERDICT, Program, Sockmap, attached, leave, put, redirection
from native import Fenced, Unpaged, checked, disconnect
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
    recorded,
    rmmod,
    setting,
    shown,
    shown_at,
    take,
    wait_for,
    waits_for_lock,
)
from rows.data import waiting

IPV6_ADDRFORM, TCP_ULP, SO_TIMESTAMP = 1, 31, 29
SO_ATTACH_FILTER, SO_DETACH_FILTER, SO_PEEK_OFF, SO_RCVBUFFORCE = 26, 27, 42, 33
AF_KCM, SIOCKCMATTACH = 41, 0x89E0
IDLE = 30  # seconds after which a ring that is not used goes
EXPOSURE = 2  # seconds in which a fault would show
LARGE = 4 << 20  # bytes that a ring grows to by default
RINGS = 30  # that a receiver truncates
TURNS = 40  # connections one after the other
CROWD = 300  # a queue of the kernel runs 256 work items at once
CROWD_RESET = 520  # the queue of resets: 512
ULP_PATIENCE = 6  # seconds after which setsockopt(TCP_ULP) has reset the socket


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


def test_writers_share_a_socket():
    """Small sends of two threads, of which one goes the long way, stay whole and in order at each switch."""
    room = threading.Semaphore(50)  # records on the way: no send waits in its middle
    over = threading.Event()

    def write(sock, name, flags):
        turn = 0
        while not over.is_set():
            room.acquire()
            sock.sendall(b"%c%07d" % (name, turn) * 9, flags)
            turn += 1
        return turn

    def read(sock):
        turns = dict.fromkeys(b"xy", 0)
        while record := sock.recv(72):
            record += take(sock, 72 - len(record))
            room.release()
            name = record[0]
            assert record == b"%c%07d" % (name, turns[name]) * 9, f"{record!r}, after {turns}"
            turns[name] += 1
        return turns

    delta = Delta()
    with pair() as (a, b):
        ways = (b"x"[0], 0), (b"y"[0], socket.MSG_EOR)
        writers = {name: Sleeper(write, a, name, flags) for name, flags in ways}
        reader = Sleeper(read, b)
        for promoted in range(3, 8):
            hallway("off")
            hallway("on")
            wait_for(lambda: delta()["tx_promoted"] >= promoted, "the connection is on its ring again")  # noqa: B023
        over.set()
        sent = {name: writer.result() for name, writer in writers.items()}
        a.shutdown(socket.SHUT_WR)
        assert reader.result() == sent, "other records came than were sent"
    delta.expect(tx_promoted=7, rx_promoted=7, tx_bytes_ring=1, tx_bytes_tcp=1)


def test_unread_on_both():
    """Bytes that wait in TCP and in the ring behind it come in order when the connection is demoted."""
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


def held_on_tcp(stack):
    """Return both ends of a quiet connection that earns no ring while the stack is open."""
    for name, never in (("bytes", 2**32 - 1), ("ms", 2**31 - 1)):
        stack.enter_context(parameter(f"promote_{name}", never))
    a, b = connect()
    for source, sink in ((a, b), (b, a)):
        source.sendall(b"knock")
        assert take(sink, 5) == b"knock", "other bytes came than were sent"
    return a, b


def test_offered_while_reading():
    """A ring that is offered while a thread reads from TCP, and faults, is accepted once it has read."""
    with contextlib.ExitStack() as stack:
        a, b = held_on_tcp(stack)
        a.sendall(b"there")
    with a, b, contextlib.closing(Unpaged()) as memory:
        delta = Delta()
        reader = Sleeper(memory.recv, b, 5).asleep("recv")
        a.sendall(b"more")
        wait_for(lambda: delta()["offers"], "a ring is offered")
        a.sendall(b"over TCP")
        memory.fill(b"")
        assert reader.result() == 5, "recv() returned another count"
        wait_for(lambda: shown(a)[0]["tx"]["carrier"] % 2, "it is accepted")
        assert delta()["offers"] == 1, "an offer had no answer, and was made again"
        assert take(b, 12) == b"moreover TCP", "other bytes came than were sent"
        exchange(a, b)
        delta.expect(rx_bytes_tcp=17, rx_bytes_ring=3000)


def test_disconnected_while_reader_waits():
    """A small read that waits for a thread that faults, behind a disconnect(), gets the error of TCP."""
    with contextlib.ExitStack() as stack:
        a, b = map(stack.enter_context, held_on_tcp(stack))
        b.sendall(b"there")
        with contextlib.closing(Unpaged()) as memory:
            writer = Sleeper(memory.send, a, 100).asleep("send")
            sleepers = []
            for call, *words in ((disconnect, a), (a.recv, 5)):
                sleepers.append(Sleeper(call, *words))
                waits_for_lock(sleepers[-1])
        assert writer.result() == 100, "send() returned another count"
        assert sleepers[0].result() == 0, "connect() failed"
        with pytest.raises(ConnectionResetError):
            sleepers[1].result()
    # Nothing of the connection is left: the module goes.
    with unloaded():
        pass


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


def test_option_while_locked():
    """An option that needs TCP waits for no program at the other end, however long that is in a fault."""
    # On a busy machine some of them may take longer.
    assert min(_set_while_locked() for _ in range(5)) < 0.5, "the calls took too long"


def _set_while_locked():
    """Return how long the calls take."""
    with pair() as (a, b):
        with contextlib.closing(Unpaged()) as memory:
            writer = Sleeper(memory.send, a, 100).asleep("send")
            began = time.monotonic()
            b.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMP, 1)
            with pytest.raises(BlockingIOError):
                b.recv(1, socket.MSG_DONTWAIT)
            took = time.monotonic() - began
        assert writer.result() == 100, "send() returned another count"
        assert take(b, 100) == bytes(100), "other bytes came than were sent"
    return took


def test_device_rules():
    """Rules at a device see packets, too: while there are some, connections by it stay on TCP."""
    with pair() as (a, b):
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(nft.watching("lo"))
            except OSError as error:
                pytest.skip(f"this kernel has none: {error}")
            wait_for(lambda: not any(one["tx"]["carrier"] % 2 for one in shown(a, b)), "both ends are on TCP")
            a.sendall(b"seen")
            assert take(b, 4) == b"seen", "other bytes came than were sent"
        promote(a, b)
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
            wait_for(lambda: not shown(a, b), "both ends have left")
            exchange(a, b)
        for writer, (_, b) in zip(writers, crowd, strict=True):
            assert writer.result() == 100, "send() returned another count"
            assert take(b, 100) == bytes(100), "other bytes came than were sent"
        wait_for(lambda: not connections(), "all have left")


def end_rings(*socks):
    """Have sockets send into rings and end those; TCP brings nothing, also not what comes before them."""

    def on_rings():
        for one in socks:
            one.sendall(b"x")
        ports = ports_of(*socks)
        return all(c["tx"]["carrier"] % 2 for c in connections() if c["local_port"] in ports)

    wait_for(on_rings, "bytes go into the rings")
    for one in socks:
        one.sendall(b"unread")
        one.send(b"!", socket.MSG_OOB)


@pytest.mark.slow
def test_reset_beside_many_locked():
    """While more resets than can run at once find their sockets locked, another connection is reset."""
    with contextlib.ExitStack() as stack:
        # The first of the crowd waits for its lock until the last one does, however slow the machine is.
        stack.enter_context(setting("/proc/sys/kernel/hung_task_timeout_secs", 0))
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        resource.setrlimit(resource.RLIMIT_NOFILE, (4 * CROWD_RESET, max(4 * CROWD_RESET, limits[1])))
        crowd = [connect() for _ in range(CROWD_RESET + 1)]
        for ends in crowd:
            for end in ends:
                stack.enter_context(end)
        stack.enter_context(no_packets())
        delta = Delta()
        a, b = crowd.pop()
        end_rings(a, *(one for one, _ in crowd))
        threading.stack_size(128 << 10)
        stack.callback(threading.stack_size, 0)
        with contextlib.closing(Unpaged()) as memory:
            sleepers = []
            for _, one in crowd:
                words = (one.fileno(), socket.IPPROTO_TCP, TCP_ULP, b"tls", 3)
                sleepers.append(Sleeper(checked, "setsockopt", *words).asleep("setsockopt"))
                sleepers.append(Sleeper(memory.send, one, 100))
            sleepers[-1].asleep("send")
            time.sleep(ULP_PATIENCE)
            b.close()
            a.settimeout(PATIENCE / 6)
            try:
                got = a.recv(1)
                pytest.fail(f"recv() returned {got!r}, not ECONNRESET")
            except ConnectionResetError:
                pass
        for sleeper in sleepers:
            with contextlib.suppress(OSError):
                sleeper.result()
        wait_for(lambda: delta()["resets"] > CROWD_RESET, "the others are reset once they are not locked")


def sockets_used():
    """Return how many sockets the kernel has."""
    with open("/proc/net/sockstat") as file:
        return int(file.readline().split()[2])


def test_closed_above_ring():
    """Sockets that were closed are freed, though their peer does not say that it is done with their rings."""
    ends = [connect() for _ in range(20)]
    linger = struct.pack("ii", 1, 0)
    with contextlib.ExitStack() as stack:
        for a, b in ends:
            stack.enter_context(b)
            promote(a, b)
        with contextlib.closing(Unpaged()) as memory:
            # The locked ends can't look at their rings.
            sleepers = [Sleeper(memory.send, b, 100).asleep("send") for _, b in ends]
            before = sockets_used()
            for a, _ in ends:
                a.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                a.close()
            wait_for(lambda: sockets_used() <= before - len(ends), "the closed ones are freed")
        for sleeper in sleepers:
            with contextlib.suppress(OSError):
                sleeper.result()
    wait_for(lambda: not connections(), "all have left")


OTHER_TABLE = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 4711))
a = socket.create_connection(("127.0.0.1", 4711))
b, _ = listener.accept()
print("connected", flush=True)
sys.stdin.read()
"""


def test_other_table():
    """A namespace with a TCP table of its own: its connections that are older than the module are found."""
    with setting("/proc/sys/net/ipv4/tcp_child_ehash_entries", 1024), unloaded():
        child = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", 'ip link set lo up; exec python3 -c "$0"', OTHER_TABLE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with child:
            assert child.stdout.readline() == "connected\n"
            insmod()
            wait_for(lambda: len(connections()) == 2, "both ends are attached")


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


def test_ktls_at_once():
    """A socket without a ring is handed to kTLS within the call, which does not sleep."""
    subprocess.run(["modprobe", "tls"], check=True)
    with parameter("promote_bytes", 2**32 - 1), parameter("promote_ms", 2**31 - 1):
        slept = 0
        for _ in range(20):
            a, b = connect()
            with a, b:
                exchange(a, b)
                assert shown(a), "not attached"
                before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
                a.setsockopt(socket.IPPROTO_TCP, TCP_ULP, b"tls")
                slept += resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before
                assert not shown(a), f"still attached: {shown(a)}"
                exchange(a, b)
        assert not slept, f"slept {slept} times"


def promote_way(source, sink):
    """Send one way until that direction is on a ring; the other one stays on TCP."""

    def promoted():
        source.sendall(b"knock")
        assert take(sink, 5) == b"knock", "other bytes came than were sent"
        return all(c["tx"]["carrier"] % 2 for c in shown(source))

    wait_for(promoted, "the direction is on a ring")


def test_ktls_while_a_ring_is_replaced():
    """A writer that waits for a larger ring goes on over TCP when kTLS takes its socket."""
    subprocess.run(["modprobe", "tls"], check=True)
    a, b = connect()
    with a, b, parameter("ring_bytes_max", LARGE):
        promote_way(a, b)
        sent = fill(a)
        assert take(b, RING // 2) == sent[: RING // 2], "other bytes came than were sent"
        # The peer does not answer.
        with contextlib.closing(Unpaged()) as memory:
            stuck = Sleeper(memory.recv, b, 100).asleep("recv")
            delta = Delta()
            writer = Sleeper(a.sendall, pattern(RING))
            wait_for(lambda: delta()["rings_grown"], "a ring is replaced")
            a.setsockopt(socket.IPPROTO_TCP, TCP_ULP, b"tls")
            writer.result()
        assert stuck.result() == 100, "recv() returned another count"
        rest = (sent[RING // 2 :] + pattern(RING))[100:]
        assert take(b, len(rest)) == rest, "other bytes came than were sent"


def use_ktls_elsewhere():
    """Another connection's kTLS works without the module: its tables hold none of our functions."""
    with unloaded():
        a, b = connect()
        with a, b:
            a.setsockopt(socket.IPPROTO_TCP, TCP_ULP, b"tls")
            exchange(a, b)


@pytest.mark.parametrize("entered", ["attached", "native"])
def test_ktls_while_scanned(entered):
    """A socket that a scan attaches while its setsockopt(TCP_ULP) is under way becomes kTLS's alone."""
    subprocess.run(["modprobe", "tls"], check=True)
    with parameter("promote_bytes", 2**32 - 1), parameter("promote_ms", 2**31 - 1):
        if entered == "native":
            hallway("off")
        a, b = connect()
        with a, b, contextlib.closing(Unpaged()) as memory:
            caller = Sleeper(memory.setsockopt, a, socket.IPPROTO_TCP, TCP_ULP, 4).asleep("setsockopt")
            hallway("on")
            wait_for(lambda: shown(a), "the caller's socket is attached")
            memory.fill(b"tls\0")
            assert caller.result() == 0, "TCP_ULP failed"
            wait_for(lambda: not shown(a), "the caller's socket is detached")
            exchange(a, b)
    use_ktls_elsewhere()


def test_addrform_while_scanned():
    """A socket that a scan attaches while its setsockopt(IPV6_ADDRFORM) is under way becomes an IPv4 one."""
    with parameter("promote_bytes", 2**32 - 1), parameter("promote_ms", 2**31 - 1):
        b, a = connect("mapped")
        end = a if a.family == socket.AF_INET6 else b
        with a, b, contextlib.closing(Unpaged()) as memory:
            delta = Delta()
            caller = Sleeper(memory.setsockopt, end, socket.IPPROTO_IPV6, IPV6_ADDRFORM, 4).asleep(
                "setsockopt"
            )
            # A scan that an earlier test began may attach it again at once.
            wait_for(lambda: delta()["detached"], "the caller's socket is detached")
            hallway("off")
            hallway("on")
            wait_for(lambda: shown(end), "the caller's socket is attached again")
            memory.fill(struct.pack("i", socket.AF_INET))
            assert caller.result() == 0, "IPV6_ADDRFORM failed"
            assert end.getsockname()[0] == "127.0.0.1"
            exchange(a, b)


def test_addrform_refused():
    """A socket with a peer of IPv6 cannot become one of IPv4; it stays on rings, and says what TCP says."""
    a, b = connect("v6")
    with a, b:
        promote(a, b)
        delta = Delta()
        for family, code in ((socket.AF_INET, errno.EADDRNOTAVAIL), (socket.AF_UNIX, errno.EINVAL)):
            with pytest.raises(OSError) as refused:
                a.setsockopt(socket.IPPROTO_IPV6, IPV6_ADDRFORM, family)
            assert refused.value.errno == code
        exchange(a, b)
        delta.expect(tx_bytes_ring=6000)
        assert not delta()["detached"]


def test_ktls_while_promoted():
    """A setsockopt(TCP_ULP) that finds its socket on rings fails; the rings stay."""
    subprocess.run(["modprobe", "tls"], check=True)
    hallway("off")
    a, b = connect()
    with a, b, contextlib.closing(Unpaged()) as memory:
        caller = Sleeper(memory.setsockopt, a, socket.IPPROTO_TCP, TCP_ULP, 4).asleep("setsockopt")
        hallway("on")
        promote(a, b)
        memory.fill(b"tls\0")
        with pytest.raises(FileExistsError):
            caller.result()
        delta = Delta()
        exchange(a, b)
        delta.expect(tx_bytes_ring=6000)
        a.setsockopt(socket.IPPROTO_TCP, TCP_ULP, b"tls")
        exchange(a, b)
    use_ktls_elsewhere()


def test_reader_of_an_earlier_attachment():
    """A process asleep in recv() since before `hallway off` and `on` gets all bytes."""
    count = 4000
    with pair() as (a, b):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.write(writing, len(a.recv(count, socket.MSG_WAITALL)).to_bytes(4, "little"))
            os._exit(0)
        try:
            b.sendall(b"first")

            def taken():
                with contextlib.suppress(BlockingIOError):
                    return not a.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
                return True

            wait_for(taken, "the child has the first bytes")
            hallway("off")
            hallway("on")
            wait_for(lambda: len(shown(a, b)) == 2, "both ends are attached again")
            begin = time.monotonic()
            while time.monotonic() < begin + EXPOSURE:
                a.sendall(b"x")
                assert take(b, 1) == b"x", "another byte came than was sent"
            for _ in range(count - 5):
                b.sendall(b"y")
            assert select.select([reading], [], [], PATIENCE)[0], f"the child sleeps: {shown(a, b)}"
            assert int.from_bytes(os.read(reading, 4), "little") == count, "the child has other bytes"
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reading)
            os.close(writing)
        promote(a, b)


@contextlib.contextmanager
def second_name(sock, kind):
    """In the block, a socket of this program has another name."""
    if kind == "dup":
        with sock.dup():
            yield
        return
    child = os.fork()
    if not child:
        signal.pause()
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("kind", ["dup", "child"])
def test_second_name(kind):
    """A socket with two names is promoted, though its program has several threads."""
    with contextlib.closing(select.epoll()) as nothing:
        Sleeper(nothing.poll).asleep("epoll")
        a, b = connect()
        with a, b, second_name(a, kind), second_name(b, kind):
            promote(a, b)
            exchange(a, b)


CLONE_NEWNET = 0x40000000


def connect_elsewhere(client, server):
    """Return both ends of a connection between these addresses in a new network namespace."""

    def connect_there():
        checked("unshare", CLONE_NEWNET)
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        with socket.create_server(server) as listener:
            a = socket.socket()
            a.bind(client)
            a.connect(server)
            return a, listener.accept()[0]

    return Sleeper(connect_there).result()


def test_same_addresses_elsewhere():
    """A connection between the same addresses in another namespace keeps none from its rings."""
    with parameter("promote_bytes", 2**32 - 1), parameter("promote_ms", 2**31 - 1):
        a, b = connect()
        c, d = connect_elsewhere(a.getsockname(), b.getsockname())
    with a, b, c, d:
        delta = Delta()

        def on_rings():
            exchange(a, b)
            return delta()["tx_promoted"] == 2

        wait_for(on_rings, "bytes go into rings both ways")
        exchange(c, d)


CHANGES, SCANS_APART = 200, 0.05


def test_scans_rest():
    """Addresses that come and go without end cause a scan each 50 ms at most."""
    delta, began = Delta(), time.monotonic()
    with subprocess.Popen(["ip", "-batch", "-"], stdin=subprocess.PIPE, text=True) as ip:
        for number in range(CHANGES):
            ip.stdin.write(f"address {('add', 'del')[number % 2]} 10.99.0.1/32 dev lo\n")
            ip.stdin.flush()
            time.sleep(0.01)  # one at a time, or one scan does for several
    assert not ip.returncode
    scans, took = delta()["scans"], time.monotonic() - began
    assert 2 <= scans <= took / SCANS_APART + 2, f"{scans} scans in {took:.1f} s"


def test_few_offers_to_a_busy_end():
    """While a native call is inside the reader's socket, the sender offers less and less often."""
    hallway("off")
    a, b = connect()
    with a, b:
        reader = Sleeper(b.recv, LARGE, socket.MSG_WAITALL).asleep("recv")
        hallway("on")
        wait_for(lambda: len(shown(a, b)) == 2, "both ends are attached")
        delta, sent, begin = Delta(), 0, time.monotonic()
        while time.monotonic() < begin + EXPOSURE:
            a.sendall(b"x")
            sent += 1
        assert shown(a)[0]["reason_name"] == "BUSY", f"another reason: {shown(a)}"
        moved = delta()
        assert moved["offers_declined"], "no offer was declined"
        assert moved["offers"] <= 12, f"{moved['offers']} offers"
        a.sendall(b"x" * (LARGE - sent))
        assert reader.result() == b"x" * LARGE, "other bytes came"
        promote(a, b)


def listen_twice(stack):
    """Return listeners at two addresses, with the same port."""
    first = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    second = socket.create_server(("127.0.0.2", first.getsockname()[1]))
    return first, stack.enter_context(second)


def reconnect_beside_reader(detached):
    """A peer closes with unread bytes after its former one has another connection; True: it lost some.

    `detached`: the socket was detached before it was disconnected.
    """
    with contextlib.ExitStack() as stack:
        listeners = listen_twice(stack)
        c = stack.enter_context(socket.socket())
        c.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with socket.create_server(("127.0.0.1", 0)) as free:
            own = free.getsockname()
        c.bind(own)  # a port of the program's choice stays
        c.connect(listeners[0].getsockname())
        a, _ = listeners[0].accept()
        promote_way(c, a) if detached else promote(c, a)
        delta = Delta()
        c.sendall(bytes(8000))
        with contextlib.closing(Unpaged()) as memory:
            reader = Sleeper(memory.recv, a, 100).asleep("recv")
            a.close()  # takes effect when the reader's call ends
            if detached:
                c.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMP, 1)
                wait_for(lambda: not shown(c), "it is detached")
            disconnect(c)
            c.connect(listeners[1].getsockname())
            assert c.getsockname() == own, "another port"
            b = stack.enter_context(listeners[1].accept()[0])
            exchange(c, b)
        with contextlib.suppress(OSError):
            reader.result()
        done = ("tx_bytes_unread", "rx_bytes_requeued")
        wait_for(lambda: any(delta()[name] for name in done), "the former peer is done")
        exchange(c, b)
        delta.expect()
        return delta()["tx_bytes_unread"]


@pytest.mark.parametrize("detached", [False, True])
def test_reset_of_a_former_peer(detached):
    """A socket that was disconnected and connected again is not reset for its former peer."""
    # The reader's end may take the bytes out of the ring before it is closed.
    assert any(reconnect_beside_reader(detached) for _ in range(200)), "no byte was left unread"


def on_one_cpu(call, *words):
    """Call this in a thread that runs on the first CPU alone, and only where nothing else does."""
    os.sched_setaffinity(0, {0})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    return call(*words)


@pytest.mark.parametrize("call", ["send", "recv"])
def test_reconnected_under_sleeper(call):
    """A call that sleeps when its socket is disconnected moves no byte of the next connection."""
    with contextlib.ExitStack() as stack:
        listeners = listen_twice(stack)
        c = stack.enter_context(socket.socket())
        c.connect(listeners[0].getsockname())
        a = stack.enter_context(listeners[0].accept()[0])
        promote(c, a)
        if call == "send":
            sleeper = Sleeper(on_one_cpu, c.send, pattern(4 * RING))
        else:
            a.sendall(b"first")
            sleeper = Sleeper(on_one_cpu, c.recv, 99, socket.MSG_WAITALL)
        sleeper.asleep(call)
        own = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {0})  # the sleeper wakes once this thread waits
        try:
            disconnect(c)
            c.connect(listeners[1].getsockname())
            b = stack.enter_context(listeners[1].accept()[0])
            b.sendall(b"next")
        finally:
            os.sched_setaffinity(0, own)
        moved = sleeper.result()
        assert moved < 4 * RING if call == "send" else moved == b"first", f"{moved} moved"
        assert take(c, 4) == b"next", "other bytes came"
        c.close()
        assert b.recv(99) == b"", "bytes came that were for another"


def test_rcvlowat_lowered():
    """A poller wakes when another thread lowers SO_RCVLOWAT to what is there."""
    with pair() as (a, b):
        a.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1000)
        b.sendall(bytes(500))
        poller = select.poll()
        poller.register(a, select.POLLIN)
        sleeper = Sleeper(poller.poll, 1000 * 2 * PATIENCE).asleep("poll")
        a.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        assert sleeper.result() == [(a.fileno(), select.POLLIN)], "another answer"
        assert take(a, 500) == bytes(500), "other bytes came"


@pytest.mark.parametrize("unread", [0, 3])
def test_kcm(unread):
    """AF_KCM takes a connection from its rings with all messages, and gets rings for it again."""
    size = 1000
    with contextlib.ExitStack() as stack:
        parser = stack.enter_context(
            contextlib.closing(Program(SOCKET_FILTER, put(R0, size), leave())),
        )
        a, b = stack.enter_context(pair())
        data = pattern(40 * size)
        b.sendall(data[: unread * size])
        kcm = stack.enter_context(socket.socket(AF_KCM, socket.SOCK_DGRAM))
        kcm.settimeout(PATIENCE)
        fcntl.ioctl(kcm, SIOCKCMATTACH, struct.pack("ii", a.fileno(), parser.fd))
        b.sendall(data[unread * size :])

        def expect_all():
            got = b"".join(kcm.recv(2 * size) for _ in range(40))
            assert got == data, "other messages came than were sent"

        def ringing():
            b.sendall(data[:size])
            assert kcm.recv(2 * size) == data[:size], "another message came than was sent"
            assert kcm.send(data[:size]) == size, "send() returned another count"
            assert take(b, size) == data[:size], "another message came than was sent"
            return [c["tx"]["carrier"] % 2 for c in shown(a, b)] == [1, 1]

        expect_all()
        for _ in range(3):
            wait_for(ringing, "the connection is on rings")
            delta = Delta()
            writer = Sleeper(b.sendall, data)
            expect_all()
            writer.result()
            # A parser waits for the rest of a message without reading.
            for at in range(0, len(data), size // 4):
                b.sendall(data[at : at + size // 4])
                if at % size == 3 * size // 4:
                    assert kcm.recv(2 * size) == data[at - 3 * size // 4 :][:size], "another message came"
            assert delta()["rx_bytes_ring"] >= len(data), "too few bytes came by the ring"
            hallway("off")
            hallway("on")
        wait_for(ringing, "the connection is on rings")
        b.sendall(data[:10_000])
        b.shutdown(socket.SHUT_WR)
        assert b"".join(kcm.recv(2 * size) for _ in range(10)) == data[:10_000], "the last messages are lost"


@pytest.mark.parametrize("size", [14_000, 40_000])
def test_kcm_large_message(size):
    """AF_KCM gets messages that fill most of a ring, or more than that, before the ring has to go."""
    with contextlib.ExitStack() as stack:
        parser = stack.enter_context(
            contextlib.closing(Program(SOCKET_FILTER, put(R0, size), leave())),
        )
        a, b = stack.enter_context(pair())
        a.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        kcm = stack.enter_context(socket.socket(AF_KCM, socket.SOCK_DGRAM))
        kcm.settimeout(IDLE / 2)
        fcntl.ioctl(kcm, SIOCKCMATTACH, struct.pack("ii", a.fileno(), parser.fd))
        data = pattern(10 * size)

        def ringing():
            b.sendall(data[:size])
            assert kcm.recv(2 * size) == data[:size], "another message came than was sent"
            assert kcm.send(b"seen") == 4, "send() returned another count"
            assert take(b, 4) == b"seen", "another message came than was sent"
            return shown(b)[0]["tx"]["carrier"] % 2

        for _ in range(3):
            wait_for(ringing, "the connection is on rings")
            writer = Sleeper(b.sendall, data)
            got = b"".join(kcm.recv(2 * size) for _ in range(10))
            assert got == data, "other messages came than were sent"
            writer.result()


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


@pytest.mark.parametrize("carrier", ["TCP", "a ring"])
def test_reset_while_sending(carrier):
    """A call that has sent bytes as the reset arrives leaves the error to the next one."""
    a, b = connect()
    with a, b:
        promote(a, b)
        if carrier == "TCP":
            a.send(b"!", socket.MSG_OOB)
        on_ring = shown(a)[0]["tx"]["carrier"] % 2
        assert on_ring == (carrier != "TCP"), f"on another carrier: {shown(a)}"
        data = bytes(50 << 20)
        sender = Sleeper(a.send, data).asleep("send")
        b.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        b.close()
        assert 0 < sender.result() < len(data), "not some of the bytes were sent"
        with pytest.raises(ConnectionResetError):
            a.send(b"more")


def test_requeued_beyond_buffer():
    """A reader without room for what is requeued tells TCP, which goes on as soon as it reads."""

    def window(sock):
        return struct.unpack_from("I", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), 228)[0]

    with pair() as (a, b):
        b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        data = pattern(200_000)
        a.sendall(data[:15_000])
        delta = Delta()
        hallway("off")
        assert delta()["rx_bytes_requeued"] == 15_000, "not all bytes of the ring were requeued"
        sender = Sleeper(a.sendall, data[15_000:])
        wait_for(lambda: not window(a), "the sender learns that there is no room")
        b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        assert take(b, len(data)) == data, "other bytes came than were sent"
        sender.result()
        hallway("on")


@pytest.mark.parametrize("call", ["poll", "peek"])
def test_reader_of_most_of_a_ring(call):
    """A reader that waits for more than half of a ring gets it from a writer that found it full."""
    want = 13_000
    with pair() as (a, b):
        data = pattern(3 * RING)
        writer = Sleeper(a.sendall, data).asleep("send")
        wait_for(lambda: waiting(b) == RING, "the ring is full")
        delta = Delta()
        assert take(b, 4096) == data[:4096], "other bytes came than were sent"
        if call == "poll":
            b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, want)
            assert select.select([b], [], [], IDLE / 2)[0], "the bytes did not come"
            b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        else:
            b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", IDLE // 2, 0))
            got = b.recv(want, socket.MSG_PEEK | socket.MSG_WAITALL)
            assert got == data[4096:][:want], "other bytes came than were sent, or too few"
        assert take(b, len(data) - 4096) == data[4096:], "other bytes came than were sent"
        writer.result()
        assert delta()["rx_bytes_ring"] == len(data), "not all bytes came by the ring"


def test_inq_before_tcp():
    """Bytes of a ring that wait for TCP's count as unread once they can be read."""
    a, b = connect()
    with a, b:
        with no_packets():
            sent = in_both(a)
            with pytest.raises(BlockingIOError):
                b.recv(9, socket.MSG_DONTWAIT)
            assert not waiting(b), "bytes count that no read gives"
        assert take(b, len(sent)) == sent, "other bytes came than were sent"


def test_shut_both_ways():
    """A peer that sends to a socket that is shut down both ways is refused."""
    with pair() as (a, b):
        a.shutdown(socket.SHUT_RDWR)

        def refused():
            try:
                b.send(b"x", socket.MSG_NOSIGNAL)
            except (BrokenPipeError, ConnectionResetError):
                return True
            return False

        wait_for(refused, "a send is refused")


def test_signal_for_space():
    """A program that waits for SIGIO, and neither polls nor sleeps, hears of space in a ring."""
    got = []
    before = signal.signal(signal.SIGIO, lambda *_: got.append(1))
    try:
        with pair() as (a, b):
            fcntl.fcntl(a, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(a, fcntl.F_SETFL, os.O_ASYNC)
            sent = fill(a)
            got.clear()
            assert take(b, len(sent)) == sent, "other bytes came than were sent"
            wait_for(lambda: got, "a signal for space")
    finally:
        signal.signal(signal.SIGIO, before)


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
    ports = ports_of(b)
    with a, b, no_packets():
        in_both(a)
        a.send(b"!", socket.MSG_OOB)
        assert not shown(a)[0]["tx"]["carrier"] % 2, "urgent data left the stream on the ring"
        try:
            b.setsockopt(socket.IPPROTO_TCP, TCP_ULP, b"tls")
            pytest.fail("the socket left its ring")
        except TimeoutError:
            pass
        assert not shown_at(ports), f"still attached: {shown_at(ports)}"
        assert b.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ETIMEDOUT, "the socket goes on"
        # The ring tells the other end, too.
        wait_for(lambda: delta()["resets"] == 2, "both ends are reset")
    delta.expect(resets=2)


@pytest.mark.parametrize("ends", ["a ring", "all of them"])
def test_looks_rest(ends):
    """Bytes that TCP does not bring, and that come before an ended ring, are looked for ever more seldom."""
    a, b = connect()
    with a, b, no_packets():
        in_both(a)
        # It ends the ring: else the reader could truncate it first, and have nothing to look for.
        a.send(b"!", socket.MSG_OOB)
        if ends == "all of them":
            hallway("off")
        with recorded("workqueue/workqueue_execute_start") as text:
            wait_for(lambda: "function run_work" in text(), "a work item looks")
            time.sleep(EXPOSURE)
            looks = text().count("function run_work")
        assert shown(b), "the reader has left its ring"
        hallway("on")
    assert looks < 30, f"{looks} work items in {EXPOSURE} s"


def test_peek_off_at_end():
    """A peek behind all that is there, after shutdown(), finds the end."""
    a, b = connect()
    with a, b:
        sent = in_both(a)
        try:
            b.setsockopt(socket.SOL_SOCKET, SO_PEEK_OFF, 0)
        except OSError:
            pytest.skip("this kernel's TCP has no SO_PEEK_OFF")
        wait_for(lambda: waiting(b) == len(sent), "all is there")
        assert b.recv(len(sent), socket.MSG_PEEK) == sent, "other bytes were shown than were sent"
        b.shutdown(socket.SHUT_RD)
        assert Sleeper(b.recv, 10, socket.MSG_PEEK).result() == b"", "more than all was shown"


@contextlib.contextmanager
def no_work_items():
    """No thread of a work queue runs in the block, while this one does not sleep."""
    limit = Path("/proc/sys/kernel/sched_rt_runtime_us")
    before, cpus = limit.read_text(), os.sched_getaffinity(0)
    first, *others = cpus
    busy = "taskset -c {} chrt -f 1 sh -c 'while :; do :; done'"
    loops = [subprocess.Popen(["sh", "-c", f"exec {busy.format(cpu)}"]) for cpu in others]
    try:
        limit.write_text("-1")
        os.sched_setaffinity(0, {first})
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(2))
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.sched_setaffinity(0, cpus)
        for loop in loops:
            loop.kill()
            loop.wait()
        limit.write_text(before)


def test_peek_off_beyond_ring():
    """Peeks behind each other reach what TCP brought after an ended ring, with no work item's help."""
    a, b = connect()
    with a, b, contextlib.ExitStack() as down:
        b.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
        try:
            b.setsockopt(socket.SOL_SOCKET, SO_PEEK_OFF, 0)
        except OSError:
            pytest.skip("this kernel's TCP has no SO_PEEK_OFF")
        down.enter_context(no_packets())
        sent = in_both(a)
        a.send(b"!", socket.MSG_OOB)
        assert not shown(a)[0]["tx"]["carrier"] % 2, "urgent data left the stream on the ring"
        a.sendall(b"more")
        a.shutdown(socket.SHUT_WR)
        poll = select.poll()
        poll.register(b, select.POLLRDHUP)
        peeked, deadline = bytearray(), time.monotonic() + PATIENCE
        with no_work_items():
            down.close()
            while not poll.poll(0) and time.monotonic() < deadline:
                pass
            while more := b.recv(1 << 20, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                peeked += more
        assert peeked == sent + b"!more", f"{len(peeked)} bytes of {len(sent) + 5} were shown"


@pytest.mark.parametrize("on_ring", [False, True])
def test_peek_fault(on_ring):
    """A peek that wants more than it can copy returns what it could."""
    with contextlib.ExitStack() as stack:
        if on_ring:
            a, b, data = stack.enter_context(large_pair())
        else:
            a, b = (stack.enter_context(end) for end in connect())
            data = pattern(LARGE)
            stack.enter_context(parameter("promote_bytes", 2**32 - 1))
            stack.enter_context(parameter("promote_ms", 2**31 - 1))
            b.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 4 * LARGE)
        writer = Sleeper(a.sendall, data[: LARGE // 2])
        wait_for(lambda: waiting(b) > LARGE // 4, "much is there")
        fenced = Fenced(bytes(LARGE // 8))
        flags = socket.MSG_PEEK | socket.MSG_WAITALL
        seen = Sleeper(fenced.recv, b, LARGE // 4, flags).result()
        assert 0 < seen <= LARGE // 8, f"{seen} bytes were shown"
        assert take(b, LARGE // 2) == data[: LARGE // 2], "other bytes came than were sent"
        writer.result()


def test_resent_is_bounded():
    """A receiver that has ring after ring truncated does not fill its sender's queue past its limits."""
    accept_all = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0xFFFF))
    program = struct.pack("HxxxxxxQ", 1, ctypes.addressof(accept_all))
    delta = Delta()
    with pair() as (a, b), parameter("ring_bytes_max", RING), contextlib.ExitStack() as stack:
        writer = Sleeper(a.sendall, bytes(64 << 20)).asleep("send")
        for _ in range(RINGS):
            b.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
            b.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
            for word in ("add", "del"):
                subprocess.run(["ip", "address", word, "10.99.0.1/32", "dev", "lo"], check=True)
            wait_for(lambda: shown(b), "a scan has found the reader")
            b.send(b"x")
            time.sleep(0.02)
        resent = delta()["tx_bytes_resent"]
        stack.callback(writer.join, PATIENCE)
        b.shutdown(socket.SHUT_RDWR)
        a.shutdown(socket.SHUT_RDWR)
    assert 0 < resent <= 3 * RING, f"{resent} bytes were resent"


@contextlib.contextmanager
def alone():
    """Nobody else runs in the block as long as this thread does not sleep."""
    with setting("/sys/devices/system/cpu/cpu1/online", 0):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        try:
            yield
        finally:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def test_shut_above_truncation():
    """Bytes written above a truncation that is not known yet go over TCP, ahead of shutdown()'s FIN."""
    delta = Delta()
    with pair() as (a, b), contextlib.closing(Sockmap()) as taken:
        a.sendall(b"taken")
        with alone():
            taken.put(b)
            a.sendall(b"resent")
            a.shutdown(socket.SHUT_WR)
        assert take(b, 11) == b"takenresent", "other bytes came than were sent"
        assert b.recv(1) == b"", "no EOF"
    delta.expect(rx_truncations=1, tx_bytes_resent=6)


@contextlib.contextmanager
def large_pair():
    """Both ends of a connection on large rings, with noise that fills each."""
    with setting("/sys/module/hallway/parameters/ring_bytes", LARGE), pair() as (a, b):
        yield a, b, pattern(LARGE)


def test_large_requeued():
    """What is unread in large rings, both full, comes in order when the connection is demoted."""
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


@pytest.mark.parametrize("pages", [None, 1])
def test_large_resent(pages):
    """What fills a large ring above a truncation goes over TCP, all of it, ahead of shutdown()'s FIN.

    So it does if TCP may have no more pages, and the program has set the socket's limit.
    """
    limit = setting("/proc/sys/net/ipv4/tcp_mem", f"{pages} {pages} {pages}")
    delta = Delta()
    with large_pair() as (a, b, data), contextlib.closing(Sockmap()) as taken:
        if pages:
            a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        a.sendall(data[: LARGE // 2])
        with alone():
            taken.put(b)
            assert a.send(data, socket.MSG_DONTWAIT) == LARGE, "the ring does not take all"
            with limit if pages else contextlib.nullcontext():
                a.shutdown(socket.SHUT_WR)
        assert take(b, LARGE // 2) == data[: LARGE // 2], "other bytes came than were requeued"
        assert take(b, LARGE) == data, "other bytes came than were resent"
        assert b.recv(1) == b"", "no EOF"
    delta.expect(rx_truncations=1, rx_bytes_requeued=LARGE // 2, tx_bytes_resent=LARGE)


def test_lowat_on_both():
    """SO_RCVLOWAT counts what TCP brings late together with what is in the ring behind it."""
    a, b = connect()
    c, d = connect()
    # Nor does the end of an unused ring wake them.
    with parameter("idle_ms", 2**31 - 1), a, b, c, d:
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
    # A slow machine takes longer than an unused ring is kept.
    with parameter("idle_ms", 2**31 - 1), pair() as (a, b), pair("v6") as (c, d):

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


@pytest.mark.parametrize("kind", ["v4", "v6"])
def test_memory_is_used_again(kind):
    """Connections without a ring leave their memory to the next ones, and none of what it held."""
    never = 2**32 - 1
    delta = Delta()
    with (
        parameter("promote_bytes", never),
        parameter("promote_ms", never),
        recorded("kmem/kmalloc") as text,
    ):
        for turn in range(TURNS):
            a, b = connect(kind)
            with a, b:
                a.sendall(bytes(1000))
                take(b, 1000)
                if turn == TURNS - 1:
                    sent = sorted(s["tx"]["tcp_bytes"] for s in shown(a, b))
                    assert sent == [0, 1000], f"bytes of earlier connections are shown: {shown(a, b)}"
        made = len(re.findall(r"call_site=(?:hall_sock_new|allocate)\+", text()))
    delta.expect(attached=2 * TURNS)
    assert made < TURNS / 2, f"{made} allocations for {2 * TURNS} sockets"
    with pair(kind) as (a, b):
        exchange(a, b)


def test_reload():
    """Connections live through unloading and loading and are promoted again."""
    with pair("v6") as (a, b):
        for _ in range(3):
            with unloaded():
                exchange(a, b)
            promote(a, b)
            exchange(a, b)
