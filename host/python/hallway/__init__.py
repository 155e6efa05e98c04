# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Messages between programs: by a tunnel (AF_VSOCK) to a VM of the same host, or by TCP.

    with hallway.connect("vm2:5000,tcp://vm2.example:5000") as connection:
        connection.send(b"a question")
        answer = connection.recv()

Addresses to connect to:

    vsock://vm2:5000           a tunnel to the VM of this name, or CID
    tcp://host.example:5000    TCP
    vm2:5000                   a tunnel, if a VM of this host has that name or CID; else TCP
    unix:///run/vm1.sock:5000  on the host: a tunnel to the guest whose host end has this path
    A,B                        the first one of these that connects

Addresses to listen at:

    5000                       tunnels from VMs of this host
    unix:///run/vm1.sock:5000  on the host: tunnels from that guest to port 5000 of the host
    tcp://192.0.2.1:5000       TCP at that address
    tcp://[::]:5000            TCP at each address

VMs choose their names themselves: where it matters which peer this is, give a CID, or tcp://.
The path of a host end is the socket of [vm.tunnels] in hallwayd's configuration. Its user has to be
allowed to connect to the file vm1.sock_5000 that a listener makes, and removes when it is closed.
A message has 1 to MESSAGE_MAX bytes and arrives whole. TCP is neither encrypted nor authenticated.

This is libhallway: hallway.h says which errors there are. Each is an OSError with that errno, so
BlockingIOError, ConnectionResetError and their like can be caught. Calls that a signal interrupts
are made again, unless its handler has raised or closed the object. One thread may send on a
connection while another one receives. close() ends no call that waits in another thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import threading
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
    ("reserve", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
    ("commit", ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t),
    ("peek", ctypes.c_ssize_t, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)),
    ("release", ctypes.c_int, ctypes.c_void_p),
    ("is_lent", ctypes.c_int, ctypes.c_void_p),
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


def _check(value: Any) -> bool:
    """Tell whether a call has to be made again, after a signal; an OSError if it failed."""
    if value not in (None, -1):
        return False
    if (number := ctypes.get_errno()) == errno.EINTR:
        return True
    raise OSError(number, _library.hallway_error().decode())


def _make(name: str, address: str) -> int:
    """Call a function of the library that takes an address."""
    function = getattr(_library, f"hallway_{name}")
    while _check(value := function(os.fsencode(address))):
        pass
    return int(value)


class _Pointer:
    """What the library gave. It is closed with its last reference: a call has one meanwhile."""

    def __init__(self, value: int, close: str) -> None:
        self._as_parameter_ = ctypes.c_void_p(value)  # where ctypes looks for it
        self._close = getattr(_library, close)

    def __del__(self) -> None:
        self._close(self._as_parameter_)


def _view(pointer: _Pointer, start: int, length: int) -> memoryview:
    """Return the bytes of a message in place. Ring memory stays while there are views of it."""
    array = (ctypes.c_ubyte * length).from_address(start)
    array._pointer = pointer  # type: ignore[attr-defined]
    return memoryview(array).cast("B")


class _Object:
    """A connection or a listener of the library, until it is closed."""

    _close: str
    _fd: str

    def __init__(self, value: int) -> None:
        self._pointer: _Pointer | None = _Pointer(value, self._close)

    def _open(self) -> _Pointer:
        """Return its pointer: the library must not be given that of a closed one."""
        if self._pointer is None:
            raise ValueError("it is closed")
        return self._pointer

    def _call(self, name: str, *words: Any) -> Any:
        """Call a function of the library with its pointer, which a signal's handler may close."""
        function = getattr(_library, f"hallway_{name}")
        while _check(value := function(self._open(), *words)):
            pass
        return value

    def fileno(self) -> int:
        """Return the descriptor, for select and asyncio: never read, write or close it."""
        return int(getattr(_library, self._fd)(self._open()))

    def setblocking(self, flag: bool) -> None:
        """Have calls raise BlockingIOError instead of waiting, or wait again."""
        os.set_blocking(self.fileno(), flag)

    def close(self) -> None:
        """Close it. What flush() would send is lost: the peer gets ConnectionResetError then.

        While there are views of messages in place, the connection stays open.
        """
        self._pointer = None

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Connection(_Object):
    """A connection of messages, as connect() and Listener.accept() give it; it yields them."""

    _close, _fd = "hallway_close", "hallway_fd"

    def __init__(self, value: int) -> None:
        super().__init__(value)
        # The library takes one thread at a time; a signal's handler is in the same one.
        self._sending, self._receiving = threading.RLock(), threading.RLock()

    @property
    def peer(self) -> str:
        """The other end: vsock://CID:PORT, unix:///PATH:PORT or tcp://ADDRESS:PORT."""
        return str(_library.hallway_peer(self._open()), "utf-8")

    def send(self, message: bytes) -> None:
        """Send a message, whole or not at all.

        Without blocking, TCP may have taken a part of it: the rest goes out before the next
        message, or by flush().
        """
        content = bytes(message)
        with self._sending:
            self._call("send", content, len(content))
            # A signal leaves a rest, too.
            with contextlib.suppress(BlockingIOError):
                self._call("flush")

    def flush(self) -> None:
        """Send what is left of an earlier message; BlockingIOError if something still is."""
        with self._sending:
            self._call("flush")

    def shutdown(self) -> None:
        """Tell the peer that no message follows: it reads all, then the end."""
        with self._sending:
            self._call("shutdown")

    def recv(self) -> bytes | None:
        """Receive a message; None if the peer has ended."""
        message = ctypes.c_void_p()
        with self._receiving:
            pointer = self._open()  # which owns the message
            length = self._call("recv", ctypes.byref(message))
            content = ctypes.string_at(message, length) if length else None
            del pointer
        return content

    def reserve(self, length: int) -> memoryview:
        """Reserve space for a message; the bytes are to be written there, until commit()."""
        with self._sending:
            pointer = self._open()
            return _view(pointer, self._call("reserve", length), length)

    def commit(self, length: int) -> None:
        """Send the first bytes of what was reserved."""
        with self._sending:
            self._call("commit", length)

    def peek(self) -> memoryview | None:
        """Return the next message where it lies, until release(); None if the peer has ended."""
        message = ctypes.c_void_p()
        with self._receiving:
            pointer = self._open()
            length = self._call("peek", ctypes.byref(message))
            return _view(pointer, message.value or 0, length).toreadonly() if length else None

    def release(self) -> None:
        """Take the message that peek() has given."""
        with self._receiving:
            self._call("release")

    @property
    def is_lent(self) -> bool:
        """Whether reserve() and peek() give ring memory, which no system call copies, or buffers."""
        with self._sending, self._receiving:
            return bool(_library.hallway_is_lent(self._open()))

    def __iter__(self) -> Iterator[bytes]:
        while (message := self.recv()) is not None:
            yield message


class Listener(_Object):
    """A listener at one address, as listen() gives it."""

    _close, _fd = "hallway_listener_close", "hallway_listener_fd"

    @property
    def address(self) -> str:
        """Where it listens: PORT, unix:///PATH:PORT or tcp://ADDRESS:PORT. Port 0 of TCP has become one."""
        return str(_library.hallway_listener_address(self._open()), "utf-8")

    def accept(self) -> Connection:
        """Take the next connection, which blocks."""
        return Connection(int(self._call("accept")))


def connect(to: str) -> Connection:
    """Connect to the first address of a list that can be reached."""
    return Connection(_make("connect", to))


def listen(at: str) -> Listener:
    """Listen at one address."""
    return Listener(_make("listen", at))
