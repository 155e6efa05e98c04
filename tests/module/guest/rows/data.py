# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Bytes in and out."""

from __future__ import annotations

import array
import contextlib
import fcntl
import functools
import os
import select
import socket
import struct
import tempfile
import termios

import native
from pairs import Sleeper, fill, pattern, take, wait_for
from row import outcome, row

SIOCOUTQNSD = 0x894B
HALF = 3000
WHOLE = 2 * HALF


def _asked(sock, request):
    said = array.array("i", [-1])
    fcntl.ioctl(sock, request, said)
    return said[0]


def waiting(sock):
    """Return how many bytes are there to read (SIOCINQ)."""
    return _asked(sock, termios.FIONREAD)


def unacknowledged(sock):
    """Return how many bytes the peer has not acknowledged (SIOCOUTQ)."""
    return _asked(sock, termios.TIOCOUTQ)


def unsent(sock):
    """Return how many of these have not even been sent (SIOCOUTQNSD)."""
    return _asked(sock, SIOCOUTQNSD)


def arrived(sock, count):
    """Wait until this number of bytes is there to read."""
    wait_for(lambda: waiting(sock) == count, f"{count} bytes are there")


def is_probed(a):
    """Tell whether TCP has asked a peer that has closed its window once more; or need not."""
    said = a.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    probes, backoff = said[3], said[4]
    (held,) = struct.unpack_from("I", said, 144)
    return not held or (backoff and not probes)


def full(a, poll):
    """
    Tell whether nothing fits, nor will. What TCP has on its way makes room when it is acknowledged,
    and a peer that has closed its window may have found room when it is asked once more.
    """
    for _ in range(25):
        idle = unacknowledged(a) == unsent(a) and is_probed(a)
        if poll.poll(80):
            return False
        if idle:
            break
    return True


def stuff(a):
    """Send from here until nothing fits any more; return the bytes that fit."""
    a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
    poll = select.poll()
    poll.register(a, select.POLLOUT)
    sent = fill(a)
    while not full(a, poll):
        sent += fill(a)
    return sent


def half_read(link, send, receive):
    """Send a pattern by halves; the carrier changes when a half of the first half is read."""
    a, b = link.pair()
    data = pattern(WHOLE)
    counts = [send(a, data[:HALF])]
    arrived(b, HALF)
    parts = [receive(b, HALF // 2)]
    link.cross()
    counts.append(send(a, data[HALF:]))
    arrived(b, WHOLE - HALF // 2)
    parts.append(receive(b, WHOLE))
    while sum(map(len, parts)) < WHOLE:
        parts.append(receive(b, WHOLE))
    assert b"".join(parts) == data, "other bytes came than were sent"
    return counts, b"".join(parts)


@row("read(), write()")
def read_write(link):
    """The bytes come in order."""
    return half_read(
        link, lambda s, data: os.write(s.fileno(), data), lambda s, count: os.read(s.fileno(), count)
    )


@row("readv(), writev()")
def readv_writev(link):
    """Vectors are filled one after the other."""

    def receive(sock, count):
        parts = [bytearray(count // 3), bytearray(1), bytearray(count - count // 3 - 1)]
        got = os.readv(sock.fileno(), parts)
        return b"".join(parts)[:got]

    return half_read(link, lambda s, data: os.writev(s.fileno(), [data[:7], b"", data[7:]]), receive)


@row("send(), recv()")
def send_recv(link):
    """The bytes come in order."""
    return half_read(link, lambda s, data: s.send(data), lambda s, count: s.recv(count))


@row("recv(), blocked")
def recv_blocked(link):
    """A reader that sleeps while the carrier changes gets what is sent after."""
    a, b = link.pair()
    reader = Sleeper(b.recv, 99).asleep("recv")
    link.cross()
    a.sendall(b"hello")
    return reader.result()


@row("send(), blocked")
def send_blocked(link):
    """A writer that sleeps while the carrier changes returns when all is sent."""
    a, b = link.pair()
    sent = stuff(a)
    data = pattern(WHOLE * 10)
    writer = Sleeper(a.send, data).asleep("send")
    link.cross()
    assert take(b, len(sent)) == sent, "other bytes came than were sent"
    assert take(b, len(data)) == data, "other bytes came than were sent by the sleeper"
    return writer.result()


@row("sendto(), recvfrom()")
def sendto_recvfrom(link):
    """An address to send to is ignored, one to come from is not given."""
    there = ("127.0.0.1", 9)
    return half_read(link, lambda s, data: s.sendto(data, there), lambda s, count: s.recvfrom(count)[0])


@row("recvfrom(): the address")
def recvfrom_address(link):
    """Streams name no sender."""
    a, b = link.pair()
    link.cross()
    a.sendall(b"whose?")
    return b.recvfrom(99)


@row("sendmsg(), recvmsg()")
def sendmsg_recvmsg(link):
    """Bytes, flags and control data."""
    seen = []

    def receive(sock, count):
        got, control, flags, address = sock.recvmsg(count, 512)
        seen.append((control, flags, address))
        return got

    return half_read(link, lambda s, data: s.sendmsg([data[:1000], data[1000:]]), receive), set(
        map(str, seen)
    )


@row("sendmsg(): control data")
def sendmsg_control(link):
    """Of another level it is ignored; of the socket's and unknown, refused."""
    a, b = link.pair()
    link.cross()
    seen = []
    for level, kind in ((socket.SOL_SOCKET, 9999), (socket.SOL_IP, 9999), (socket.SOL_SOCKET, 1)):
        words = ([b"x"], [(level, kind, b"\0" * 4)])
        seen.append(outcome(a.sendmsg, *words))
    a.sendall(b"y")
    wanted = 1 + sum(1 for said in seen if said == 1)
    return seen, take(b, wanted)


@row("sendmmsg()")
def sendmmsg(link):
    """Each message's count."""
    a, b = link.pair()
    parts = [pattern(700), b"", pattern(2000), pattern(3)]
    seen = [native.sendmmsg(a, parts)]
    link.cross()
    seen.append(native.sendmmsg(a, parts))
    return seen, take(b, 2 * 2703) == 2 * b"".join(parts)


@row("recvmmsg()")
def recvmmsg(link):
    """Fills each message's buffer in turn, and returns short rather than wait again."""
    a, b = link.pair()
    data = pattern(3000)
    a.sendall(data)
    arrived(b, 3000)
    first = native.recvmmsg(b, [1000, 500])
    link.cross()
    a.sendall(data)
    arrived(b, 4500)
    rest = native.recvmmsg(b, [1000, 2000, 1000, 1000, 1000], socket.MSG_DONTWAIT)
    got = b"".join(first + rest)
    got += take(b, 6000 - len(got))
    return [len(part) for part in first + rest], got == 2 * data


@row("an empty message")
def empty(link):
    """Sending nothing sends nothing; reading nothing does not wait."""
    a, b = link.pair()

    def nothing():
        """Python's own recv(0) makes no call."""
        words = (b.fileno(), None, native.ctypes.c_size_t(0), socket.MSG_DONTWAIT)
        return outcome(native.checked, "recv", *words)

    seen = [a.send(b""), nothing()]
    link.cross()
    seen += [a.send(b""), nothing()]
    a.sendall(b"x")
    arrived(b, 1)
    return [*seen, nothing(), b.recv(9)]


@row("MSG_PEEK")
def peek(link):
    """Shows bytes, of both carriers at once, and leaves them."""
    a, b = link.pair()
    data = pattern(WHOLE)
    a.sendall(data[:HALF])
    arrived(b, HALF)
    seen = [b.recv(100, socket.MSG_PEEK) == data[:100]]
    link.cross()
    a.sendall(data[HALF:])
    arrived(b, WHOLE)
    seen += [b.recv(WHOLE, socket.MSG_PEEK) == data for _ in range(2)]
    return [*seen, b.recv(WHOLE, socket.MSG_PEEK | socket.MSG_WAITALL) == data, take(b, WHOLE) == data]


@row("MSG_PEEK with MSG_WAITALL")
def peek_waitall(link):
    """Waits until all is there, and leaves it; or shows what there is when no more will come."""
    a, b = link.pair()
    data = pattern(WHOLE)
    a.sendall(data[:HALF])
    peeker = Sleeper(b.recv, WHOLE, socket.MSG_PEEK | socket.MSG_WAITALL).asleep("recv")
    link.cross()
    peeker.asleep("recv")
    a.sendall(data[HALF:])
    seen = [peeker.result() == data, waiting(b)]
    peeker = Sleeper(b.recv, 2 * WHOLE, socket.MSG_PEEK | socket.MSG_WAITALL).asleep("recv")
    a.shutdown(socket.SHUT_WR)
    return [*seen, peeker.result() == data, take(b, WHOLE) == data]


@row("one recv() over both carriers")
def across(link):
    """Returns all that is there and fits, wherever it came from."""
    a, b = link.pair()
    a.sendall(pattern(1000))
    arrived(b, 1000)
    link.cross()
    a.sendall(pattern(1000))
    arrived(b, 2000)
    return b.recv(2000) == 2 * pattern(1000)


@row("SO_PEEK_OFF")
def peek_off(link):
    """Where the kernel's TCP has it, peeking goes on where it stopped."""
    so_peek_off = 42
    a, b = link.pair()
    data = pattern(WHOLE)
    seen = [outcome(b.setsockopt, socket.SOL_SOCKET, so_peek_off, 0)]
    a.sendall(data[:HALF])
    arrived(b, HALF)
    flags = socket.MSG_PEEK | socket.MSG_DONTWAIT
    seen += [b.recv(100, flags), b.recv(100, flags)]
    link.cross()
    a.sendall(data[HALF:])
    arrived(b, WHOLE)
    seen += [b.recv(200, flags), b.recv(50), b.recv(100, flags)]
    seen.append(outcome(b.getsockopt, socket.SOL_SOCKET, so_peek_off))
    return seen, take(b, WHOLE - 50) == data[50:]


@row("MSG_WAITALL")
def waitall(link):
    """Waits for all, over both carriers."""
    a, b = link.pair()
    data = pattern(WHOLE)
    reader = Sleeper(b.recv, WHOLE, socket.MSG_WAITALL).asleep("recv")
    a.sendall(data[:HALF])
    link.cross()
    a.sendall(data[HALF:])
    return reader.result() == data


@row("MSG_TRUNC")
def trunc(link):
    """Throws bytes away and counts them."""
    a, b = link.pair()
    data = pattern(WHOLE)
    a.sendall(data[:HALF])
    arrived(b, HALF)
    seen = [len(b.recv(1000, socket.MSG_TRUNC))]
    link.cross()
    a.sendall(data[HALF:])
    arrived(b, WHOLE - 1000)
    count = native.checked("recv", b.fileno(), None, native.ctypes.c_size_t(1500), socket.MSG_TRUNC)
    return [*seen, count, take(b, WHOLE - 2500) == data[2500:]]


@row("MSG_DONTWAIT")
def dontwait(link):
    """EAGAIN where there is nothing, and where nothing fits."""
    a, b = link.pair()
    seen = [outcome(b.recv, 1, socket.MSG_DONTWAIT)]
    sent = stuff(a)
    # An acknowledgement may have made room since.
    while (said := outcome(a.send, b"x", socket.MSG_DONTWAIT)) == 1:
        sent += b"x" + stuff(a)
    seen.append(said)
    link.cross()
    assert take(b, len(sent)) == sent, "other bytes came than were sent"
    seen.append(outcome(b.recv, 1, socket.MSG_DONTWAIT))
    wait_for(lambda: outcome(a.send, b"x", socket.MSG_DONTWAIT) == 1, "there is space")
    return [*seen, take(b, 1)]


@row("O_NONBLOCK")
def nonblock(link):
    """As MSG_DONTWAIT, for every call."""
    a, b = link.pair()
    b.setblocking(False)
    seen = [outcome(b.recv, 1)]
    link.cross()
    seen.append(outcome(os.read, b.fileno(), 1))
    a.sendall(b"x")
    arrived(b, 1)
    return [*seen, b.recv(9)]


@row("MSG_MORE")
def more(link):
    """Nothing is held back for good, nor by a switch before the rest."""
    (a, b), (c, d) = link.pair(), link.pair()
    data = pattern(WHOLE)
    seen = [end.send(data[:1000], socket.MSG_MORE) for end in (a, c)]
    link.cross()
    seen.append(take(d, 1000) == data[:1000])
    seen.append(c.send(data, socket.MSG_MORE))
    seen.append(take(d, WHOLE) == data)
    seen += [a.send(data[1000:HALF], socket.MSG_MORE), a.send(data[HALF:])]
    return [*seen, take(b, WHOLE) == data]


@row("TCP_CORK, TCP_NODELAY")
def cork(link):
    """Can be set and read back; what is corked comes when the cork is out."""
    seen = []
    ends = {option: link.pair() for option in (socket.TCP_CORK, socket.TCP_NODELAY)}
    for option, (a, _) in ends.items():
        a.setsockopt(socket.IPPROTO_TCP, option, 1)
        seen.append(a.getsockopt(socket.IPPROTO_TCP, option))
        seen.append(a.send(b"small"))
    link.cross()
    for option, (a, b) in ends.items():
        seen.append(a.getsockopt(socket.IPPROTO_TCP, option))
        seen.append(a.send(b"and"))
        a.setsockopt(socket.IPPROTO_TCP, option, 0)
        seen.append(a.getsockopt(socket.IPPROTO_TCP, option))
        seen.append(take(b, 8))
    return seen


@row("send(): memory that can't be read")
def send_fault(link):
    """EFAULT, and nothing is sent of what could be read."""
    a, b = link.pair()
    fenced = native.Fenced(pattern(100))
    seen = [outcome(fenced.send, a, 200), outcome(fenced.send, a, 100)]
    link.cross()
    seen += [outcome(fenced.send, a, 200), outcome(fenced.send, a, 100)]
    return seen, take(b, 200) == 2 * pattern(100), outcome(b.recv, 1, socket.MSG_DONTWAIT)


@row("recv(): memory that can't be written")
def recv_fault(link):
    """EFAULT, and no byte is lost."""
    a, b = link.pair()
    fenced = native.Fenced(bytes(100))
    a.sendall(pattern(200))
    arrived(b, 200)
    seen = [outcome(fenced.recv, b, 200)]
    link.cross()
    seen.append(outcome(fenced.recv, b, 200))
    return seen, waiting(b), take(b, 200) == pattern(200)


@row("sendfile()")
def sendfile(link):
    """From a file, while the carrier changes under it."""
    size = 1 << 19
    a, b = link.pair()
    a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
    with tempfile.TemporaryFile() as file:
        file.write(pattern(size))
        file.flush()
        writer = Sleeper(os.sendfile, a.fileno(), file.fileno(), 0, size).asleep("sendfile")
        head = take(b, 1000)
        link.cross()
        got = head + take(b, size - 1000)
        return writer.result(), got == pattern(size)


@contextlib.contextmanager
def pipe():
    """A pipe for the length of the block."""
    out, into = os.pipe()
    try:
        yield out, into
    finally:
        os.close(out)
        os.close(into)


@row("splice() out of a socket")
def splice_out(link):
    """Waits, moves what is there, and says EAGAIN where the socket may not wait."""
    a, b = link.pair()
    with pipe() as (out, into):
        splicer = Sleeper(os.splice, b.fileno(), into, 9999).asleep("splice")
        link.cross()
        a.sendall(b"hello")
        seen = [splicer.result(), os.read(out, 99)]
        b.setblocking(False)
        seen.append(outcome(os.splice, b.fileno(), into, 9))
        b.setblocking(True)
        a.sendall(pattern(WHOLE))
        arrived(b, WHOLE)
        got = b""
        while len(got) < WHOLE:
            got += os.read(out, os.splice(b.fileno(), into, WHOLE))
        a.shutdown(socket.SHUT_WR)
        return seen, got == pattern(WHOLE), os.splice(b.fileno(), into, 9)


@row("splice(SPLICE_F_NONBLOCK)")
def splice_nonblock(link):
    """Concerns the pipe alone: the call waits for the socket."""
    a, b = link.pair()
    with pipe() as (out, into):
        splicer = Sleeper(
            functools.partial(os.splice, b.fileno(), into, 99, flags=os.SPLICE_F_NONBLOCK)
        ).asleep("splice")
        link.cross()
        a.sendall(b"hello")
        return splicer.result(), os.read(out, 99)


@row("splice() into a socket")
def splice_in(link):
    """The pipe's bytes come, those of later splices too."""
    a, b = link.pair()
    with pipe() as (out, into):
        seen = []
        for part in (pattern(WHOLE)[:HALF], pattern(WHOLE)[HALF:]):
            os.write(into, part)
            seen.append(os.splice(out, a.fileno(), HALF))
            link.cross()
        return seen, take(b, WHOLE) == pattern(WHOLE)


@row("tee(), vmsplice()")
def tee_vmsplice(link):
    """Memory and copies of pipes go out; what came can be copied on."""
    a, b = link.pair()
    data = pattern(5000)
    with pipe() as (out, into), pipe() as (out2, into2):
        memory = native.ctypes.create_string_buffer(data, 5000)
        seen = [native.vmsplice(into, memory), native.tee(out, into2, 5000)]
        seen.append(os.splice(out, a.fileno(), 5000))
        link.cross()
        seen.append(os.splice(out2, a.fileno(), 5000))
        arrived(b, 10000)
        got = b""
        while len(got) < 10000:
            count = os.splice(b.fileno(), into, 10000)
            assert native.tee(out, into2, count) == count, "tee() copied another count"
            once, again = os.read(out, count), os.read(out2, count)
            assert once == again, "the copy differs"
            got += once
        return seen, got == 2 * data
