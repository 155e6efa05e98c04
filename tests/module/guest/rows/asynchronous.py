# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Bytes in and out while the program does something else: io_uring, AIO."""

from __future__ import annotations

import ctypes
import os
import select
import socket

import native
import uring
from pairs import Sleeper, pattern, take
from row import row

from .data import arrived, pipe, stuff


@row("io_uring: send, recv, read, write")
def uring_calls(link):
    """Results are those of the calls; a recv that waits is done when bytes come."""
    a, b = link.pair()
    ring = link.own(uring.Uring())
    memory = ctypes.create_string_buffer(pattern(100), 100)
    into = ctypes.create_string_buffer(100)
    seen = []
    ring.submit(uring.RECV, b.fileno(), into, 100)
    assert ring.idle(), "a recv is done without bytes"
    link.cross()
    ring.submit(uring.SEND, a.fileno(), memory, 100)
    seen.append(sorted(ring.done()[0] for _ in range(2)))
    seen.append(into.raw == pattern(100))
    ring.submit(uring.WRITE, a.fileno(), memory, 100)
    seen.append(ring.done()[0])
    arrived(b, 100)
    ring.submit(uring.READ, b.fileno(), into, 60)
    seen.append(ring.done()[0])
    ring.submit(uring.RECV, b.fileno(), into, 10)
    seen.append(ring.done())  # its flags say that more is there
    ring.submit(uring.RECV, b.fileno(), into, 30)
    seen.append(ring.done())
    ring.submit(uring.RECV, b.fileno(), into, 30, flags=socket.MSG_DONTWAIT)
    return [*seen, ring.done()]


@row("io_uring: sendmsg, recvmsg, MSG_WAITALL")
def uring_messages(link):
    """A recvmsg() for all is done when all is there, over both carriers."""
    a, b = link.pair()
    ring = link.own(uring.Uring())
    parts, buffers = native.messages([1000])
    ring.submit(uring.RECVMSG, b.fileno(), parts[0].hdr, 1, flags=socket.MSG_WAITALL)
    a.sendall(pattern(400))
    link.cross()
    assert ring.idle(), "done before all is there"
    out, _kept = native.messages([600], [pattern(1000)[400:]])
    ring.submit(uring.SENDMSG, a.fileno(), out[0].hdr, 1)
    return sorted(ring.done()[0] for _ in range(2)), buffers[0].raw == pattern(1000)


@row("io_uring: multishot recv, provided buffers")
def uring_multishot(link):
    """One request hands out bytes in buffers of the program's as they come, then EOF."""
    a, b = link.pair()
    ring = link.own(uring.Uring())
    pool = ctypes.create_string_buffer(8 * 64)
    ring.submit(uring.PROVIDE_BUFFERS, 8, pool, 64, group=3)
    seen = [ring.done()[0]]
    ring.submit(uring.RECV, b.fileno(), how=uring.MULTISHOT_RECV, select=uring.SELECT_BUFFER, group=3)
    for turn in range(4):
        if turn == 2:
            link.cross()
        a.sendall(b"turn %d" % turn)
        said, flags = ring.done()
        place = (flags >> 16) * 64
        seen.append((said, flags & (uring.MORE | uring.HELD_BUFFER), pool.raw[place : place + 6]))
    a.shutdown(socket.SHUT_WR)
    said, flags = ring.done()
    return [*seen, said, flags & uring.MORE]


@row("io_uring: poll, multishot poll")
def uring_poll(link):
    """Once, or for each arrival, read or not."""
    a, b = link.pair()
    ring = link.own(uring.Uring())
    ring.submit(uring.POLL_ADD, b.fileno(), flags=select.POLLIN)
    assert ring.idle(), "done without bytes"
    link.cross()
    a.sendall(b"1")
    seen = [ring.done()]
    ring.submit(uring.POLL_ADD, b.fileno(), count=uring.MULTISHOT_POLL, flags=select.POLLIN)
    seen.append(ring.done())
    for there, read in ((3, 0), (5, 1), (6, 6), (2, 2)):
        a.sendall(b"23")
        seen.append(ring.done())
        arrived(b, there)
        if read:
            b.recv(read)
    return seen


@row("io_uring: splice")
def uring_splice(link):
    """Into a pipe, where it waits for bytes, and out of it."""
    a, b = link.pair()
    ring = link.own(uring.Uring())
    with pipe() as (out, into):
        words = {"offset": uring.ANY_OFFSET, "buffer": uring.ANY_OFFSET, "count": 3000}
        ring.submit(uring.SPLICE, into, other=b.fileno(), **words)
        uring.worker_asleep()
        link.cross()
        uring.worker_asleep()
        assert ring.idle(), "done without bytes"
        a.sendall(pattern(3000))
        seen = [ring.done()[0], os.read(out, 9999) == pattern(3000)]
        os.write(into, pattern(3000))
        ring.submit(uring.SPLICE, a.fileno(), other=out, **words)
        return [*seen, ring.done()[0], take(b, 3000) == pattern(3000)]


@row("io_uring: a send that waits")
def uring_send_waits(link):
    """Is done when there was space for it."""
    a, b = link.pair()
    ring = link.own(uring.Uring())
    memory = ctypes.create_string_buffer(pattern(50000), 50000)
    sent = stuff(a)
    ring.submit(uring.SEND, a.fileno(), memory, 50000, flags=socket.MSG_WAITALL)
    assert ring.idle(), "done without space"
    link.cross()
    assert take(b, len(sent)) == sent, "other bytes came than were sent"
    got = take(b, 50000)
    return ring.done()[0], got == pattern(50000)


@row("AIO: io_submit(), io_getevents()")
def aio(link):
    """Reads and writes a socket as a file; a read waits for bytes."""
    pread, pwrite = 0, 1
    a, b = link.pair()
    memory = ctypes.create_string_buffer(pattern(100), 100)
    into = ctypes.create_string_buffer(100)
    seen = [uring.aio(pwrite, a.fileno(), memory, 100), take(b, 100) == pattern(100)]
    reader = Sleeper(uring.aio, pread, b.fileno(), into, 60).asleep("io_submit")
    link.cross()
    reader.asleep("io_submit")
    seen.append(uring.aio(pwrite, a.fileno(), memory, 100))
    seen += [reader.result(), into.raw[:60] == pattern(100)[:60]]
    return [*seen, uring.aio(pread, b.fileno(), into, 100), into.raw[:40] == pattern(100)[60:]]
