# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Sockets of AF_VSOCK between two guests, or within one: a server, and what clients see of it.

    tunnel.py serve PORT                      serve both types at a port, until killed
    tunnel.py echo TYPE CID PORT BYTES CONNS  have bytes echoed on connections at once, check each
    tunnel.py trips TYPE CID PORT COUNT       have a byte echoed as often; print how many came back
    tunnel.py rows CID PORT                   what each call of ROWS sees
    tunnel.py hear TYPE PORT BACKLOG          listen; accept, read, write and close as the input says
    tunnel.py tell TYPE CID PORT BYTES        send bytes, and sleep
    tunnel.py half TYPE CID PORT              shut down for writing; read or poll as the input says
    tunnel.py try TYPE CID PORT TIMES [SECONDS]  connect as often, keep each; say what came of it, and whether
                                              a connect() that may take as long gave up sooner
    tunnel.py keep PORT BACKLOG               keep a listener's lock in a page fault till a line of input
    tunnel.py shut CID PORT                   shut down before connect() is answered
    tunnel.py hangups CID PORT COUNT          poll for as many ends; print how many are reported
    tunnel.py begin CID PORT TIMES            begin as many connections; print how many come about
    tunnel.py smaller CID PORT                send a packet after a larger one that found too little space
    tunnel.py name TYPE PORT                  print the CID of each that greets
    tunnel.py greet TYPE CID PORT             send a word, and sleep
    tunnel.py talk CID PORT CONNS FILE        have bytes echoed without end; say in the file what came of it

TYPE is stream or packet; for name and greet datagram, too. A connection of `serve` begins with the
name of what the server does.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import json
import os
import random
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

TYPES = {"stream": socket.SOCK_STREAM, "packet": socket.SOCK_SEQPACKET}
NAME = 16  # bytes of the name of a service
MOST = 60_000  # bytes of a message
TALK = 300_000  # bytes of a connection of `talk`
PATIENCE = 60
# The core keeps a socket for as long as its connect() may take, also once it is closed: the
# module can be unloaded after that.
CONNECTING = 30
SOON = 20  # seconds, for what comes at once
MOST_AWAY = 500e-6  # seconds that a program does something else before it reads
RCVLOWAT_BYTES = 30
MANY = 30_000  # bytes that no small end holds
BUFFER = 256 << 10  # bytes that an end holds at most, if its program says nothing
CONNECT_TIMEOUT = 6  # SO_VM_SOCKETS_CONNECT_TIMEOUT_OLD
NOBODY = 65534
SMALL = 4096  # bytes of a ring where there are many

Row = Callable[["Caller"], object]


class HasFileno(Protocol):
    """What has a descriptor of a socket."""

    def fileno(self) -> int:
        """Return it."""


ROWS: list[Row] = []


def row(function: Row) -> Row:
    """Add a row: it returns what a program sees, which is the same on every transport."""
    ROWS.append(function)
    return function


def content(seed: int, length: int) -> bytes:
    """Return bytes that no other seed gives."""
    return random.Random(seed).randbytes(length)


def lengths(seed: int, total: int) -> list[int]:
    """Return lengths of messages, from 1 byte on, which are `total` bytes together."""
    draw, found = random.Random(seed), []
    while total:
        found.append(min(total, draw.choice((1, 7, 8, 64, 1000, 4096, draw.randrange(1, MOST)))))
        total -= found[-1]
    return found


def take(sock: socket.socket, length: int) -> bytes:
    """Receive this number of bytes, or fewer at the end."""
    found = b""
    while len(found) < length and (piece := sock.recv(length - len(found))):
        found += piece
    return found


# -- the server ----------------------------------------------------------------


def _echo(sock: socket.socket) -> None:
    while piece := sock.recv(MOST):
        sock.sendall(piece)


def _say(sock: socket.socket) -> None:
    for piece in (b"a" * 10, b"b" * 20, b"c" * 5):
        sock.sendall(piece)
    sock.recv(1)


def _eor(sock: socket.socket) -> None:
    for flag in (0, socket.MSG_EOR, 0):
        sock.send(b"one", flag)
    sock.recv(1)


def _count(sock: socket.socket) -> None:
    total = 0
    while piece := sock.recv(MOST):
        total += len(piece)
    sock.sendall(str(total).encode())


def _deaf(sock: socket.socket) -> None:
    sock.shutdown(socket.SHUT_RD)
    sock.sendall(b"deaf")
    with contextlib.suppress(OSError):
        select.select([], [], [sock], 2)


def _mute(sock: socket.socket) -> None:
    sock.sendall(b"last")
    sock.shutdown(socket.SHUT_WR)
    _until_closed(sock)


def _busy(sock: socket.socket) -> None:
    """Read nothing until the other end is closed for writing, then all."""
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP)
    poll.poll(PATIENCE * 1000)
    _until_closed(sock)


def _until_closed(sock: socket.socket) -> None:
    while sock.recv(MOST):
        pass


def _flood(sock: socket.socket) -> None:
    sock.sendall(bytes(3 * BUFFER))


def _wait(sock: socket.socket) -> None:
    """Say whether poll() found the bytes that it waited for, or all that can be there."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, MANY)
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    sock.sendall(b"woken" if poll.poll(SOON * 1000) else b"asleep")
    _until_closed(sock)


def _close(sock: socket.socket) -> None:
    pass


SERVICES = {
    "echo": _echo,
    "say": _say,
    "eor": _eor,
    "count": _count,
    "deaf": _deaf,
    "mute": _mute,
    "busy": _busy,
    "flood": _flood,
    "wait": _wait,
    "close": _close,
}


def _served(sock: socket.socket) -> None:
    with sock, contextlib.suppress(ConnectionError):
        SERVICES[take(sock, NAME).decode().strip()](sock)


def listen(kind: str, port: int, backlog: int = 200) -> socket.socket:
    """Return a listener."""
    listener = socket.socket(socket.AF_VSOCK, TYPES[kind])
    listener.bind((socket.VMADDR_CID_ANY, port))
    listener.listen(backlog)
    return listener


def serve(port: int) -> None:
    """Serve each type: streams at `port`, packets at the next one."""
    listeners = [listen(kind, port + place) for place, kind in enumerate(TYPES)]
    print("ready", flush=True)
    while True:
        for listener in select.select(listeners, [], [])[0]:
            threading.Thread(target=_served, args=(listener.accept()[0],), daemon=True).start()


# -- clients -------------------------------------------------------------------


class Caller:
    """A type of socket, and where the server is."""

    def __init__(self, kind: str, cid: int, port: int) -> None:
        self.kind, self.cid, self.port = kind, cid, port + list(TYPES).index(kind)

    def socket(self) -> socket.socket:
        """Return a socket of the type."""
        return socket.socket(socket.AF_VSOCK, TYPES[self.kind])

    def call(self, service: str) -> socket.socket:
        """Return a connection to a service."""
        sock = self.socket()
        connect(sock, self.cid, self.port)
        sock.sendall(service.ljust(NAME).encode())
        return sock


def failure(call: Callable[[], object]) -> str:
    """Return the name of the error of a call, or "none"."""
    try:
        call()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "none"


def patience(sock: HasFileno, seconds: float = PATIENCE, way: int = socket.SO_RCVTIMEO) -> None:
    """Have reads, or by SO_SNDTIMEO sends, wait for as long at most, while settimeout() would poll."""
    limit = struct.pack("qq", int(seconds), round(seconds % 1 * 1e6))
    # Python takes none but integers for AF_VSOCK.
    libc = ctypes.CDLL(None)
    assert not libc.setsockopt(sock.fileno(), socket.SOL_SOCKET, way, limit, len(limit))


def option(sock: socket.socket, name: int, length: int) -> bytes:
    """Return an option of AF_VSOCK, which Python reads as an integer alone."""
    libc, value, size = ctypes.CDLL(None, use_errno=True), (ctypes.c_char * length)(), ctypes.c_uint(length)
    if libc.getsockopt(sock.fileno(), socket.AF_VSOCK, name, value, ctypes.byref(size)):
        raise OSError(ctypes.get_errno(), "getsockopt")
    return value.raw[: size.value]


def set_connect_timeout(sock: socket.socket, seconds: int) -> None:
    """Have connect() wait for as long."""
    limit = struct.pack("qq", seconds, 0)
    libc = ctypes.CDLL(None)
    assert not libc.setsockopt(sock.fileno(), socket.AF_VSOCK, CONNECT_TIMEOUT, limit, len(limit))


def connect(sock: socket.socket, cid: int, port: int) -> None:
    """Connect, also to a guest that stands still for longer than the 2 s that connect() waits by itself."""
    set_connect_timeout(sock, PATIENCE)
    sock.connect((cid, port))


def events(sock: socket.socket, wanted: int, until: int) -> str:
    """Wait until poll() has reported these events, and return all that it reports."""
    poll = select.poll()
    poll.register(sock, wanted)
    deadline = time.monotonic() + PATIENCE
    seen = 0
    while seen & until != until and time.monotonic() < deadline:
        seen = next((bits for _, bits in poll.poll(1000)), 0)
    names = ("POLLIN", "POLLOUT", "POLLERR", "POLLHUP", "POLLRDHUP")
    return " ".join(name for name in names if seen & getattr(select, name))


@row
def echoed(caller: Caller) -> object:
    """Bytes come back; the end follows them."""
    with caller.call("echo") as sock:
        sock.sendall(b"hello")
        found = take(sock, 5)
        sock.shutdown(socket.SHUT_WR)
        return found.decode(), sock.recv(9).decode(), sock.recv(9).decode()


@row
def boundaries(caller: Caller) -> object:
    """Packets keep their boundaries; streams have none."""
    with caller.call("say") as sock:
        if caller.kind == "stream":
            return sock.recv(35, socket.MSG_WAITALL).decode()
        return [sock.recv(100).decode() for _ in range(3)]


@row
def truncated(caller: Caller) -> object:
    """The rest of a packet that does not fit is lost, and MSG_TRUNC says so."""
    if caller.kind == "stream":
        return None
    with caller.call("say") as sock:
        data, _, flags, _ = sock.recvmsg(4)
        # By recv() Python would show memory behind its buffer: the length is that of the packet.
        piece = bytearray(100)
        length = sock.recv_into(piece, 4, socket.MSG_TRUNC)
        return (
            data.decode(),
            bool(flags & socket.MSG_TRUNC),
            (length, piece.decode()),
            sock.recv(100).decode(),
        )


@row
def ends_of_records(caller: Caller) -> object:
    """MSG_EOR is the packet's; a stream has none. Nothing is sent of no bytes."""
    if caller.kind == "stream":
        return None
    with caller.call("echo") as sock:
        found = []
        for flag in (0, socket.MSG_EOR):
            sock.send(b"", flag)
            sock.send(b"one", flag)
            found.append(sock.recv(9).decode())
        with caller.call("eor") as other:
            records = [other.recvmsg(9) for _ in range(3)]
        return found, [(data.decode(), bool(flags & socket.MSG_EOR)) for data, _, flags, _ in records]


@row
def peeked(caller: Caller) -> object:
    """MSG_PEEK leaves bytes where they are."""
    with caller.call("say") as sock:
        events(sock, select.POLLIN, select.POLLIN)
        return [sock.recv(4, socket.MSG_PEEK).decode(), sock.recv(4).decode()]


@row
def not_blocking(caller: Caller) -> object:
    """Neither a read without bytes nor a write without space waits; both are possible later."""
    with caller.call("busy") as sock:
        sock.setblocking(False)
        empty = failure(lambda: sock.recv(1))
        poll = select.poll()
        poll.register(sock, select.POLLOUT)
        sent = 0
        while poll.poll(0):
            with contextlib.suppress(BlockingIOError):
                sent += sock.send(bytes(4096))
        full = "none"
        while full == "none":
            full = failure(lambda: sock.send(bytes(4096)))
        poll.register(sock, select.POLLIN | select.POLLOUT)
        idle = not poll.poll(0)
        sock.shutdown(socket.SHUT_WR)
        sock.setblocking(True)
        return empty, full, idle, sent > 0, sock.recv(1).decode()


@row
def shut(caller: Caller) -> object:
    """After shutdown(SHUT_WR) the server has all, and its answer is read."""
    with caller.call("count") as sock:
        sock.sendall(bytes(50_000))
        sock.shutdown(socket.SHUT_WR)
        return (
            sock.recv(100).decode(),
            failure(lambda: sock.send(b"x")),
            sock.recv(1).decode(),
        )


@row
def shut_for_reading(caller: Caller) -> object:
    """After shutdown(SHUT_RD) there is the end."""
    with caller.call("say") as sock:
        sock.shutdown(socket.SHUT_RD)
        return sock.recv(100).decode()


@row
def deaf(caller: Caller) -> object:
    """A peer that reads no more gives EPIPE."""
    with caller.call("deaf") as sock:
        said = take(sock, 4).decode()
        error, deadline = "none", time.monotonic() + PATIENCE
        while error == "none" and time.monotonic() < deadline:
            error = failure(lambda: sock.send(b"x", socket.MSG_NOSIGNAL))
        return said, error


@row
def mute(caller: Caller) -> object:
    """A peer that writes no more gives the end after its bytes, and still reads."""
    with caller.call("mute") as sock:
        said = take(sock, 4).decode()
        end = sock.recv(9).decode()
        return (
            said,
            end,
            events(sock, select.POLLIN | select.POLLRDHUP, select.POLLRDHUP),
            failure(lambda: sock.send(b"x")),
        )


@row
def closed(caller: Caller) -> object:
    """A peer that is gone gives the end, then EPIPE."""
    with caller.call("close") as sock:
        end = sock.recv(9).decode()
        error, deadline = "none", time.monotonic() + PATIENCE
        while error == "none" and time.monotonic() < deadline:
            error = failure(lambda: sock.send(b"x", socket.MSG_NOSIGNAL))
        return end, error


@row
def refused(caller: Caller) -> object:
    """No listener, and one of the other type."""
    with caller.socket() as one, caller.socket() as other:
        wrong = caller.port + (1 if caller.kind == "stream" else -1)
        return (
            failure(lambda: one.connect((caller.cid, 61))),
            failure(lambda: other.connect((caller.cid, wrong))),
        )


@row
def refused_later(caller: Caller) -> object:
    """A connect() that does not wait reports its refusal by poll() and SO_ERROR."""
    with caller.socket() as sock:
        sock.setblocking(False)
        begun = failure(lambda: sock.connect((caller.cid, 61)))
        seen = "POLLERR" in events(sock, select.POLLOUT, select.POLLERR)
        return (
            begun,
            seen,
            errno.errorcode.get(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)),
        )


@row
def connected_later(caller: Caller) -> object:
    """A connect() that does not wait ends with POLLOUT."""
    with caller.socket() as sock:
        set_connect_timeout(sock, CONNECTING)
        sock.setblocking(False)
        begun = failure(lambda: sock.connect((caller.cid, caller.port)))
        seen = events(sock, select.POLLOUT, select.POLLOUT)
        sock.setblocking(True)
        sock.sendall(b"echo".ljust(NAME) + b"x" if caller.kind == "stream" else b"echo".ljust(NAME))
        sock.sendall(b"y")
        return begun, seen, take(sock, 1 + (caller.kind == "stream")).decode()


@row
def names(caller: Caller) -> object:
    """The peer's name is what was called; the own one is a port."""
    with caller.call("echo") as sock:
        return sock.getpeername() == (caller.cid, caller.port), sock.getsockname()[1] > 1023


@row
def wrong(caller: Caller) -> object:
    """Calls that no connected socket takes."""
    with caller.call("echo") as sock:
        return (
            failure(lambda: sock.connect((caller.cid, caller.port))),
            failure(lambda: sock.sendto(b"x", (caller.cid, caller.port))),
            failure(lambda: sock.send(b"x", socket.MSG_OOB)),
            failure(lambda: sock.recv(1, socket.MSG_OOB)),
            failure(lambda: sock.recv(1, socket.MSG_DONTWAIT)),
        )


@row
def lowat(caller: Caller) -> object:
    """poll() waits for SO_RCVLOWAT bytes of a stream."""
    if caller.kind == "packet":
        return None
    with caller.call("echo") as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, RCVLOWAT_BYTES)
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        sock.sendall(bytes(RCVLOWAT_BYTES - 1))
        few = bool(poll.poll(300))
        sock.sendall(bytes(1))
        return few, bool(poll.poll(PATIENCE * 1000)), len(sock.recv(100))


@row
def lowat_of_most(caller: Caller) -> object:
    """poll() for more than half of what an end holds gets it from a writer that found it full."""
    if caller.kind == "packet":
        return None
    with caller.call("flood") as sock:
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, BUFFER)
        full = bool(poll.poll(SOON * 1000))
        take(sock, BUFFER // 8)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, BUFFER - BUFFER // 16)
        # Where it does not come, as with stock's own, it never does.
        return full, bool(poll.poll(SOON * 1000 / 4))


@row
def lowat_above_ring(caller: Caller) -> object:
    """poll() for more than the writer's end holds gets it as well."""
    if caller.kind == "packet":
        return None
    with caller.socket() as sock:
        sock.setsockopt(socket.AF_VSOCK, socket.SO_VM_SOCKETS_BUFFER_SIZE, SMALL)
        connect(sock, caller.cid, caller.port)
        sock.sendall(b"wait".ljust(NAME))
        sock.sendall(bytes(MANY))
        return sock.recv(NAME).decode()


@row
def timed_out(caller: Caller) -> object:
    """SO_RCVTIMEO ends a read."""
    with caller.call("echo") as sock:
        patience(sock, 0.05)
        return failure(lambda: sock.recv(1))


@row
def edges(caller: Caller) -> object:
    """An edge-triggered epoll reports each arrival, also where bytes are left."""
    with caller.call("echo") as sock, select.epoll() as poll:
        poll.register(sock, select.EPOLLIN | select.EPOLLET)
        seen = []
        for _ in range(5):
            sock.sendall(b"xx")
            seen.append(bool(poll.poll(PATIENCE)))
            if caller.kind == "stream":
                sock.recv(1)
        return seen


@row
def buffer_sizes(caller: Caller) -> object:
    """A buffer's size is kept between its least and its most, which are 8 bytes each."""
    with caller.socket() as sock:
        names = ("SIZE", "MIN_SIZE", "MAX_SIZE")
        size, least, most = options = [getattr(socket, f"SO_VM_SOCKETS_BUFFER_{name}") for name in names]
        seen = []
        for name, value in ((size, 1), (most, 1 << 17), (least, 1 << 16), (size, 1), (size, 1 << 20)):
            sock.setsockopt(socket.AF_VSOCK, name, value)
            seen.append([struct.unpack("Q", option(sock, one, 8))[0] for one in options])
        return seen, failure(lambda: option(sock, size, 4)), failure(lambda: option(sock, 99, 8))


@row
def connect_timeout(caller: Caller) -> object:
    """How long connect() may wait is 2 s if the program says nothing."""
    with caller.socket() as sock:
        usual = struct.unpack("qq", option(sock, CONNECT_TIMEOUT, 16))
        set_connect_timeout(sock, 7)
        return usual, struct.unpack("qq", option(sock, CONNECT_TIMEOUT, 16))


@row
def low_ports(caller: Caller) -> object:
    """A port below 1024 needs CAP_NET_BIND_SERVICE."""

    def bind() -> int:
        with caller.socket() as sock:
            return ["none", "EACCES"].index(failure(lambda: sock.bind((socket.VMADDR_CID_ANY, 1023))))

    child = os.fork()
    if not child:
        os.setuid(NOBODY)
        os._exit(bind())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), bind()


def rows(cid: int, port: int) -> None:
    """Print what each row sees, for each type."""
    found = {}
    for kind in TYPES:
        for one in ROWS:
            try:
                seen = one(Caller(kind, cid, port))
            except OSError as error:
                seen = f"raises {errno.errorcode.get(error.errno or 0)}"
            found[f"{kind} {one.__name__}"] = seen
    print(json.dumps(found))


def _echo_checked(caller: Caller, seed: int, total: int, wrong: list[str]) -> None:
    sizes = lengths(seed, total)
    with caller.call("echo") as sock:

        def send() -> None:
            for place, size in enumerate(sizes):
                sock.sendall(content(seed + place, size))
            sock.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        for place, size in enumerate(sizes):
            got = sock.recv(MOST) if caller.kind == "packet" else take(sock, size)
            if got != content(seed + place, size):
                wrong.append(f"message {place} of {seed}: {len(got)} bytes, not {size}, or others")
                break
        else:
            if sock.recv(1):
                wrong.append("bytes after the end")
        sender.join()


def echo(kind: str, cid: int, port: int, total: int, conns: int) -> None:
    """Check that all bytes come back, on connections at once; print how many were sent."""
    caller, wrong = Caller(kind, cid, port), list[str]()

    def run(seed: int) -> None:
        try:
            _echo_checked(caller, seed, total, wrong)
        except OSError as error:
            wrong.append(f"{seed}: {error}")

    threads = [threading.Thread(target=run, args=(1_000_000 * n,)) for n in range(conns)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"wrong": wrong, "sent": conns * (total + NAME)}))


def trips(kind: str, cid: int, port: int, count: int) -> None:
    """Have one byte echoed as often as that: in turns by a read that waits, and by poll().

    The reads begin at any moment before or after the echo, also while it arrives.
    """
    draw, back = random.Random(count), 0
    with Caller(kind, cid, port).call("echo") as sock:
        patience(sock)
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        for number in range(count):
            sent = bytes([number % 256])
            sock.sendall(sent)
            until = time.perf_counter() + draw.uniform(0, MOST_AWAY)
            while time.perf_counter() < until:
                pass
            if number % 2 and not poll.poll(PATIENCE * 1000):
                break
            try:
                back += sock.recv(2) == sent
            except BlockingIOError:
                break
    print(json.dumps(back))


def _read_all(sock: socket.socket) -> str:
    """Read all there is; return how many bytes that were, and how they end."""
    total, end = 0, "end"
    try:
        while piece := sock.recv(MOST):
            total += len(piece)
    except OSError as error:
        end = errno.errorcode[error.errno or 0]
    return f"{total} {end}"


def hear(kind: str, port: int, backlog: int) -> None:
    """Accept, read and write as the input says, and print what came of each word."""
    listener, kept = listen(kind, port, backlog), list[socket.socket]()
    print("ready", flush=True)
    for line in sys.stdin:
        word = line.split()
        if word[0] == "accept":
            listener.settimeout(PATIENCE)
            kept.append(listener.accept()[0])
            print("accepted", flush=True)
        elif word[0] == "read":
            print(_read_all(kept[-1]), flush=True)
        elif word[0] == "write":
            kept[-1].sendall(bytes(int(word[1])))
            print("written", flush=True)
        elif word[0] == "close":
            kept.pop().close()
            print("closed", flush=True)


def tell(kind: str, cid: int, port: int, total: int) -> None:
    """Send bytes and go on living."""
    sock = socket.socket(socket.AF_VSOCK, TYPES[kind])
    connect(sock, cid, port)
    for at in range(0, total, 1000):
        sock.sendall(b"needle!!" + bytes(min(1000, total - at) - 8))
    print("sent", flush=True)
    sys.stdin.read()


def shut_first(kind: str, cid: int, port: int) -> None:
    """Send no more; read, or poll for the end, as the input says."""
    sock = socket.socket(socket.AF_VSOCK, TYPES[kind])
    connect(sock, cid, port)
    sock.shutdown(socket.SHUT_WR)
    print("shut", flush=True)
    for line in sys.stdin:
        if line.strip() == "poll":
            print(events(sock, select.POLLRDHUP, select.POLLRDHUP), flush=True)
        else:
            print(_read_all(sock), flush=True)


def attempt(kind: str, cid: int, port: int, times: int, seconds: int = PATIENCE) -> None:
    """Connect as often as that; print what came of each, then wait for the end of the input.

    `seconds`: connect() waits for as long; 0: for its usual time.
    """
    kept, found = [], []
    for _ in range(times):
        sock = socket.socket(socket.AF_VSOCK, TYPES[kind])
        if seconds:
            set_connect_timeout(sock, seconds)
        start = time.monotonic()
        found.append(failure(lambda: sock.connect((cid, port))))  # noqa: B023
        if found[-1] == "ETIMEDOUT" and time.monotonic() < start + seconds:
            found[-1] += " early"
        kept.append(sock)
    print(json.dumps(found), flush=True)
    sys.stdin.read()


def keep(port: int, backlog: int) -> None:
    """Have a thread hold the lock of a listener while its page is away; then accept and read all."""
    sys.path.append("/hallway/tests")
    from native import Unpaged

    listener, page = listen("stream", port, backlog), Unpaged()
    thread = threading.Thread(
        target=lambda: page.setsockopt(listener, socket.AF_VSOCK, socket.SO_VM_SOCKETS_BUFFER_SIZE, 8),
        daemon=True,
    )
    thread.start()
    place = Path(f"/proc/self/task/{thread.native_id}/wchan")
    while "handle_userfault" not in place.read_text():
        time.sleep(0.01)
    print("kept", flush=True)
    sys.stdin.readline()
    page.fill(struct.pack("Q", SMALL))
    thread.join()
    kept = [listener.accept()[0] for _ in range(backlog)]
    print(len(kept), flush=True)
    print(sum(not sock.recv(1) for sock in kept), flush=True)
    sys.stdin.read()


def smaller(cid: int, port: int) -> None:
    """Print what comes of packets of which the second finds too little space, and the third enough."""
    sock = socket.socket(socket.AF_VSOCK, socket.SOCK_SEQPACKET)
    connect(sock, cid, port)
    sock.setblocking(False)
    sizes = (200 << 10, 100 << 10, 1)
    print(json.dumps([failure(lambda: sock.send(bytes(size))) for size in sizes]), flush=True)  # noqa: B023


def shut_early(cid: int, port: int) -> None:
    """Shut down for writing before connect() is answered, and go on living."""
    sock = socket.socket(socket.AF_VSOCK)
    set_connect_timeout(sock, CONNECTING)
    sock.setblocking(False)
    begun = failure(lambda: sock.connect((cid, port)))
    print(begun, failure(lambda: sock.shutdown(socket.SHUT_WR)), flush=True)
    sys.stdin.read()


def hang_ups(cid: int, port: int, count: int) -> None:
    """Count the ends that a poll() for nothing else reports; it begins about when each comes."""
    draw, seen = random.Random(count), 0
    for _ in range(count):
        with Caller("stream", cid, port).call("mute") as sock:
            take(sock, 4)
            until = time.perf_counter() + draw.uniform(0, MOST_AWAY)
            while time.perf_counter() < until:
                pass
            poll = select.poll()
            poll.register(sock, select.POLLRDHUP)
            begun = time.perf_counter()
            poll.poll(SOON * 1000)
            # One that nothing wakes looks again when its time is over, and finds the end then.
            if time.perf_counter() - begun > SOON / 2:
                break
            seen += 1
    print(json.dumps(seen))


def begin(cid: int, port: int, times: int) -> None:
    """Connect without waiting; count the connections that are there after a line of the input."""
    kept = []
    for _ in range(times):
        sock = socket.socket(socket.AF_VSOCK)
        sock.setsockopt(socket.AF_VSOCK, socket.SO_VM_SOCKETS_BUFFER_SIZE, SMALL)
        set_connect_timeout(sock, CONNECTING)
        sock.setblocking(False)
        assert failure(lambda: sock.connect((cid, port))) == "EINPROGRESS"  # noqa: B023
        kept.append(sock)
    print("begun", flush=True)
    sys.stdin.readline()
    print(sum(events(sock, select.POLLOUT, select.POLLOUT) == "POLLOUT" for sock in kept), flush=True)
    sys.stdin.read()


def name_callers(kind: str, port: int) -> None:
    """Print the CID from which each word comes."""
    if kind != "datagram":
        listener = listen(kind, port)
        print("ready", flush=True)
        while True:
            sock, (cid, _) = listener.accept()
            assert sock.recv(NAME) == b"hello"
            print(cid, flush=True)
    sock = socket.socket(socket.AF_VSOCK, socket.SOCK_DGRAM)
    sock.bind((socket.VMADDR_CID_ANY, port))
    print("ready", flush=True)
    while True:
        _, (cid, _) = sock.recvfrom(NAME)
        print(cid, flush=True)


def greet(kind: str, cid: int, port: int) -> None:
    """Send a word and go on living."""
    sock = socket.socket(socket.AF_VSOCK, TYPES.get(kind, socket.SOCK_DGRAM))
    sock.connect((cid, port))
    sock.send(b"hello")
    sys.stdin.read()


def talk(cid: int, port: int, conns: int, file: str) -> None:
    """Have messages of both types echoed, on connections that follow each other, until killed.

    The file says how many came back, how many connections failed, the last error of these, and
    whether other bytes came.
    """
    counted, lock = {"echoed": 0, "failed": 0, "wrong": 0, "last_error": ""}, threading.Lock()

    def count(what: str) -> None:
        with lock:
            counted[what] += 1

    def converse(kind: str, seed: int) -> None:
        with Caller(kind, cid, port).socket() as sock:
            patience(sock)
            connect(sock, cid, port + list(TYPES).index(kind))
            sock.sendall(b"echo".ljust(NAME))
            for place, size in enumerate(lengths(seed, TALK)):
                sock.sendall(content(seed + place, size))
                got = sock.recv(MOST) if kind == "packet" else take(sock, size)
                if not got:
                    raise ConnectionResetError
                if got != content(seed + place, size):
                    count("wrong")
                count("echoed")

    def run(number: int) -> None:
        for turn in itertools.count():
            try:
                converse(list(TYPES)[number % 2], 1_000_000 * number + 1000 * turn)
            except OSError as error:
                count("failed")
                counted["last_error"] = repr(error)
                time.sleep(0.1)

    for number in range(conns):
        threading.Thread(target=run, args=(number,), daemon=True).start()
    while True:
        Path(f"{file}.new").write_text(json.dumps(counted))
        os.rename(f"{file}.new", file)
        time.sleep(0.2)


def main() -> None:
    """Do what the command line says."""
    word, *rest = sys.argv[1:]
    values = [int(one) if one.isdigit() else one for one in rest]
    commands = {
        "serve": serve,
        "echo": echo,
        "trips": trips,
        "rows": rows,
        "hear": hear,
        "tell": tell,
        "half": shut_first,
        "try": attempt,
        "keep": keep,
        "begin": begin,
        "shut": shut_early,
        "hangups": hang_ups,
        "smaller": smaller,
        "name": name_callers,
        "greet": greet,
        "talk": talk,
    }
    commands[word](*values)
    sys.stdout.flush()
    os._exit(0)  # no thread of `serve` holds it up


if __name__ == "__main__":
    main()
