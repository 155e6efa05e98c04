# SPDX-License-Identifier: Apache-2.0 OR MIT
"""System calls that Python's library lacks, by way of the C library."""

from __future__ import annotations

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def checked(name, *words):
    """Call a function of the C library; raise its errno, or return what it returns."""
    got = getattr(libc, name)(*words)
    if got < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return got


class Iovec(ctypes.Structure):
    """struct iovec."""

    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class Msghdr(ctypes.Structure):
    """struct msghdr."""

    _fields_ = [
        ("name", ctypes.c_void_p),
        ("namelen", ctypes.c_uint),
        ("iov", ctypes.POINTER(Iovec)),
        ("iovlen", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("controllen", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    ]


class Mmsghdr(ctypes.Structure):
    """struct mmsghdr."""

    _fields_ = [("hdr", Msghdr), ("len", ctypes.c_uint)]


def messages(sizes, fill=None):
    """Return an array of messages with a buffer of each size, and the buffers."""
    buffers = [ctypes.create_string_buffer(fill[i] if fill else size, size) for i, size in enumerate(sizes)]
    array = (Mmsghdr * len(sizes))()
    for message, buffer in zip(array, buffers, strict=True):
        vector = Iovec(ctypes.addressof(buffer), len(buffer))
        message.hdr.iov = ctypes.pointer(vector)
        message.hdr.iovlen = 1
    return array, buffers


def sendmmsg(sock, parts, flags=0):
    """Send several messages at once; return what each sent."""
    array, _buffers = messages([len(part) for part in parts], parts)
    count = checked("sendmmsg", sock.fileno(), array, len(parts), flags)
    return [array[i].len for i in range(count)]


def recvmmsg(sock, sizes, flags=0):
    """Receive several messages at once; return the bytes of each."""
    array, buffers = messages(sizes)
    count = checked("recvmmsg", sock.fileno(), array, len(sizes), flags, None)
    return [buffers[i].raw[: array[i].len] for i in range(count)]


def tee(source, sink, count):
    """Copy from pipe to pipe."""
    return checked("tee", source, sink, ctypes.c_size_t(count), 0)


def vmsplice(sink, buffer):
    """Put memory, which has to stay as it is, into a pipe."""
    vector = Iovec(ctypes.addressof(buffer), len(buffer))
    return checked("vmsplice", sink, ctypes.byref(vector), ctypes.c_size_t(1), 0)


class Fenced:
    """Memory of this size right before a page that may not be touched."""

    def __init__(self, data):
        page = os.sysconf("SC_PAGE_SIZE")
        pages = -(-len(data) // page)
        libc.mmap.restype = ctypes.c_void_p
        start = libc.mmap(None, ctypes.c_size_t((pages + 1) * page), 3, 0x22, -1, ctypes.c_long(0))
        checked("mprotect", ctypes.c_void_p(start + pages * page), ctypes.c_size_t(page), 0)
        self.address = start + pages * page - len(data)
        ctypes.memmove(self.address, data, len(data))

    def send(self, sock, count, flags=0):
        """Send bytes from here; what lies beyond can't be read."""
        return checked("send", sock.fileno(), ctypes.c_void_p(self.address), ctypes.c_size_t(count), flags)

    def recv(self, sock, count, flags=0):
        """Receive bytes to here; what lies beyond can't be written."""
        return checked("recv", sock.fileno(), ctypes.c_void_p(self.address), ctypes.c_size_t(count), flags)


def disconnect(sock):
    """Call connect() with AF_UNSPEC."""
    return checked("connect", sock.fileno(), bytes(16), 16)


class Unpaged:
    """A page of memory: a thread that touches it waits until `close()`, as long as that takes."""

    def __init__(self):
        self._size = os.sysconf("SC_PAGE_SIZE")
        self._fd = libc.syscall(323, os.O_CLOEXEC)  # userfaultfd
        api = (ctypes.c_uint64 * 3)(0xAA)
        checked("ioctl", self._fd, ctypes.c_ulong(0xC018AA3F), api)  # UFFDIO_API
        libc.mmap.restype = ctypes.c_void_p
        self._address = libc.mmap(None, ctypes.c_size_t(self._size), 3, 0x22, -1, ctypes.c_long(0))
        missing = (ctypes.c_uint64 * 4)(self._address, self._size, 1)
        checked("ioctl", self._fd, ctypes.c_ulong(0xC020AA00), missing)  # UFFDIO_REGISTER

    def send(self, sock, count):
        """Send bytes from here."""
        return checked("send", sock.fileno(), ctypes.c_void_p(self._address), ctypes.c_size_t(count), 0)

    def recv(self, sock, count):
        """Receive at most this number of bytes to here."""
        return checked("recv", sock.fileno(), ctypes.c_void_p(self._address), ctypes.c_size_t(count), 0)

    def setsockopt(self, sock, level, option, count):
        """Set an option to this number of bytes from here."""
        return checked("setsockopt", sock.fileno(), level, option, ctypes.c_void_p(self._address), count)

    def fill(self, data):
        """Let all waiting threads go on with these bytes, and zeros behind them."""
        page = ctypes.create_string_buffer(2 * self._size)
        at = -(-ctypes.addressof(page) // self._size) * self._size
        ctypes.memmove(at, data, len(data))
        copy = (ctypes.c_uint64 * 5)(self._address, at, self._size, 0, 0)
        checked("ioctl", self._fd, ctypes.c_ulong(0xC028AA03), copy)  # UFFDIO_COPY

    def close(self):
        """Let all waiting threads go on with zeros."""
        os.close(self._fd)
