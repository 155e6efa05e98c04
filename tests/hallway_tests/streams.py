# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Streams for particular situations: one way, with small buffers, without a ring."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from hallway_lab.vm import VM

from .guests import Delta, Stream, loaded, wait_listening
from .suite import PATIENCE, check

# Options of a stream that leaves most of the guests' CPU to others.
CALM = "--calm --biggest 4000"
# Options of a stream that may end in errors. A call that an error ends returns the part that was done
# before; sendfile() does not, so that the reader would find less than the writer counted.
TELLING = "--short --calls write,sendmsg,more,splice-out,read,recvmsg,peek,waitall,poll,splice-in,trunc"

SINK = """
import hashlib, socket, sys
digest, sock = hashlib.sha256(), socket.create_server(("", int(sys.argv[1]))).accept()[0]
while data := sock.recv(65536):
    digest.update(data)
print(digest.hexdigest())
"""
SOURCE = """
import hashlib, random, signal, socket, sys, time
digest, ends = hashlib.sha256(), []
signal.signal(signal.SIGTERM, lambda *_: ends.append(1))
sock = socket.create_connection((sys.argv[1], int(sys.argv[4])))
while not ends:
    data = random.randbytes(random.randrange(1, int(sys.argv[2])))
    digest.update(data)
    sock.sendall(data)
    time.sleep(float(sys.argv[3]))
sock.close()
print(digest.hexdigest())
"""


@contextlib.contextmanager
def one_way(
    source: VM, sink: VM, patience: float, *, most: int = 20000, pause: float = 0, port: int = 4999
) -> Iterator[None]:
    """Send bytes one way on one connection in the block; at its end, all must have arrived.

    Each write has less than `most` bytes; `pause` seconds pass after it.
    """
    # A copy for each port: a slow guest may still be reading the one of the other connection.
    sink.put(SINK, f"/tmp/sink-{port}.py")
    source.put(SOURCE, f"/tmp/source-{port}.py")
    into = sink.spawn(f"python3 -B /tmp/sink-{port}.py {port}")
    wait_listening(sink, port, patience)
    out = source.spawn(f"exec python3 -B /tmp/source-{port}.py {sink.ip4} {most} {pause} {port}")
    yield
    out.kill()
    sent, received = (job.wait(patience * PATIENCE) for job in (out, into))
    check(sent.out and sent.out == received.out, f"other bytes arrived than were sent: {sent} {received}")


@contextlib.contextmanager
def small_buffers(*vms: VM) -> Iterator[None]:
    """Have TCP buffer little in the block: bytes in a ring behind them are soon read."""

    def limit(writes: str, reads: str) -> None:
        for vm in vms:
            vm.run(f"sysctl -q net.ipv4.tcp_wmem='{writes}' net.ipv4.tcp_rmem='{reads}'")

    limit("4096 16384 65536", "4096 65536 65536")
    try:
        yield
    finally:
        limit("4096 16384 4194304", "4096 131072 6291456")


def plain_tcp(server: VM, client: VM) -> None:
    """Send bytes both ways between two VMs; none of them may go through a ring."""
    delta = Delta(*(vm for vm in (server, client) if loaded(vm)))
    Stream(server, client, conns=3, bytes=100_000).finish()
    for vm in (server, client):
        ringed = delta.of(vm)["tx_bytes_ring"] if loaded(vm) else 0
        check(not ringed, f"{vm.name} sent {ringed} bytes through rings")
