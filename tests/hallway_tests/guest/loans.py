# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Packets in ring memory that the kernel lends: /dev/hallway-loan (abi/hallway/loan.h).

loans.py serve PORT              echo each packet of each connection, from ring to ring, until killed
loans.py echo CID PORT BYTES     have packets echoed; print what was wrong
loans.py calls CID PORT          what calls see; PORT is that of `tunnel serve`
loans.py stale CID PORT BYTES    write into the mapping of a ring that has ended, and have packets echoed by
                                 other tunnels meanwhile; print what was wrong
loans.py blank CID PORT          print how many bytes of a new tunnel's rings are not 0, the packet sent aside
loans.py hold CID PORT           find a packet; after a line of the input, print what release and recv() say
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import random
import select
import socket
import struct
import sys
import threading
from collections.abc import Iterator

import tunnel
from tunnel import NAME, failure

DEVICE = "/dev/hallway-loan"
ATTACH, SEND, RECEIVE = 0xC02048E0, 0xC01848E1, 0xC01848E2
ATTACH_FIELDS, CALL_FIELDS = "=iIIIQQ", "=6I"
NONE, FOUND, END = 0, 1, 2  # HALLWAY_LOAN_*
EOR = 1
LONGEST = (256 << 10) - 8  # bytes of a packet
MANY = 40  # tunnels that get the memory of one that has ended
LARGE = 60_000  # bytes of the largest packet that is echoed


class Loan:
    """The rings of a connection, mapped."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.file = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
        asked = fcntl.ioctl(self.file, ATTACH, struct.pack(ATTACH_FIELDS, sock.fileno(), 0, 0, 0, 0, 0))
        _, _, self.tx_size, self.rx_size, self.tx_at, self.rx_at = struct.unpack(ATTACH_FIELDS, asked)
        self.tx = self.map(2 * self.tx_size, mmap.PROT_READ | mmap.PROT_WRITE, self.tx_at)
        self.rx = self.map(2 * self.rx_size, mmap.PROT_READ, self.rx_at)

    def map(self, length: int, prot: int, at: int, flags: int = mmap.MAP_SHARED) -> mmap.mmap:
        """Map a part of the device."""
        return mmap.mmap(self.file, length, flags, prot, offset=at)

    def call(self, command: int, *fields: int) -> tuple[int, ...]:
        """Make a call with these first fields; return all."""
        words = (*fields, *[0] * (6 - len(fields)))
        return struct.unpack(CALL_FIELDS, fcntl.ioctl(self.file, command, struct.pack(CALL_FIELDS, *words)))

    def wait(self, event: int) -> None:
        """Wait until the socket may be ready."""
        poll = select.poll()
        poll.register(self.sock, event)
        poll.poll()

    def reserve(self, length: int) -> int:
        """Return where a message of that length may be written."""
        while True:
            _, _, _, state, offset, _ = self.call(SEND, 0, 0, length)
            if state == FOUND:
                return offset
            self.wait(select.POLLOUT)

    def send(self, message: bytes, flags: int = 0) -> None:
        """Write a message in place."""
        offset = self.reserve(len(message))
        self.tx[offset : offset + len(message)] = message
        self.call(SEND, len(message), flags)

    def look(self) -> tuple[int, int, int, int]:
        """Wait for a message or the end; return state, offset, length and flags."""
        while True:
            _, state, offset, length, flags, _ = self.call(RECEIVE)
            if state != NONE:
                return state, offset, length, flags
            self.wait(select.POLLIN)

    def receive(self) -> bytes:
        """Read a message in place; none is the end."""
        state, offset, length, _ = self.look()
        if state == END:
            return b""
        message = self.rx[offset : offset + length]
        self.call(RECEIVE, 1)
        return message

    def close(self) -> None:
        """Give it back."""
        self.tx.close()
        self.rx.close()
        os.close(self.file)


def connect(cid: int, port: int, service: str = "") -> socket.socket:
    """Return a connection, with the name of a service sent."""
    sock = socket.socket(socket.AF_VSOCK, socket.SOCK_SEQPACKET)
    tunnel.connect(sock, cid, port)
    if service:
        sock.sendall(service.ljust(NAME).encode())
    return sock


def messages(seed: int, total: int) -> Iterator[bytes]:
    """Yield messages of all lengths, of `total` bytes together at least."""
    draw, done = random.Random(seed), 0
    while done < total:
        length = draw.choice(
            (1, 7, 8, 4096, draw.randrange(1, 60_000), LARGE if draw.random() < 0.1 else 100)
        )
        yield draw.randbytes(length)
        done += length


def serve(port: int) -> None:
    """Echo what comes, from ring to ring."""
    listener = socket.socket(socket.AF_VSOCK, socket.SOCK_SEQPACKET)
    listener.bind((socket.VMADDR_CID_ANY, port))
    listener.listen(200)
    print("ready", flush=True)

    def echo(sock: socket.socket) -> None:
        loan = Loan(sock)
        try:
            while message := loan.receive():
                loan.send(message)
        except ConnectionError:
            pass
        finally:
            loan.close()
            sock.close()

    while True:
        threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()


def exchange(sock: socket.socket, seed: int, total: int, lent: bool) -> str:
    """Have messages echoed; return what was wrong."""
    loan = Loan(sock) if lent else None
    sent = 0

    def send() -> None:
        nonlocal sent
        for message in messages(seed, total):
            loan.send(message) if loan else sock.sendall(message)
            sent += 1
        sock.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    for number, wanted in enumerate(messages(seed, total)):
        found = loan.receive() if loan else sock.recv(LONGEST)
        if found != wanted:
            return f"message {number}: {len(found)} bytes, not {len(wanted)}, or others"
    end = loan.receive() if loan else sock.recv(LONGEST)
    sender.join()
    if loan:
        loan.close()
    return "bytes behind the end" if end else ""


def _attach_in_fault(sock: socket.socket) -> str:
    """Attach, where the answer cannot be written; return the error."""
    libc = ctypes.CDLL(None, use_errno=True)
    page = mmap.mmap(-1, mmap.PAGESIZE)
    page.write(struct.pack(ATTACH_FIELDS, sock.fileno(), 0, 0, 0, 0, 0))
    address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    assert not libc.mprotect(address, mmap.PAGESIZE, mmap.PROT_READ)
    with open(DEVICE, "r+b", buffering=0) as file:
        assert libc.ioctl(file.fileno(), ATTACH, address) == -1
    return errno.errorcode[ctypes.get_errno()]


def blank(cid: int, port: int) -> list[int]:
    """Return how many bytes of both rings are not 0."""
    sent = b"echo".ljust(NAME)
    with connect(cid, port, sent.decode()) as sock:
        loan = Loan(sock)
        at = loan.tx[:].find(sent)
        rings = loan.tx[at + NAME : loan.tx_size], loan.rx[: loan.rx_size]
        loan.close()
    return [len(ring) - ring.count(0) for ring in rings]


def calls(cid: int, port: int) -> dict[str, object]:
    """Return what calls see."""
    seen: dict[str, object] = {}
    with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as stream, socket.socket() as tcp:
        seen["stream"] = failure(lambda: Loan(stream))
        seen["TCP"] = failure(lambda: Loan(tcp))
    with open(os.devnull) as file:
        seen["no socket"] = failure(lambda: Loan(file))  # type: ignore[arg-type]
    with socket.socket(socket.AF_VSOCK, socket.SOCK_SEQPACKET) as unconnected:
        seen["unconnected"] = failure(lambda: Loan(unconnected))
    with connect(cid, port, "echo") as sock:
        seen["fault"] = _attach_in_fault(sock)
        loan = Loan(sock)
        seen["second"] = failure(lambda: Loan(sock))
        attach = struct.pack(ATTACH_FIELDS, sock.fileno(), 0, 0, 0, 0, 0)
        seen["again"] = failure(lambda: fcntl.ioctl(loan.file, ATTACH, attach))
        size, both, private = loan.rx_size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE
        seen["map to write"] = failure(lambda: loan.map(size, both, loan.rx_at))
        seen["map privately"] = failure(lambda: loan.map(size, mmap.PROT_READ, loan.rx_at, private))
        seen["map more"] = failure(lambda: loan.map(2 * size + 4096, mmap.PROT_READ, loan.rx_at))
        seen["map elsewhere"] = failure(lambda: loan.map(4096, mmap.PROT_READ, loan.tx_at + 4096))
        seen["map another's"] = failure(lambda: loan.map(4096, mmap.PROT_READ, loan.tx_at + (64 << 20)))
        seen["commit without"] = failure(lambda: loan.call(SEND, 1))
        loan.reserve(5)
        seen["send meanwhile"] = failure(lambda: sock.send(b"x"))
        seen["commit more"] = failure(lambda: loan.call(SEND, 6))
        seen["given up"] = failure(lambda: loan.call(SEND, 5))
        seen["unknown flag"] = failure(lambda: loan.call(SEND, 0, 2))
        seen["too long"] = failure(lambda: loan.call(SEND, 0, 0, LONGEST + 1))
        seen["far too long"] = failure(lambda: loan.call(SEND, 0, 0, 0xFFFFFFFF))
        seen["longest"] = failure(lambda: loan.call(SEND, 0, 0, LONGEST))
        loan.call(SEND)
        seen["release without"] = failure(lambda: loan.call(RECEIVE, 1))
        seen["nothing"] = loan.call(RECEIVE)[1] == NONE
        sock.send(b"one")
        loan.look()
        seen["recv in between"] = sock.recv(9).decode()
        seen["release of that"] = failure(lambda: loan.call(RECEIVE, 1))
        loan.send(b"two", EOR)
        seen["mixed"] = sock.recv(9).decode()
        sock.shutdown(socket.SHUT_WR)
        seen["after shutdown"] = failure(lambda: loan.call(SEND, 0, 0, 1))
        seen["end"] = loan.look()[0] == END
        loan.close()
    with connect(cid, port, "eor") as sock:
        loan, records = Loan(sock), []
        for _ in range(3):
            _, _, length, flags = loan.look()
            records.append((length, flags))
            loan.call(RECEIVE, 1)
        seen["records"] = records
        # The memory is not the program's any more once it is closed.
        kept = loan.map(4096, mmap.PROT_READ, loan.rx_at)
        loan.close()
        seen["taken up again"] = failure(lambda: Loan(sock).close())
        kept.close()
    child = os.fork() if (loan := Loan(connect(cid, port, "echo"))) else 0
    if not child:
        loan.tx[0]  # which ends it
        os._exit(0)
    seen["a child's"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    loan.close()
    return seen


def stale(cid: int, port: int, total: int) -> list[str]:
    """Write into a ring that has ended, while other tunnels use its memory; return their errors."""
    with connect(cid, port, "echo") as sock:
        loan = Loan(sock)
        loan.send(b"x")
        assert loan.receive() == b"x"
        sock.shutdown(socket.SHUT_WR)
        assert loan.look()[0] == END
        poll = select.poll()
        poll.register(sock, 0)
        assert poll.poll(60_000), "the peer has read all, and has closed"
        over = threading.Event()

        def scribble() -> None:
            while not over.is_set():
                loan.tx[:] = b"\xff" * len(loan.tx)

        writer = threading.Thread(target=scribble, daemon=True)
        writer.start()
        wrong = [exchange(connect(cid, port, "echo"), seed, total, lent=seed % 2 > 0) for seed in range(MANY)]
        over.set()
        writer.join()
        # The page in its place is that of the other ring, too.
        if set(loan.rx[:]) - {0xFF}:
            wrong.append("the ring that was read has others' bytes")
        loan.close()
    return [text for text in wrong if text]


def hold(cid: int, port: int) -> None:
    """Find a packet, and look at it again once the peer has gone."""
    sock = connect(cid, port, "say")
    loan = Loan(sock)
    _, offset, length, _ = loan.look()
    print(loan.rx[offset : offset + length].decode(), flush=True)
    sys.stdin.readline()
    said = [failure(lambda: loan.call(RECEIVE, 1)), failure(lambda: loan.call(SEND, 0, 0, 1))]
    # Neither is a signal.
    loan.tx[0] = loan.rx[0]
    said += [sock.recv(99).decode() for _ in range(3)]
    said.append(failure(lambda: sock.recv(9)))
    print(json.dumps(said), flush=True)


def main() -> None:
    """Do what the words say."""
    action, *words = sys.argv[1:]
    numbers = [int(word) for word in words]
    if action == "serve":
        serve(*numbers)
    elif action == "hold":
        hold(*numbers)
    elif action == "echo":
        cid, port, total = numbers
        service = "" if port >= 6000 else "echo"
        print(json.dumps(exchange(connect(cid, port, service), 1, total, lent=True)))
    else:
        print(json.dumps({"calls": calls, "stale": stale, "blank": blank}[action](*numbers)))
