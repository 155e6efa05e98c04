# SPDX-License-Identifier: Apache-2.0 OR MIT
"""One socket in several hands."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import threading

import native
from pairs import Sleeper, pattern, take
from row import row

PIDFD_GETFD = 438


def _child(work):
    """Run this in a child; return its exit code."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def _ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@row("fork()")
def fork(link):
    """Parent and child read and write one stream, a blocked child across the switch."""
    a, b = link.pair()
    out, into = os.pipe()
    a.sendall(pattern(1000))

    def work():
        os.write(into, take(b, 600))
        os.write(into, take(b, 600))
        b.sendall(b"from the child")

    pid = _child(work)
    got = b""
    while len(got) < 600:
        got += os.read(out, 600 - len(got))
    link.cross()
    a.sendall(pattern(1200)[1000:])
    while len(got) < 1200:
        got += os.read(out, 1200 - len(got))
    seen = [_ended(pid), got == pattern(1200), take(a, 14)]
    b.sendall(b"from the parent")
    os.close(out)
    os.close(into)
    return [*seen, take(a, 15)]


@row("exec()")
def execute(link):
    """Another program goes on where this one stopped."""
    a, b = link.pair()
    a.sendall(b"mine, ")
    seen = [take(b, 6)]
    code = "import os; d = os.read(0, 9); os.write(1, b'got ' + d)"
    program = subprocess.Popen([sys.executable, "-ISc", code], stdin=b.fileno(), stdout=b.fileno())
    link.cross()
    a.sendall(b"yours")
    seen.append(take(a, 9))
    return [*seen, program.wait()]


@row("dup()")
def dup(link):
    """The copy is the same socket, and outlives the first."""
    a, b = link.pair()
    copy = link.own(b.dup())
    a.sendall(b"12")
    seen = [b.recv(1), copy.recv(1)]
    link.cross()
    b.close()
    a.sendall(b"3")
    copy.sendall(b"4")
    return [*seen, copy.recv(9), a.recv(9)]


@row("SCM_RIGHTS")
def scm_rights(link):
    """A process that receives the socket reads on."""
    a, b = link.pair()
    left, right = (link.own(s) for s in socket.socketpair())
    a.sendall(b"123")
    seen = [b.recv(1)]
    socket.send_fds(left, [b"x"], [b.fileno()])
    link.cross()
    b.close()
    _, fds, _, _ = socket.recv_fds(right, 9, 1)
    taken = link.own(socket.socket(fileno=fds[0]))
    a.sendall(b"45")
    seen.append(take(taken, 4))
    taken.sendall(b"back")
    return [*seen, take(a, 4)]


@row("pidfd_getfd()")
def pidfd_getfd(link):
    """A process that takes the socket out of another one reads on."""
    a, b = link.pair()
    fd = b.fileno()
    out, into = os.pipe()
    pid = _child(lambda: os.read(out, 1))
    link.cross()
    b.close()
    pidfd = os.pidfd_open(pid)
    taken = native.checked("syscall", PIDFD_GETFD, pidfd, fd, 0)
    with socket.socket(fileno=taken) as c:
        a.sendall(b"there")
        seen = [take(c, 5)]
        c.sendall(b"back")
        seen.append(take(a, 4))
        os.write(into, b"x")
        seen.append(_ended(pid))
    for end in (pidfd, out, into):
        os.close(end)
    return seen


@row("many threads on one socket")
def threads(link):
    """Words written whole by several are read whole by several, each once."""
    word, count, hands = 64, 50, 4  # all of it fits into a ring: a full one may part words, as TCP may
    a, b = link.pair()

    def write(hand):
        for turn in range(count):
            said = a.send(b"%d.%06d;" % (hand, turn) * (word // 9 + 1), 0)
            assert said, "nothing was sent"

    size = 9 * (word // 9 + 1)

    def read():
        got = []
        for _ in range(count):
            piece = b.recv(size, socket.MSG_WAITALL)
            got.append(piece[:9])
        return got

    # Only one reads: the calls of several would take turns within a word on TCP too.
    reader = Sleeper(lambda: [piece for _ in range(hands) for piece in read()])
    writers = [Sleeper(write, hand) for hand in range(hands)]
    link.cross()
    for writer in writers:
        writer.result()
    words = reader.result()
    kept = all(
        [w for w in words if w.startswith(b"%d." % hand)] == [b"%d.%06d;" % (hand, n) for n in range(count)]
        for hand in range(hands)
    )
    return len(words), kept


@row("several readers and writers at once")
def readers_writers(link):
    """No byte is lost, none comes twice."""
    a, b = link.pair()
    total, hands = 40000, 4

    def write(value):
        for _ in range(total // 400):
            a.sendall(bytes([value]) * 400)

    def read():
        got = b""
        while piece := b.recv(333):
            got += piece
        return got

    readers = [Sleeper(read) for _ in range(hands)]
    writers = [Sleeper(write, value) for value in range(hands)]
    link.cross()
    for writer in writers:
        writer.result()
    a.shutdown(socket.SHUT_WR)
    got = b"".join(reader.result() for reader in readers)
    return [got.count(value) for value in range(hands)]


@row("sends and reads of one socket at once")
def full_duplex(link):
    """Each way comes as it was sent, while both ends send and read."""
    ends = link.pair()
    block = pattern(1 << 16)
    over = threading.Event()

    def write(sock):
        turns = 0
        while not over.is_set() or turns < 4:
            sock.sendall(block)
            turns += 1
        sock.shutdown(socket.SHUT_WR)
        return turns

    def read(sock):
        blocks = 0
        while sock.recv(1, socket.MSG_PEEK):
            assert take(sock, len(block)) == block, "other bytes came than were sent"
            blocks += 1
        return blocks

    readers = [Sleeper(read, end) for end in ends]
    writers = [Sleeper(write, end) for end in ends]
    link.cross()
    over.set()
    return [writer.result() - reader.result() for writer, reader in zip(writers, readers[::-1], strict=True)]


@row("close() while another thread sleeps")
def close_under_sleeper(link):
    """The sleeper's call goes on until its bytes come; the end comes after it."""
    a, b = link.pair()
    buffer = ctypes.create_string_buffer(9)
    reader = Sleeper(native.checked, "recv", b.fileno(), buffer, ctypes.c_size_t(9), 0).asleep("recv")
    link.cross()
    reader.asleep("recv")
    b.close()
    a.sendall(b"late")
    return reader.result(), buffer.raw[:4], a.recv(9)
