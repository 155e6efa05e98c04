# SPDX-License-Identifier: Apache-2.0 OR MIT
"""BPF maps and small programs, by the system call alone: no compiler, no library."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import struct

import native

BPF = 321  # of x86-64
MAP_CREATE, LOOKUP, UPDATE, DELETE, PROG_LOAD, ATTACH, DETACH, OPEN_HOOK = 0, 1, 2, 3, 5, 8, 9, 17
ARRAY, SOCKMAP = 2, 15
SOCKET_FILTER = 1
CGROUP_SKB, SOCK_OPS, SK_SKB, SK_MSG, LSM = 8, 13, 14, 16, 29
EGRESS, IN_SOCK_OPS, STREAM_VERDICT, MSG_VERDICT, IN_LSM = 1, 3, 5, 7, 27
MAP_LOOKUP, CURRENT_PID, SET_OPTION, SK_REDIRECT_MAP, CALL_FOR, MSG_REDIRECT_MAP = 1, 14, 49, 52, 59, 60
STATES = 4  # of what CALL_FOR asks for: a call for each change of a connection's state
STATE_CALL, STATES_FROM = 10, 16  # its number, and where counts of new states begin

SOL_TCP, USER_TIMEOUT, MS = 6, 18, 7000  # an option, and what calls_counter() gives it
REFUSED = 0  # where it counts that the kernel refused that

R0, R1, R2, R3, R4, R5, R6, R10 = 0, 1, 2, 3, 4, 5, 6, 10


def _word(code, to=0, source=0, offset=0, constant=0):
    return struct.pack("=BBhi", code, source << 4 | to, offset, constant)


def put(register, constant):
    """The register gets a constant."""
    return _word(0xB7, register, constant=constant)


def put_map(register, held):
    """The register gets a map."""
    return _word(0x18, register, 1, constant=held.fd) + _word(0)


def move(to, source):
    """The register gets another one's value."""
    return _word(0xBF, to, source)


def load(to, source, offset):
    """The register gets the 32 bits at another one's address."""
    return _word(0x61, to, source, offset)


def store(to, source, offset):
    """The 32 bits at a register's address get another one's value."""
    return _word(0x63, to, source, offset)


def add(register, constant):
    """The register gets more."""
    return _word(0x07, register, constant=constant)


def shift_right(register, count):
    """The register loses its low bits."""
    return _word(0x77, register, constant=count)


def skip_if(register, constant, instructions):
    """Skip `count` instructions if the register has this value."""
    return _word(0x15, register, offset=instructions, constant=constant)


def skip_unless(register, constant, instructions):
    """Skip `count` instructions if the register has another value."""
    return _word(0x55, register, offset=instructions, constant=constant)


def count_one(register):
    """The 64 bits at R0 grow by the register."""
    return _word(0xDB, R0, register)


def call(function):
    """Call one of the kernel's functions."""
    return _word(0x85, constant=function)


def leave():
    """Return R0."""
    return _word(0x95)


def _bpf(command, *words):
    attributes = ctypes.create_string_buffer(b"".join(words), 128)
    return native.checked("syscall", BPF, command, attributes, 128)


class Program:
    """A program in the kernel."""

    def __init__(self, kind, *instructions, hook=0, where=0):
        code = ctypes.create_string_buffer(b"".join(instructions))
        log, licence = ctypes.create_string_buffer(1 << 16), ctypes.create_string_buffer(b"GPL")
        count = (len(code) - 1) // 8
        at = [ctypes.addressof(part) for part in (code, licence, log)]
        words = struct.pack("IIQQIIQ28xI36xI", kind, count, *at[:2], 1, len(log), at[2], where, hook)
        try:
            self.fd = _bpf(PROG_LOAD, words)
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror}: {log.value.decode()}") from error

    def close(self):
        """Let go of the program."""
        os.close(self.fd)


@contextlib.contextmanager
def attached(target, program, where):
    """The program runs at a place of the target, a map or a cgroup, in the block."""
    _bpf(ATTACH, struct.pack("4I", target, program.fd, where, 0))
    try:
        yield
    finally:
        _bpf(DETACH, struct.pack("4I", target, program.fd, where, 0))


def _types(vmlinux):
    """Yield the kind and the name of each type that the kernel describes (BTF), by their numbers."""
    head, types, length, names = struct.unpack_from("I3I", vmlinux, 4)
    at, end = head + types, head + types + length
    # What follows a type: its own bytes, and more for each of its members.
    more = {1: (4, 0), 3: (12, 0), 4: (0, 12), 5: (0, 12), 6: (0, 8), 13: (0, 8)}
    more |= {14: (4, 0), 15: (0, 12), 17: (4, 0), 19: (0, 12)}
    while at < end:
        name, info = struct.unpack_from("II", vmlinux, at)
        kind = info >> 24 & 31
        fixed, each = more.get(kind, (0, 0))
        yield kind, name + head + names
        at += 12 + fixed + each * (info & 0xFFFF)


@functools.cache
def _hooks():
    """Return the numbers of the LSM's hooks for what goes out of sockets and what comes in."""
    function = 12
    with open("/sys/kernel/btf/vmlinux", "rb") as file:
        vmlinux = file.read()
    wanted = {vmlinux.index(b"\0bpf_lsm_socket_%s\0" % word) + 1 for word in (b"sendmsg", b"recvmsg")}
    types = enumerate(_types(vmlinux), 1)
    return [number for number, (kind, name) in types if kind == function and name in wanted]


@contextlib.contextmanager
def forbidding(number):
    """Within the block the LSM forbids this process to send and to receive, by an error's number."""
    with contextlib.ExitStack() as stack:
        for hook in _hooks():
            program = Program(
                LSM,
                *(call(CURRENT_PID), shift_right(R0, 32), skip_unless(R0, os.getpid(), 2)),
                *(put(R0, -number), leave(), put(R0, 0), leave()),
                hook=hook,
                where=IN_LSM,
            )
            stack.enter_context(contextlib.closing(program))
            stack.callback(os.close, _bpf(OPEN_HOOK, struct.pack("QI", 0, program.fd)))
        yield


class Map:
    """A BPF map with keys from 0."""

    def __init__(self, kind, value_size, entries):
        self.fd = _bpf(MAP_CREATE, struct.pack("5I", kind, 4, value_size, entries, 0))

    def _element(self, command, key, value=None):
        which = ctypes.c_uint(key)
        where = 0 if value is None else ctypes.addressof(value)
        _bpf(command, struct.pack("QQQQ", self.fd, ctypes.addressof(which), where, 0))

    def number(self, key):
        """Return the 64 bits that are there."""
        value = ctypes.c_uint64()
        self._element(LOOKUP, key, value)
        return value.value

    def close(self):
        """Let go of the map."""
        os.close(self.fd)


class Sockmap(Map):
    """A map that holds sockets, and takes them over thereby."""

    def __init__(self, entries=1):
        super().__init__(SOCKMAP, 4, entries)

    def put(self, sock, key=0):
        """Hand a socket to the map."""
        self._element(UPDATE, key, ctypes.c_uint(sock.fileno()))

    def drop(self, key=0):
        """Take the socket out."""
        self._element(DELETE, key)


def redirection(held, kind, key):
    """A program that sends whatever it sees out of the socket that the map has there."""
    function = {SK_SKB: SK_REDIRECT_MAP, SK_MSG: MSG_REDIRECT_MAP}[kind]
    return Program(kind, put_map(R2, held), put(R3, key), put(R4, 0), call(function), leave())


def dropper():
    """A program that drops every packet of a cgroup's."""
    return Program(CGROUP_SKB, put(R0, 0), leave(), where=EGRESS)


def calls_counter(counts):
    """A program that counts its calls about connections by their number; changes to a state by that.

    It sets an option of each connection, and counts how often it may not.
    """
    count = (
        *(store(R10, R2, -4), put_map(R1, counts), move(R2, R10), add(R2, -4), call(MAP_LOOKUP)),
        *(skip_if(R0, 0, 2), put(R1, 1), count_one(R1)),
    )
    return Program(
        SOCK_OPS,
        *(move(R6, R1), load(R2, R6, 0), skip_unless(R2, STATE_CALL, 2)),
        *(load(R2, R6, 8), add(R2, STATES_FROM), *count),
        *(put(R4, MS), store(R10, R4, -8), move(R4, R10), add(R4, -8), put(R5, 4)),
        *(move(R1, R6), put(R2, SOL_TCP), put(R3, USER_TIMEOUT), call(SET_OPTION)),
        *(skip_if(R0, 0, 10), put(R2, REFUSED), *count),
        *(move(R1, R6), put(R2, STATES), call(CALL_FOR), put(R0, 1), leave()),
    )
