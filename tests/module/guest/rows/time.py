# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Waits that end, and connections that do."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import socket
import struct
import subprocess
import time

import native
from pairs import PATIENCE, Sleeper, no_packets, pattern, setting, take, wait_for
from row import outcome, row

from .data import arrived, stuff, unacknowledged

TCP_FASTOPEN = 23
MUCH = 1 << 20  # more bytes than fit anywhere
TENTH = struct.pack("ll", 0, 100000)  # of a second
SECOND = struct.pack("ll", 1, 0)
RESET_NOW = struct.pack("ii", 1, 0)


def until_error(call, *words):
    """Repeat a call until it fails; return the error's name."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        said = outcome(call, *words)
        if isinstance(said, str):
            return said
    raise AssertionError("the call never failed")


def ending(sock):
    """Return what a reader gets to the end: the bytes, then EOF or an error."""
    got = b""
    while True:
        piece = outcome(sock.recv, 4096)
        if isinstance(piece, str) or not piece:
            return got, piece or "EOF"
        got += piece


def pending(sock):
    """Wait until the connection's end is known here, without taking it."""
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP)
    assert poll.poll(PATIENCE * 1000), "nothing is known of the end"


def _waited(call, *words):
    """Return what a call returns, and whether it took a second."""
    begin = time.monotonic()
    said = outcome(call, *words)
    return said, 0.95 < time.monotonic() - begin < PATIENCE  # jiffies are not finer


@row("SO_RCVTIMEO, SO_SNDTIMEO")
def timeouts(link):
    """A wait that is over says EAGAIN, or what has been done till then, one across a switch no sooner."""
    (a, b), (c, _) = link.pair(), link.pair()
    b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TENTH)
    a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, TENTH)
    seen = [outcome(b.recv, 9)]
    a.sendall(b"1")
    seen.append(b.recv(9, socket.MSG_WAITALL))
    stuff(c)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        c.setsockopt(socket.SOL_SOCKET, option, SECOND)
    reader = Sleeper(_waited, c.recv, 9).asleep("recv")
    writer = Sleeper(_waited, c.send, bytes(MUCH)).asleep("send")
    link.cross()
    seen.append(outcome(b.recv, 9))
    stuff(a)
    # Where the machine is busy, an acknowledgement may still make room for some.
    wait_for(lambda: outcome(a.send, bytes(MUCH)) == "EAGAIN", "a send says that its time is over")
    seen.append(reader.result())
    said, waited = writer.result()
    seen.append((said == "EAGAIN" or said < MUCH, waited))  # the other carrier may have had space
    return [*seen, b.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)]


@row("SO_LINGER with time 0")
def linger_reset(link):
    """Closing resets; the peer gets what it has, then ECONNRESET."""
    a, b = link.pair()
    a.sendall(b"last")
    arrived(b, 4)
    link.cross()
    a.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_NOW)
    a.close()
    pending(b)
    return ending(b), outcome(b.send, b"x", socket.MSG_NOSIGNAL), outcome(b.getpeername)


@row("SO_LINGER with time")
def linger_wait(link):
    """Closing waits until the peer's kernel has all, but no longer than asked; the rest comes later."""
    data = pattern(8000)
    ends = [link.pair() for _ in range(2)]
    for (a, _), seconds in zip(ends, (30, 1), strict=True):
        a.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, seconds))
        a.sendall(data)
    link.cross()
    (a, b), (c, d) = ends
    begin = time.monotonic()
    a.close()
    assert time.monotonic() - begin < PATIENCE, "close() lingers"
    with no_packets():
        c.sendall(data)
        seen = [_waited(c.close)]
    return [*seen, ending(b) == (data, "EOF"), ending(d) == (2 * data, "EOF")]


@row("shutdown(SHUT_WR)")
def shut_write(link):
    """The rest and EOF come; one's own sends end in EPIPE; the other half goes on."""
    a, b = link.pair()
    a.sendall(b"rest")
    link.cross()
    a.shutdown(socket.SHUT_WR)
    pending(b)
    seen = [ending(b), outcome(a.send, b"x", socket.MSG_NOSIGNAL)]
    b.sendall(b"back")
    b.shutdown(socket.SHUT_WR)
    return [*seen, ending(a)]


@row("shutdown(SHUT_RD)")
def shut_read(link):
    """What is there can be read, then EOF, until more comes."""
    a, b = link.pair()
    a.sendall(b"there")
    arrived(b, 5)
    b.shutdown(socket.SHUT_RD)
    seen = [b.recv(2)]
    link.cross()
    seen += [b.recv(9), b.recv(9)]
    a.sendall(b"more")
    arrived(b, 4)
    return [*seen, b.recv(9), b.recv(9), b.send(b"x"), a.recv(9)]


@row("shutdown() under a sleeper")
def shut_under_sleepers(link):
    """A reader gets EOF, a writer EPIPE, or the count of what it could send till then."""
    a, _ = link.pair()
    reader = Sleeper(a.recv, 9).asleep("recv")
    stuff(a)
    writer = Sleeper(a.send, bytes(MUCH), socket.MSG_NOSIGNAL).asleep("send")
    link.cross()
    reader.asleep("recv")
    a.shutdown(socket.SHUT_RDWR)
    said = outcome(writer.result)
    return reader.result(), said == "EPIPE" or said < MUCH


@row("close() with bytes unread")
def close_unread(link):
    """The peer gets ECONNRESET; what it had to read itself is there first."""
    a, b = link.pair()
    a.sendall(b"x" * 4000)
    b.sendall(b"to read")
    arrived(a, 7)
    arrived(b, 4000)
    link.cross()
    b.close()
    pending(a)
    return ending(a), outcome(a.send, b"x", socket.MSG_NOSIGNAL)


@row("a reset under sleepers")
def reset_under_sleepers(link):
    """A reader that sleeps when the RST comes gets ECONNRESET."""
    a, b = link.pair()
    a.sendall(b"x")
    reader = Sleeper(a.recv, 9).asleep("recv")
    link.cross()
    reader.asleep("recv")
    b.recv(1)
    b.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_NOW)
    b.close()
    return outcome(reader.result)


@row("a reset: poll(), SO_ERROR")
def reset_polled(link):
    """All is ready, with POLLERR and POLLHUP; the error is reported once, then reading finds EOF."""
    a, b = link.pair()
    poll, slept = select.poll(), select.poll()
    poll.register(a, select.POLLIN | select.POLLPRI | select.POLLOUT | select.POLLRDHUP)
    slept.register(a, select.POLLIN)

    def mask():
        return [mask for _, mask in poll.poll(0)]

    def error():
        return a.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    seen = [mask(), error()]
    a.sendall(b"x")
    sleeper = Sleeper(slept.poll, PATIENCE * 1000).asleep("poll")
    link.cross()
    sleeper.asleep("poll")
    b.recv(1)
    b.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_NOW)
    b.close()
    wait_for(lambda: mask()[0] & select.POLLHUP, "the RST is here")
    seen += [[mask for _, mask in sleeper.result()], mask(), error(), error(), mask()]
    return [*seen, a.recv(9), outcome(a.send, b"x", socket.MSG_NOSIGNAL), mask()]


@row("SIGPIPE, MSG_NOSIGNAL")
def sigpipe(link):
    """EPIPE comes with the signal, or without where it is not wanted."""
    a, b = link.pair()
    got = []
    before = signal.signal(signal.SIGPIPE, lambda *_: got.append(1))
    try:
        a.sendall(b"x")
        link.cross()
        a.shutdown(socket.SHUT_WR)
        seen = [outcome(a.send, b"x", socket.MSG_NOSIGNAL), len(got)]
        seen += [outcome(a.send, b"x"), len(got), outcome(os.write, a.fileno(), b"x"), len(got)]
    finally:
        signal.signal(signal.SIGPIPE, before)
    return [*seen, b.recv(9)]


@row("sending to a closed peer")
def send_closed(link):
    """Goes well until the RST is here, then ends in EPIPE or ECONNRESET, then always in EPIPE."""
    a, b = link.pair()
    a.sendall(b"x")
    b.recv(1)
    link.cross()
    link.ends()
    b.close()
    pending(a)
    seen = [until_error(a.send, b"x", socket.MSG_NOSIGNAL) in ("EPIPE", "ECONNRESET")]
    return [*seen, outcome(a.send, b"x", socket.MSG_NOSIGNAL)]


@contextlib.contextmanager
def _handled(restart):
    """Within the block a function interrupts a thread, and SA_RESTART is set or not."""
    got = []
    before = signal.signal(signal.SIGUSR1, lambda *_: got.append(1))
    signal.siginterrupt(signal.SIGUSR1, not restart)

    def interrupt(thread):
        got.clear()
        signal.pthread_kill(thread.ident, signal.SIGUSR1)
        wait_for(lambda: got, "the signal is taken")

    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGUSR1, before)


def _interrupt(link, restart, goes_on, timeout=None):
    """Interrupt a reader, with SA_RESTART or without, and see whether its call goes on."""
    a, b = link.pair()
    if timeout:
        b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
    buffer = ctypes.create_string_buffer(9)
    with _handled(restart) as interrupt:
        words = ("recv", b.fileno(), buffer, ctypes.c_size_t(9), 0)
        reader = Sleeper(outcome, native.checked, *words).asleep("recv")
        link.cross()
        reader.asleep("recv")
        interrupt(reader)
        if goes_on:
            reader.asleep("recv")
        else:
            wait_for(lambda: not reader.is_alive(), "the signal ends the call")
        a.sendall(b"x")
        said = reader.result()
        arrived(b, 0 if goes_on else 1)
        return said


@row("EINTR")
def interrupted(link):
    """A signal ends a sleeping call, and no byte is lost."""
    return _interrupt(link, restart=False, goes_on=False)


@row("EINTR: send()")
def interrupted_send(link):
    """A signal ends a sleeping send() with the count of what was sent, which comes, or with EINTR."""
    a, b = link.pair()
    data = pattern(MUCH // 16) * 16
    a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
    words = ("send", a.fileno(), data, ctypes.c_size_t(len(data)), 0)
    seen = []
    with _handled(restart=False) as interrupt:
        writer = Sleeper(outcome, native.checked, *words).asleep("send")
        link.cross()
        writer.asleep("send")
        interrupt(writer)
        count = writer.result()
        seen += [0 < count < len(data), take(b, count) == data[:count]]
        sent = stuff(a)
        said = 0
        # An acknowledgement may have made room meanwhile.
        while isinstance(said, int):
            sent += data[:said]
            writer = Sleeper(outcome, native.checked, *words).asleep("send")
            interrupt(writer)
            said = writer.result()
        seen.append(said)
    seen.append(take(b, len(sent)) == sent)
    a.sendall(b"after")
    return [*seen, b.recv(9)]


@row("SA_RESTART")
def restarted(link):
    """A sleeping call goes on after the signal."""
    return _interrupt(link, restart=True, goes_on=True)


@row("SA_RESTART with SO_RCVTIMEO")
def restarted_timeout(link):
    """A call with a timeout is not restarted."""
    return _interrupt(link, restart=True, goes_on=False, timeout=struct.pack("ll", 60, 0))


@row("connect(AF_UNSPEC)")
def disconnect(link):
    """Resets the connection; the socket can connect again, and is promoted again."""
    a, b = link.pair()
    a.sendall(b"left")
    arrived(b, 4)
    link.cross()
    native.checked("connect", a.fileno(), struct.pack("H14x", socket.AF_UNSPEC), 16)
    pending(b)
    seen = [ending(b), outcome(a.getpeername), outcome(a.recv, 1)]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        a.connect(listener.getsockname())
        c, _ = listener.accept()
    link.adopt(a, c)
    a.sendall(b"again")
    return [*seen, take(c, 5)]


@row("TCP_DEFER_ACCEPT", crosses=False)
def defer_accept(link):
    """Accepted once there are bytes, which are read first."""
    listener = link.own(socket.create_server(("127.0.0.1", 0)))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 5)
    a = socket.create_connection(listener.getsockname())
    accepting = Sleeper(listener.accept)
    a.sendall(b"first")
    b, _ = accepting.result()
    seen = [take(b, 5)]
    link.adopt(a, b)
    a.sendall(b"more")
    return [*seen, take(b, 4)]


def sysctl(name, value):
    """A kernel setting for the length of the block."""
    return setting("/proc/sys/" + name.replace(".", "/"), value)


@row("TCP_FASTOPEN, MSG_FASTOPEN", crosses=False)
def fastopen(link):
    """Bytes that came with the SYN come first; the connection is promoted as others are."""
    with sysctl("net.ipv4.tcp_fastopen", 0x603):
        listener = link.own(socket.create_server(("127.0.0.1", 0)))
        listener.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN, 5)
        a = socket.socket()
        seen = [a.sendto(b"with the SYN", socket.MSG_FASTOPEN, listener.getsockname())]
        b, _ = listener.accept()
        seen.append(take(b, 12))
        link.adopt(a, b)
        a.sendall(b"more")
        return [*seen, take(b, 4)]


@row("MSG_FASTOPEN on a connection")
def fastopen_connected(link):
    """Is refused as TCP refuses it, and sends nothing."""
    a, b = link.pair()
    link.cross()
    seen = [outcome(a.sendto, b"x", socket.MSG_FASTOPEN, b.getsockname())]
    with sysctl("net.ipv4.tcp_fastopen", 0):
        seen.append(outcome(a.sendto, b"x", socket.MSG_FASTOPEN, b.getsockname()))
    a.sendall(b"y")
    return [*seen, b.recv(9)]


@row("MSG_FASTOPEN where connect() did not wait", demotes="STATE", crosses=False)
def fastopen_late(link):
    """Sends, where connect() was not called again: TCP takes it for that call."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        first = link.own(socket.create_connection(listener.getsockname()))
        a = socket.socket()
        a.setblocking(False)
        # There is no place for it before the first one is accepted.
        waits = a.connect_ex(listener.getsockname()) == errno.EINPROGRESS
        link.own(listener.accept()[0])
        b, _ = listener.accept()
    link.adopt(a, b)
    first.close()
    select.select([], [a], [])
    a.settimeout(PATIENCE)
    a.sendall(b"before")
    seen = [outcome(a.sendto, b"with", socket.MSG_FASTOPEN, b.getsockname())]
    link.demoted("STATE")
    a.sendall(b"after")
    return [waits, *seen, take(b, 15)]


@row("SYN cookies", crosses=False)
def syn_cookies(link):
    """A connection that came by one is promoted as others are."""
    with sysctl("net.ipv4.tcp_syncookies", 2):
        a, b = link.pair()
        a.sendall(b"hello")
        return take(b, 5)


@row("connections nobody has accepted", crosses=False)
def unaccepted(link):
    """What is sent before accept() is there after it; a full queue holds others up, not these."""
    listener = link.own(socket.socket())
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    a = socket.create_connection(listener.getsockname())
    data = pattern(10000)
    a.sendall(data)
    with socket.socket() as late:
        late.setblocking(False)
        poll = select.poll()
        poll.register(late, select.POLLOUT)
        seen = [outcome(late.connect, listener.getsockname()), poll.poll(100)]
        b, _ = listener.accept()
        seen.append(take(b, 10000) == data)
        link.adopt(a, b)
        a.sendall(b"more")
        seen.append(take(b, 4))
        seen.append([mask for _, mask in poll.poll(PATIENCE * 1000)])
        seen.append(late.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        late.setblocking(True)
        _, c = link.adopt(late, listener.accept()[0])
        late.sendall(b"late")
        return [*seen, take(c, 4)]


@row("a socket connected to itself", crosses=False)
def self_connected(link):
    """Opens both ends at once (a simultaneous open) and reads what it writes."""
    a = link.own(socket.socket())
    a.bind(("127.0.0.1", 0))
    a.connect(a.getsockname())
    link.adopt(a, a)
    a.sendall(b"hello")
    return take(a, 5)


@row("SO_KEEPALIVE, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT", crosses=False)
def keepalive(link):
    """A peer that is out of reach ends in an error, as over TCP."""
    a, b = link.pair()
    a.sendall(b"x")
    b.recv(1)
    for option, value in ((socket.TCP_KEEPIDLE, 1), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 1)):
        a.setsockopt(socket.IPPROTO_TCP, option, value)
    a.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    reader = Sleeper(a.recv, 9).asleep("recv")
    wait_for(lambda: not unacknowledged(a), "all is acknowledged: else TCP would not probe")
    with no_packets():
        return outcome(reader.result)


@row("TCP_USER_TIMEOUT", crosses=False)
def user_timeout(link):
    """Ends a connection whose peer is out of reach after this time, however many probes may be lost."""
    a, b = link.pair()
    a.sendall(b"x")
    b.recv(1)
    for option, value in ((socket.TCP_KEEPIDLE, 1), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 100)):
        a.setsockopt(socket.IPPROTO_TCP, option, value)
    a.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1500)
    a.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    reader = Sleeper(a.recv, 9).asleep("recv")
    wait_for(lambda: not unacknowledged(a), "all is acknowledged: else TCP would not probe")
    with no_packets():
        return outcome(reader.result)


@row("a simultaneous open", crosses=False)
def simultaneous_open(link):
    """Two sockets that connect to each other at once are promoted as others are, and read what was sent."""
    subprocess.run(["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "300ms"], check=True)
    try:
        a, b = wait_for(_meet, "two SYNs cross")
    finally:
        subprocess.run(["tc", "qdisc", "del", "dev", "lo", "root"], check=True)
    link.adopt(a, b)
    a.sendall(b"there")
    seen = [take(b, 5)]
    b.sendall(b"back")
    return [*seen, take(a, 4)]


def _meet():
    """Connect two sockets to each other before either's SYN is there; None if one was too early."""
    ends = socket.socket(), socket.socket()
    for end in ends:
        end.bind(("127.0.0.1", 0))
        end.setblocking(False)
    for end, other in (ends, ends[::-1]):
        assert end.connect_ex(other.getsockname()) == errno.EINPROGRESS, "connect() does not begin"
    for end in ends:
        select.select([], [end], [], PATIENCE)
        if end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            for unmet in ends:
                unmet.close()
            return None
        end.setblocking(True)
    return ends
