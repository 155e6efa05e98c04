# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Which waiters are notified, and when."""

from __future__ import annotations

import array
import fcntl
import os
import select
import signal
import socket
import struct
import termios

from pairs import PATIENCE, Sleeper, pattern, take, wait_for
from row import outcome, row

from .data import arrived, full, stuff, unsent, waiting

IN, OUT, EDGE = select.EPOLLIN, select.EPOLLOUT, select.EPOLLET
ONESHOT, EXCLUSIVE, RDHUP = select.EPOLLONESHOT, select.EPOLLEXCLUSIVE, select.EPOLLRDHUP
TCP_NOTSENT_LOWAT = 25
SO_SNDLOWAT = 19


def masks(events):
    """Return the event masks that epoll or poll reported."""
    return [mask for _, mask in events]


def drained(a, b, sent):
    """Read all that fills a connection, so that it can be written again."""
    assert take(b, len(sent)) == sent, "other bytes came than were sent"


@row("select()")
def select_call(link):
    """Readable and writable are what they are, and a sleeper is woken although the carrier changes."""
    (a, b), (c, d) = link.pair(), link.pair()

    def ready():
        return [len(found) for found in select.select([b], [a], [a, b], 0)]

    seen = [ready()]
    sent = stuff(a)
    seen.append(ready())
    reader = Sleeper(select.select, [d], [], [], PATIENCE).asleep("select")
    writer = Sleeper(select.select, [], [a], [], PATIENCE).asleep("select")
    link.cross()
    reader.asleep("select")
    seen.append(len(select.select([b], [], [], PATIENCE)[0]))
    drained(a, b, sent)
    seen.append(len(writer.result()[1]))
    wait_for(lambda: ready() == [0, 1, 0], "there is space, and nothing to read")
    c.sendall(b"x")
    return seen, len(reader.result()[0]), d.recv(9)


@row("poll()")
def poll_call(link):
    """A poller that sleeps while the carrier changes is woken by what comes after."""
    a, b = link.pair()
    poll = select.poll()
    poll.register(b, select.POLLIN | select.POLLOUT)
    seen = [masks(poll.poll(0))]
    poll.modify(b, select.POLLIN)
    sleeper = Sleeper(poll.poll, PATIENCE * 1000).asleep("poll")
    link.cross()
    a.sendall(b"12345")
    seen += [masks(sleeper.result()), masks(poll.poll(0)), b.recv(5), masks(poll.poll(0))]
    a.sendall(b"6")
    return [*seen, masks(poll.poll(PATIENCE * 1000)), b.recv(9)]


@row("poll(): space")
def poll_space(link):
    """A poller that waits for space is woken when the reader made some."""
    a, b = link.pair()
    poll = select.poll()
    poll.register(a, select.POLLOUT)
    sent = stuff(a)
    sleeper = Sleeper(poll.poll, PATIENCE * 1000).asleep("poll")
    link.cross()
    drained(a, b, sent)
    return masks(sleeper.result()), masks(poll.poll(0))


@row("epoll, level-triggered")
def epoll_level(link):
    """Reported as long as there is something, by whatever carrier it came."""
    a, b = link.pair()
    epoll = link.own(select.epoll())
    epoll.register(b, IN)
    seen = [masks(epoll.poll(0))]
    sleeper = Sleeper(epoll.poll, PATIENCE).asleep("epoll")
    a.sendall(b"1234")
    seen += [masks(sleeper.result()), b.recv(2), masks(epoll.poll(0))]
    link.cross()
    seen += [masks(epoll.poll(0)), b.recv(2), masks(epoll.poll(0))]
    a.sendall(b"5")
    return [*seen, masks(epoll.poll(PATIENCE)), b.recv(9), masks(epoll.poll(0))]


@row("epoll, edge-triggered: reading", crosses=False)
def epoll_edge_reading(link):
    """An edge for all that arrives, whether or not what was there has been read; none without."""
    a, b = link.pair()
    epoll = link.own(select.epoll())
    epoll.register(b, IN | EDGE)
    seen = [masks(epoll.poll(0))]
    for turn in range(3):
        a.sendall(b"12345")
        seen += [masks(epoll.poll(PATIENCE)), masks(epoll.poll(0))]
        a.sendall(b"67890")
        seen += [masks(epoll.poll(PATIENCE)), b.recv(3), masks(epoll.poll(0))]
        a.sendall(b"x")
        seen += [masks(epoll.poll(PATIENCE)), b.recv(8), masks(epoll.poll(0))]
        sleeper = Sleeper(epoll.poll, PATIENCE).asleep("epoll")
        a.sendall(b"%d" % turn)
        seen += [masks(sleeper.result()), b.recv(99), outcome(b.recv, 9, socket.MSG_DONTWAIT)]
    return seen


@row("epoll, edge-triggered: across a switch")
def epoll_edge_across(link):
    """A sleeper gets an edge for what comes after the carrier changed."""
    a, b = link.pair()
    epoll = link.own(select.epoll())
    epoll.register(b, IN | EDGE)
    epoll.poll(0)
    a.sendall(b"12345")
    seen = [masks(epoll.poll(PATIENCE)), b.recv(3)]

    def edge():
        while found := masks(epoll.poll(PATIENCE)):
            if waiting(b) > 2:  # a switch may show as an edge
                break
        return found

    sleeper = Sleeper(edge).asleep("epoll")
    link.cross()
    sleeper.asleep("epoll")
    a.sendall(b"6")
    return [*seen, sleeper.result(), b.recv(3), outcome(b.recv, 9, socket.MSG_DONTWAIT)]


@row("epoll, edge-triggered: writing")
def epoll_edge_writing(link):
    """An edge when what was full has space."""
    a, b = link.pair()
    epoll = link.own(select.epoll())
    epoll.register(a, OUT | EDGE)
    seen = [masks(epoll.poll(0)), masks(epoll.poll(0))]
    sent = stuff(a)
    epoll.poll(0)
    sleeper = Sleeper(epoll.poll, PATIENCE).asleep("epoll")
    link.cross()
    drained(a, b, sent)
    return [*seen, masks(sleeper.result())]


@row("EPOLLONESHOT")
def epoll_oneshot(link):
    """Once, until it is asked for again."""
    a, b = link.pair()
    epoll = link.own(select.epoll())
    epoll.register(b, IN | ONESHOT)
    a.sendall(b"1")
    seen = [masks(epoll.poll(PATIENCE)), masks(epoll.poll(0))]
    a.sendall(b"2")
    seen.append(masks(epoll.poll(0)))
    link.cross()
    seen.append(masks(epoll.poll(0)))
    epoll.modify(b, IN | ONESHOT)
    arrived(b, 2)
    return [*seen, masks(epoll.poll(PATIENCE)), masks(epoll.poll(0)), b.recv(9)]


@row("EPOLLEXCLUSIVE")
def epoll_exclusive(link):
    """An arrival wakes one of two sleepers, the next one the other."""
    a, b = link.pair()
    epolls = [link.own(select.epoll()) for _ in range(2)]
    for epoll in epolls:
        epoll.register(b, IN | EXCLUSIVE)
    sleepers = [Sleeper(epoll.poll, PATIENCE).asleep("epoll") for epoll in epolls]
    link.cross()
    a.sendall(b"1")
    wait_for(lambda: not all(s.is_alive() for s in sleepers), "a sleeper is woken")
    others = [sleeper for sleeper in sleepers if sleeper.is_alive()]
    assert others, "both sleepers are woken"
    others[0].asleep("epoll")
    a.sendall(b"2")
    return [masks(sleeper.result()) for sleeper in sleepers], take(b, 2)


@row("epoll, nested")
def epoll_nested(link):
    """An epoll within an epoll tells of its socket."""
    a, b = link.pair()
    inner, outer = link.own(select.epoll()), link.own(select.epoll())
    inner.register(b, IN | EDGE)
    outer.register(inner, IN)
    seen = [masks(outer.poll(0))]
    sleeper = Sleeper(outer.poll, PATIENCE).asleep("epoll")
    link.cross()
    a.sendall(b"1")
    seen.append(masks(sleeper.result()))
    # a switch may show as an edge, without anything to read
    seen.append(masks(inner.poll(PATIENCE))[-1:])
    return [*seen, b.recv(9)]


@row("EPOLLRDHUP, POLLHUP")
def hangups(link):
    """Half closed and closed are reported as TCP reports them."""
    a, b = link.pair()
    epoll = link.own(select.epoll())
    epoll.register(b, IN | OUT | RDHUP)
    a.sendall(b"last")
    link.cross()
    a.shutdown(socket.SHUT_WR)
    wait_for(lambda: masks(epoll.poll(0)) == [IN | OUT | RDHUP], "the FIN is here")
    seen = [masks(epoll.poll(0)), b.recv(9), masks(epoll.poll(0)), b.recv(9), masks(epoll.poll(0))]
    b.shutdown(socket.SHUT_WR)
    wait_for(lambda: masks(epoll.poll(0))[0] & select.EPOLLHUP, "both halves are closed")
    return [*seen, masks(epoll.poll(0))]


def _signals(link, ask):
    """Count the signals that arrivals make; `ask` makes the socket send them, to us."""
    a, b = link.pair()
    a.sendall(b"1")
    arrived(b, 1)
    b.recv(1)  # all there is, as a program does that knows its protocol
    got = []
    before = signal.signal(signal.SIGIO, lambda *_: got.append(1))
    try:
        ask(b)
        for turn, read in enumerate((0, 1, 2, 9)):
            if turn == 2:
                link.cross()
                got.clear()
            a.sendall(b"x")
            wait_for(lambda: got, f"a signal for arrival {turn}")
            got.clear()
            if read:
                b.recv(read)
        return fcntl.fcntl(b, fcntl.F_GETOWN) == os.getpid()
    finally:
        fcntl.fcntl(b, fcntl.F_SETFL, 0)
        signal.signal(signal.SIGIO, before)


@row("F_SETOWN, O_ASYNC")
def sigio_fcntl(link):
    """A signal for each arrival, read or not."""

    def ask(sock):
        fcntl.fcntl(sock, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(sock, fcntl.F_SETFL, os.O_ASYNC)

    return _signals(link, ask)


@row("FIOASYNC, FIOSETOWN")
def sigio_ioctl(link):
    """The same, asked for by ioctl()."""

    def ask(sock):
        fcntl.ioctl(sock, 0x8901, struct.pack("i", os.getpid()))  # FIOSETOWN
        fcntl.ioctl(sock, termios.FIOASYNC, array.array("i", [1]))

    return _signals(link, ask)


@row("SO_RCVLOWAT")
def rcvlowat(link):
    """Readers and pollers wait for this number of bytes, counted over both carriers."""
    a, b = link.pair()
    b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 100)
    poll, slept = select.poll(), select.poll()
    poll.register(b, select.POLLIN)
    slept.register(b, select.POLLIN)
    a.sendall(bytes(50))
    arrived(b, 50)
    seen = [masks(poll.poll(0)), len(b.recv(10))]
    sleeper = Sleeper(slept.poll, PATIENCE * 1000).asleep("poll")
    link.cross()
    a.sendall(bytes(59))
    arrived(b, 99)
    seen += [masks(poll.poll(0)), len(b.recv(9, socket.MSG_PEEK))]
    a.sendall(bytes(1))
    seen += [masks(sleeper.result()), len(b.recv(999)), masks(poll.poll(0))]
    reader = Sleeper(b.recv, 999).asleep("recv")
    a.sendall(bytes(99))
    arrived(b, 99)
    reader.asleep("recv")
    a.sendall(bytes(1))
    return [*seen, len(reader.result()), b.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)]


@row("splice() and SO_RCVLOWAT")
def splice_lowat(link):
    """Takes what is there, be it less."""
    a, b = link.pair()
    b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 100)
    out, into = os.pipe()
    seen = []
    try:
        for _ in range(2):
            a.sendall(bytes(50))
            arrived(b, 50)
            seen += [os.splice(b.fileno(), into, 999), len(os.read(out, 999))]
            link.cross()
    finally:
        os.close(out)
        os.close(into)
    return seen


@row("SO_SNDLOWAT")
def sndlowat(link):
    """Can't be changed."""
    a, b = link.pair()
    link.cross()
    seen = [outcome(a.setsockopt, socket.SOL_SOCKET, SO_SNDLOWAT, 100)]
    a.sendall(b"x")
    return [*seen, a.getsockopt(socket.SOL_SOCKET, SO_SNDLOWAT), b.recv(9)]


@row("TCP_NOTSENT_LOWAT")
def notsent_lowat(link):
    """Writable is what has less than half of it unsent; full is not, read is."""
    a, b = link.pair()
    a.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, 4096)
    b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)  # for good
    poll = select.poll()
    poll.register(a, select.POLLOUT)
    seen = [masks(poll.poll(0))]
    sent = bytearray()

    def filled():
        """Send whenever the socket is writable until it is not; return whether each send succeeded."""
        right = True
        while not full(a, poll):
            right &= unsent(a) < 2048
            # The buffers of a host hold megabytes: small pieces take long to fill them.
            piece = pattern(4000 if len(sent) < 200_000 else 64_000, len(sent))
            sent.extend(piece[: a.send(piece, socket.MSG_DONTWAIT)])
        return right

    seen += [filled(), masks(poll.poll(0))]
    link.cross()
    drained(a, b, sent)
    seen.append(masks(poll.poll(PATIENCE * 1000)))
    sent.clear()
    seen += [filled(), masks(poll.poll(0))]
    drained(a, b, sent)
    seen.append(masks(poll.poll(PATIENCE * 1000)))
    return [
        *seen,
        a.getsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT),
        a.send(pattern(100)),
        len(take(b, 100)),
    ]
