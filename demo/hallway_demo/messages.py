# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Messages over TCP, each after its length, and over SOCK_SEQPACKET: their rate, and their round trip.

The same for datagrams, over UDP and over SOCK_DGRAM of AF_VSOCK, of which few are on their way at once.

messages.py serve PORT
messages.py rate LENGTH SECONDS FAMILY ADDRESS PORT    prints messages a second, and how many
messages.py trip LENGTH SECONDS FAMILY ADDRESS PORT    prints microseconds, the median, and how many

FAMILY is tcp, vsock, udp or vsock-datagram.
"""

from __future__ import annotations

import select
import socket
import statistics
import sys
import threading
import time

HEAD = 4
STEP = 32  # datagrams of which one is answered
PATIENCE = 10


class Peer:
    """A connection that carries messages."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.packets = sock, sock.type == socket.SOCK_SEQPACKET
        self._file = None if self.packets else sock.makefile("rb", 1 << 16)
        if not self.packets:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: bytes) -> None:
        """Send a message."""
        self.sock.sendall(message if self.packets else len(message).to_bytes(HEAD, "big") + message)

    def receive(self) -> bytes:
        """Return the next message; none at the end."""
        if self._file is None:
            return self.sock.recv(1 << 18)
        head = self._file.read(HEAD)
        return self._file.read(int.from_bytes(head, "big")) if head else b""


def _serve_one(peer: Peer) -> None:
    echoes = peer.receive() == b"trip"
    count = 0
    while message := peer.receive():
        if int.from_bytes(message[:8], "big") != count:
            raise ValueError(f"message {count} is another one")
        count += 1
        if echoes:
            peer.send(message)
    peer.send(str(count).encode())
    peer.sock.close()


def _answer(sock: socket.socket) -> None:
    """Send datagrams back: each that begins with 1."""
    while True:
        message, sender = sock.recvfrom(1 << 16)
        if message[0]:
            sock.sendto(message, sender)


def _datagrams(family: str) -> socket.socket:
    return socket.socket(socket.AF_INET if family == "udp" else socket.AF_VSOCK, socket.SOCK_DGRAM)


def serve(port: int) -> None:
    """Serve all families, until killed."""
    for family, any_address in (("udp", ""), ("vsock-datagram", socket.VMADDR_CID_ANY)):
        sock = _datagrams(family)
        sock.bind((any_address, port))
        threading.Thread(target=_answer, args=(sock,), daemon=True).start()
    tcp = socket.create_server(("", port))
    vsock = socket.socket(socket.AF_VSOCK, socket.SOCK_SEQPACKET)
    vsock.bind((socket.VMADDR_CID_ANY, port))
    vsock.listen(8)
    while True:
        for listener in select.select([tcp, vsock], [], [])[0]:
            peer = Peer(listener.accept()[0])
            threading.Thread(target=_serve_one, args=(peer,), daemon=True).start()


def _connect(family: str, address: str, port: int) -> Peer:
    if family == "tcp":
        return Peer(socket.create_connection((address, port)))
    sock = socket.socket(socket.AF_VSOCK, socket.SOCK_SEQPACKET)
    sock.connect((int(address), port))
    return Peer(sock)


def measure(what: str, length: int, seconds: float, peer: Peer) -> None:
    """Print the figures."""
    peer.send(what.encode())
    rest = bytes(length - 8)
    count, trips = 0, []
    begin = time.perf_counter()
    while (now := time.perf_counter()) < begin + seconds:
        peer.send(count.to_bytes(8, "big") + rest)
        if what == "trip":
            peer.receive()
            trips.append(time.perf_counter() - now)
        count += 1
    peer.sock.shutdown(socket.SHUT_WR)
    got = int(peer.receive())
    took = time.perf_counter() - begin
    if got != count:
        raise ValueError(f"{count} messages were sent, {got} arrived")
    _report(trips, count, took)


def _report(trips: list[float], count: int, took: float) -> None:
    print(statistics.median(trips) * 1e6 if trips else count / took, count)


def measure_datagrams(what: str, length: int, seconds: float, sock: socket.socket) -> None:
    """Print the figures. At most two steps are on their way: no buffer is full."""
    step, ahead = (1, 0) if what == "trip" else (STEP, 1)
    rest = bytes(length - 9)
    count, trips = 0, []
    poll = select.poll()
    poll.register(sock, select.POLLIN)

    def receive(number: int) -> None:
        """Take the answer to the last one of a step."""
        if ahead and not poll.poll(PATIENCE * 1000):
            raise TimeoutError(f"datagram {number} was lost")
        if int.from_bytes(sock.recv(1 << 16)[1:9], "big") != number:
            raise ValueError(f"the answer is not to {number}")

    begin = time.perf_counter()
    while (now := time.perf_counter()) < begin + seconds:
        for _ in range(step):
            count += 1
            sock.send(bytes([count % step == 0]) + count.to_bytes(8, "big") + rest)
        if count > ahead * step:
            receive(count - ahead * step)
        trips.append(time.perf_counter() - now)
    if ahead:
        receive(count)
    _report(trips if what == "trip" else [], count, time.perf_counter() - begin)


def main() -> None:
    """Do what the command line says."""
    what, *rest = sys.argv[1:]
    if what == "serve":
        serve(int(rest[0]))
    length, seconds, family, address, port = rest
    if family in ("udp", "vsock-datagram"):
        sock = _datagrams(family)
        sock.connect((address if family == "udp" else int(address), int(port)))
        measure_datagrams(what, int(length), float(seconds), sock)
    else:
        measure(what, int(length), float(seconds), _connect(family, address, int(port)))


if __name__ == "__main__":
    main()
