"""Messages over TCP, each after its length, and over SOCK_SEQPACKET: their rate, and their round trip.

messages.py serve PORT
messages.py rate LENGTH SECONDS tcp|vsock ADDRESS PORT    prints messages a second, and how many
messages.py trip LENGTH SECONDS tcp|vsock ADDRESS PORT    prints microseconds, the median
"""

from __future__ import annotations

import select
import socket
import statistics
import sys
import threading
import time

HEAD = 4


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


def serve(port: int) -> None:
    """Serve both families, until killed."""
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
    print(*([statistics.median(trips) * 1e6] if trips else [count / took, count]))


def main() -> None:
    """Do what the command line says."""
    what, *rest = sys.argv[1:]
    if what == "serve":
        serve(int(rest[0]))
    length, seconds, family, address, port = rest
    measure(what, int(length), float(seconds), _connect(family, address, int(port)))


if __name__ == "__main__":
    main()
