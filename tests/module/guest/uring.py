# SPDX-License-Identifier: Apache-2.0 OR MIT
"""io_uring and the older asynchronous I/O, by system calls alone."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
from pathlib import Path

import native
from pairs import wait_for

SETUP, ENTER = 425, 426
IO_SETUP, IO_DESTROY, IO_GETEVENTS, IO_SUBMIT = 206, 207, 208, 209
POLL_ADD, READ, WRITE, SEND, RECV, SPLICE, PROVIDE_BUFFERS = 6, 22, 23, 26, 27, 30, 31
SENDMSG, RECVMSG = 9, 10
MULTISHOT_RECV, MULTISHOT_POLL = 2, 1
SELECT_BUFFER = 1 << 5
MORE = 2  # of a completion's flags: others of the same request follow
HELD_BUFFER = 1
ANY_OFFSET = 2**64 - 1


def address(buffer):
    """Return where a ctypes buffer is; or 0 for none."""
    return ctypes.addressof(buffer) if buffer is not None else 0


def worker_asleep():
    """Wait until one of io_uring's workers sleeps within a request; without one it sleeps in its loop."""

    def sleeps():
        for task in Path("/proc/self/task").iterdir():
            if (task / "comm").read_text().startswith("iou-wrk"):
                where = (task / "wchan").read_text()
                if where != "0" and not where.startswith("io_wq"):
                    return True
        return False

    wait_for(sleeps, "a worker sleeps within a request")


class Uring:
    """A small io_uring."""

    def __init__(self, entries=8):
        params = ctypes.create_string_buffer(120)
        self._fd = native.checked("syscall", SETUP, entries, params)
        fields = struct.unpack_from("30I", params)
        sq, cq = fields[10:20], fields[20:30]
        size = max(sq[6] + fields[0] * 4, cq[5] + fields[1] * 16)
        self._rings = mmap.mmap(self._fd, size, offset=0)
        self._requests = mmap.mmap(self._fd, fields[0] * 64, offset=0x10000000)
        self._sq_tail, self._sq_array, self._sq_mask = sq[1], sq[6], fields[0] - 1
        self._cq_head, self._cq_tail, self._cqes, self._cq_mask = cq[0], cq[1], cq[5], fields[1] - 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._fd)

    def _word(self, place):
        return struct.unpack_from("I", self._rings, place)[0]

    def submit(
        self, op, fd, buffer=None, count=0, *, flags=0, select=0, how=0, offset=0, group=0, other=0, tag=0
    ):
        """Hand one request in, without waiting for what comes of it."""
        where = buffer if isinstance(buffer, int) else address(buffer)
        tail = self._word(self._sq_tail)
        slot = tail & self._sq_mask
        struct.pack_into(
            "BBHiQQIIQHHiQQ", self._requests, slot * 64,
            op, select, how, fd, offset, where, count, flags, tag, group, 0, other, 0, 0,
        )  # fmt: skip
        struct.pack_into("I", self._rings, self._sq_array + slot * 4, slot)
        struct.pack_into("I", self._rings, self._sq_tail, tail + 1)
        native.checked("syscall", ENTER, self._fd, 1, 0, 0, None, 0)

    def done(self):
        """Wait for the next completion; return its result (or error's name), and its flags."""
        native.checked("syscall", ENTER, self._fd, 0, 1, 1, None, 0)
        head = self._word(self._cq_head)
        _tag, result, flags = struct.unpack_from("QiI", self._rings, self._cqes + (head & self._cq_mask) * 16)
        struct.pack_into("I", self._rings, self._cq_head, head + 1)
        return (errno.errorcode[-result] if result < 0 else result), flags

    def idle(self):
        """Tell whether there is no completion to be had."""
        return self._word(self._cq_head) == self._word(self._cq_tail)


def aio(op, fd, buffer, count):
    """Submit one of the older asynchronous requests and wait for it; return its result."""
    context = ctypes.c_ulong(0)
    native.checked("syscall", IO_SETUP, 1, ctypes.byref(context))
    try:
        block = ctypes.create_string_buffer(
            struct.pack("QIiHhIQQqQII", 7, 0, 0, op, 0, fd, address(buffer), count, 0, 0, 0, 0)
        )
        blocks = (ctypes.c_void_p * 1)(ctypes.addressof(block))
        native.checked("syscall", IO_SUBMIT, context, 1, blocks)
        event = ctypes.create_string_buffer(32)
        native.checked("syscall", IO_GETEVENTS, context, 1, 1, event, None)
        return struct.unpack_from("QQqq", event)[2]
    finally:
        native.checked("syscall", IO_DESTROY, context)
