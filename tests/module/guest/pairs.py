# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Connections within this guest, and what the module says of them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import threading
import time
from pathlib import Path

SLOW = float(os.environ.get("HALLWAY_TEST_SLOW", 1))
PARAMS = ("loopback=1", "promote_bytes=0", "promote_ms=0", "ring_bytes=16384", "ring_bytes_max=16384")
PATIENCE = 60 * SLOW  # seconds that anything may take on a busy machine
RING = 16384


def wait_for(condition, what):
    """Wait until `condition` holds, and return what it returned."""
    deadline = time.monotonic() + PATIENCE
    pause = 0.002
    while not (value := condition()):
        assert time.monotonic() < deadline, f"never: {what}: {connections()}"
        # A look at the module starts a program on the CPU that all others share.
        time.sleep(pause)
        pause = min(pause * 1.3, 0.1)
    return value


@contextlib.contextmanager
def setting(path, value):
    """A file of the kernel's has another value in the block."""
    with open(path) as file:
        before = file.read()
    with open(path, "w") as file:
        file.write(str(value))
    try:
        yield
    finally:
        with open(path, "w") as file:
            file.write(before)


@contextlib.contextmanager
def no_packets():
    """No packet comes or goes in the block; rings and messages need none."""
    subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


@contextlib.contextmanager
def recorded(events):
    """The kernel records these events in the block; call what this yields for the text of them."""
    tracefs = Path("/sys/kernel/tracing")
    if not (tracefs / "events").exists():
        subprocess.run(["mount", "-t", "tracefs", "tracefs", tracefs], check=True)
    trace, switch = tracefs / "trace", tracefs / "events" / events / "enable"
    trace.write_text("")
    switch.write_text("1")
    try:
        yield trace.read_text
    finally:
        switch.write_text("0")


# -- the module -----------------------------------------------------------------


def hallway(*words):
    """Run the CLI."""
    return subprocess.run(["hallway", *words], check=True, capture_output=True, text=True).stdout


def counters():
    """Return the module's counters."""
    return json.loads(hallway("counters", "--json"))


def connections():
    """Return the module's connections."""
    return json.loads(hallway("connections", "--json"))


def insmod():
    """Load the module with the parameters of these tests."""
    subprocess.run(["insmod", "/hallway/hallway.ko", *PARAMS], check=True)


def rmmod():
    """Unload the module."""
    subprocess.run(["rmmod", "hallway"], check=True, timeout=PATIENCE)


class Delta:
    """How much the counters moved since this was made."""

    def __init__(self):
        self._before = counters()

    def __call__(self):
        """Return what was counted since."""
        return {name: value - self._before[name] for name, value in counters().items()}

    def expect(self, resets=0, **least):
        """Fail unless each counter moved by at least this much, and nothing went wrong."""
        moved = self()
        for name, value in least.items():
            assert moved[name] >= value, f"{name} moved by {moved[name]}, not {value}: {moved}"
        for name in ("corrupt_rings", "corrupt_messages", "messages_lost", "watchdog_wakes"):
            assert not moved[name], f"{name} moved by {moved[name]}"
        assert moved["resets"] <= resets, f"{moved['resets']} sockets were reset, not {resets}"


# -- connections ------------------------------------------------------------------

KINDS = {
    "v4": (socket.AF_INET, "127.0.0.1", socket.AF_INET, "127.0.0.1"),
    "v6": (socket.AF_INET6, "::1", socket.AF_INET6, "::1"),
    "mapped": (socket.AF_INET6, "::", socket.AF_INET, "127.0.0.1"),
    "mapped_both": (socket.AF_INET6, "::", socket.AF_INET6, "::ffff:127.0.0.1"),
}


def connect(kind="v4", kinds=KINDS, port=0):
    """Return both ends of a new connection."""
    family, address, family_from, to = kinds[kind]
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen()
        a = socket.socket(family_from, socket.SOCK_STREAM)
        a.connect((to, listener.getsockname()[1]))
        b, _ = listener.accept()
    return a, b


@contextlib.contextmanager
def pair(kind="v4"):
    """Both ends of a connection that is on rings both ways, for the length of the block."""
    with contextlib.ExitStack() as stack:
        a, b = (stack.enter_context(s) for s in connect(kind))
        promote(a, b)
        yield a, b


def ports_of(*socks):
    """Return the ports by which these sockets are known."""
    return {s.getsockname()[1] for s in socks}


def shown_at(ports):
    """Return the connections of the list that are at these ports."""
    return [c for c in connections() if c["local_port"] in ports]


def shown(*socks):
    """Return the connections of the list that are these sockets', which are connected."""
    # Another connection may have one of the two ports.
    ends = [(s.getsockname()[1], s.getpeername()[1]) for s in socks]
    return [c for c in connections() if (c["local_port"], c["remote_port"]) in ends]


def promote(a, b):
    """Send back and forth until both directions are on rings."""

    def promoted():
        for source, sink in ((a, b), (b, a)):
            source.sendall(b"knock")
            assert take(sink, 5) == b"knock", "other bytes came than were sent"
        ends = shown(a, b)
        return len(ends) == 2 and all(c["tx"]["carrier"] % 2 and c["rx"]["carrier"] % 2 for c in ends)

    wait_for(promoted, "both directions are on rings")


def take(sock, count):
    """Read exactly this number of bytes."""
    data = bytearray()
    while len(data) < count:
        piece = sock.recv(count - len(data))
        assert piece, f"EOF after {len(data)} of {count} bytes"
        data += piece
    return bytes(data)


def fill(sock):
    """Send without waiting until nothing more fits; return the bytes that fit."""
    sent = bytearray()
    while True:
        piece = pattern(4096, len(sent))
        try:
            sent += piece[: sock.send(piece, socket.MSG_DONTWAIT)]
        except BlockingIOError:
            return bytes(sent)


_noise = b""


def pattern(count, start=0):
    """Return bytes of which no two places look the same."""
    global _noise
    if len(_noise) < start + count:
        _noise = hashlib.shake_128(b"hallway").digest(2 * (start + count))
    return _noise[start : start + count]


CALLS = {
    "poll": 7,
    "recv": 45,
    "recvmsg": 47,
    "setsockopt": 54,
    "send": 44,
    "select": 270,
    "epoll": 232,
    "splice": 275,
    "sendfile": 40,
    "io_submit": 209,
}  # of x86-64


class Sleeper(threading.Thread):
    """A thread that makes one call; what it returned or raised is kept."""

    def __init__(self, call, *words):
        super().__init__(daemon=True)
        self._call, self._words = call, words
        self._result = self._error = None
        self.start()

    def run(self):
        """Make the call and keep what came of it."""
        try:
            self._result = self._call(*self._words)
        except Exception as error:
            self._error = error

    def asleep(self, name):
        """Wait until the thread sleeps in this system call."""

        def sleeps():
            try:
                with open(f"/proc/self/task/{self.native_id}/syscall") as file:
                    return file.read().split()[0] == str(CALLS[name])
            except (FileNotFoundError, ProcessLookupError):
                self.join()
                raise AssertionError(f"{name} did not block: {self._result!r} {self._error!r}") from None

        wait_for(sleeps, f"a thread sleeps in {name}")
        return self

    def result(self):
        """Wait for the end and return what the call returned."""
        self.join(PATIENCE)
        assert not self.is_alive(), f"a thread never came back: {connections()}"
        if self._error:
            raise self._error
        return self._result


def waits_for_lock(sleeper):
    """Wait until a thread sleeps until a socket's lock is free."""

    def waits():
        assert sleeper.is_alive(), f"the call did not wait: it returned {sleeper.result()!r}"
        with open(f"/proc/self/task/{sleeper.native_id}/stack") as file:
            return "__lock_sock" in file.read()

    wait_for(waits, "a thread waits for the socket's lock")
