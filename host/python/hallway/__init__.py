# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Messages between programs: by a tunnel (AF_VSOCK) to a VM of the same host, or by TCP.

    with hallway.connect("vm2:5000,tcp://vm2.example:5000") as connection:
        connection.send(b"a question")
        answer = connection.recv()

Addresses to connect to:

    vsock://vm2:5000           a tunnel to the VM of this name, or CID
    tcp://host.example:5000    TCP
    vm2:5000                   a tunnel, if a VM of this host has that name or CID; else TCP
    A,B                        the first one of these that connects

Addresses to listen at:

    5000                       tunnels from VMs of this host
    tcp://192.0.2.1:5000       TCP at that address
    tcp://[::]:5000            TCP at each address

VMs choose their names themselves: where it matters which peer this is, give a CID, or tcp://.
A message has 1 to MESSAGE_MAX bytes and arrives whole. TCP is neither encrypted nor authenticated.

This is libhallway: hallway.h says which errors there are. Each is an OSError with that errno, so
BlockingIOError, ConnectionResetError and their like can be caught. Calls that a signal interrupts
are made again. One thread may send on a connection while another one receives; close() is for
when none does.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from typing import Any, TypeVar

Self = TypeVar("Self", bound="_Object")

MESSAGE_MAX = (256 << 10) - 8
"""Bytes of a message at most. A VM that is short of memory may have smaller rings."""

_library = ctypes.CDLL("libhallway.so.0", use_errno=True)
for _name, _result, *_arguments in (
    ("connect", ctypes.c_void_p, ctypes.c_char_p),
    ("send", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t),
    ("flush", ctypes.c_int, ctypes.c_void_p),
    ("shutdown", ctypes.c_int, ctypes.c_void_p),
    ("recv", ctypes.c_ssize_t, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)),
    ("fd", ctypes.c_int, ctypes.c_void_p),
    ("peer", ctypes.c_char_p, ctypes.c_void_p),
    ("close", None, ctypes.c_void_p),
    ("listen", ctypes.c_void_p, ctypes.c_char_p),
    ("accept", ctypes.c_void_p, ctypes.c_void_p),
    ("listener_fd", ctypes.c_int, ctypes.c_void_p),
    ("listener_address", ctypes.c_char_p, ctypes.c_void_p),
    ("listener_close", None, ctypes.c_void_p),
    ("error", ctypes.c_char_p),
):
    _function = getattr(_library, f"hallway_{_name}")
    _function.restype, _function.argtypes = _result, _arguments


def _call(name: str, *words: Any) -> Any:
    """Call a function of the library: an OSError if it fails, and again after a signal."""
    function = getattr(_library, f"hallway_{name}")
    while (value := function(*words)) in (None, -1):
        if (number := ctypes.get_errno()) != errno.EINTR:
            raise OSError(number, _library.hallway_error().decode())
    return value


class _Object:
    """A connection or a listener of the library, until it is closed."""

    _close: str
    _fd: str

    def __init__(self, pointer: int) -> None:
        self._pointer: int | None = pointer

    def _open(self) -> int:
        """Return its pointer: the library must not be given that of a closed one."""
        if self._pointer is None:
            raise ValueError("it is closed")
        return self._pointer

    def fileno(self) -> int:
        """Return the descriptor, for select and asyncio: never read, write or close it."""
        return int(getattr(_library, self._fd)(self._open()))

    def setblocking(self, flag: bool) -> None:
        """Have calls raise BlockingIOError instead of waiting, or wait again."""
        os.set_blocking(self.fileno(), flag)

    def close(self) -> None:
        """Close it. What flush() would send is lost: the peer gets ConnectionResetError then."""
        pointer, self._pointer = self._pointer, None
        getattr(_library, self._close)(pointer)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class Connection(_Object):
    """A connection of messages, as connect() and Listener.accept() give it; it yields them."""

    _close, _fd = "hallway_close", "hallway_fd"

    @property
    def peer(self) -> str:
        """The other end: vsock://CID:PORT or tcp://ADDRESS:PORT."""
        return str(_library.hallway_peer(self._open()), "utf-8")

    def send(self, message: bytes) -> None:
        """Send a message, whole or not at all.

        Without blocking, TCP may have taken a part of it: the rest goes out before the next
        message, or by flush().
        """
        content = bytes(message)
        _call("send", self._open(), content, len(content))

    def flush(self) -> None:
        """Send what is left of an earlier message; BlockingIOError if something still is."""
        _call("flush", self._open())

    def shutdown(self) -> None:
        """Tell the peer that no message follows: it reads all, then the end."""
        _call("shutdown", self._open())

    def recv(self) -> bytes | None:
        """Receive a message; None if the peer has ended."""
        message = ctypes.c_void_p()
        length = _call("recv", self._open(), ctypes.byref(message))
        return ctypes.string_at(message, length) if length else None

    def __iter__(self) -> Iterator[bytes]:
        while (message := self.recv()) is not None:
            yield message


class Listener(_Object):
    """A listener at one address, as listen() gives it."""

    _close, _fd = "hallway_listener_close", "hallway_listener_fd"

    @property
    def address(self) -> str:
        """Where it listens: PORT or tcp://ADDRESS:PORT. Port 0 of TCP has become one."""
        return str(_library.hallway_listener_address(self._open()), "utf-8")

    def accept(self) -> Connection:
        """Take the next connection, which blocks."""
        return Connection(_call("accept", self._open()))


def connect(to: str) -> Connection:
    """Connect to the first address of a list that can be reached."""
    return Connection(_call("connect", os.fsencode(to)))


def listen(at: str) -> Listener:
    """Listen at one address."""
    return Listener(_call("listen", os.fsencode(at)))
