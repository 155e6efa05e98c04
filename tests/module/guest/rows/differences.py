# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What differs between the carriers, and how."""

from __future__ import annotations

import errno
import select
import socket

from cgroup import cgroup
from link import RING
from pairs import fill, setting, take
from row import difference, outcome

from .data import arrived
from .information import line_of


@difference("/proc/net/tcp, ss: Recv-Q", tcp="unread bytes", ring="unread bytes of TCP alone")
def receive_queue(link):
    """They read it where TCP keeps it. SIOCINQ and TCP_INQ, which programs ask for, tell of all bytes."""
    a, b = link.pair()
    a.sendall(b"12345")
    arrived(b, 5)
    shown = int(line_of(b)[4].split(":")[1], 16)
    return {5: "unread bytes", 0: "unread bytes of TCP alone"}[shown]


SO_SNDBUFFORCE = 32
PATIENT = 5000  # ms
MUCH = 2 << 20  # bytes; the kernel's sums of a cgroup are never so far behind


def _charged(group):
    words = (group / "memory.stat").read_text().split()
    return int(words[words.index("sock") + 1])


@difference("memory of a cgroup", tcp="what is on its way is charged", ring="nothing is charged")
def memory(link):
    """Rings lie in the region, a member's in its slice; each holds its size, then its sender waits."""
    with setting("/sys/module/hallway/parameters/ring_bytes", MUCH), cgroup() as group:
        a, b = link.pair()
        a.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 8 * MUCH)
        before = _charged(group)
        assert a.send(bytes(MUCH), socket.MSG_DONTWAIT) == MUCH, "not all is taken"
        grown = _charged(group) - before
        bound = "EAGAIN" if link.carrier == RING else 1
        assert outcome(a.send, b"x", socket.MSG_DONTWAIT) == bound, "a ring takes more than it holds"
        take(b, MUCH)
        return "what is on its way is charged" if grown > MUCH // 2 else "nothing is charged"


@difference("TCP_USER_TIMEOUT, while the peer lives and reads nothing", tcp="ETIMEDOUT", ring="waits")
def user_timeout_unread(link):
    """TCP counts from the first byte that finds no window. Bytes in a ring have arrived."""
    a, _ = link.pair()
    a.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000)
    fill(a)
    poller = select.poll()
    poller.register(a, 0)
    if not poller.poll(PATIENT):
        return "waits"
    return errno.errorcode[a.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)]
