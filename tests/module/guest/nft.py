# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A packet filter's counter, by netlink alone: nftables' program is not in the guest."""

from __future__ import annotations

import contextlib
import socket
import struct

NETLINK_NETFILTER, NFTABLES = 12, 10
IPV4, DEVICE = 2, 5
REQUEST, ACK, CREATE, DUMP = 1, 4, 0x400, 0x300
BATCH_BEGIN, BATCH_END = 16, 17
NEW_TABLE, DEL_TABLE, NEW_CHAIN, NEW_RULE, GET_RULE = 0, 2, 3, 6, 7
ERROR, DONE = 2, 3
LOCAL_OUT, INGRESS = 3, 0
TABLE = b"row\0"


def _attribute(kind, payload):
    return struct.pack("HH", 4 + len(payload), kind) + payload + bytes(-len(payload) % 4)


def _number(kind, value):
    return _attribute(kind, struct.pack(">I", value))


def _expression(name, *attributes):
    return _attribute(1, _attribute(1, name + b"\0") + _attribute(2, b"".join(attributes)))


def _message(kind, flags, family, resource, *attributes):
    payload = struct.pack(">BBH", family, 0, resource) + b"".join(attributes)
    return struct.pack("IHHII", 16 + len(payload), kind, REQUEST | flags, 0, 0) + payload


def _ask(*requests, flags=ACK, batch=True, family=IPV4):
    """Make requests, of which the last one is answered; return the answers."""
    messages = [
        _message(NFTABLES << 8 | command, extra, family, 0, *attributes)
        for command, extra, *attributes in requests[:-1]
    ]
    command, extra, *attributes = requests[-1]
    messages.append(_message(NFTABLES << 8 | command, extra | flags, family, 0, *attributes))
    if batch:
        messages.insert(0, _message(BATCH_BEGIN, 0, 0, NFTABLES))
        messages.append(_message(BATCH_END, 0, 0, NFTABLES))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as link:
        link.bind((0, 0))
        link.send(b"".join(messages))
        answers = b""
        while True:
            data = link.recv(1 << 16)
            answers += data
            while data:
                size, kind = struct.unpack_from("IH", data)
                code = struct.unpack_from("i", data, 16)[0] if kind == ERROR else 0
                if code:
                    raise OSError(-code, "nftables refuses")
                if kind in (ERROR, DONE):
                    return answers
                data = data[(size + 3) & ~3 :]


@contextlib.contextmanager
def counting(port, drop=False):
    """Count the packets that go out to a port over IPv4, and drop them if asked to.

    Yields a function that returns how many bytes and packets were counted.
    """
    verdict = _attribute(2, _attribute(2, _number(1, 0)))
    rule = [
        _expression(b"payload", _number(1, 1), _number(2, 2), _number(3, 2), _number(4, 2)),
        _expression(
            b"cmp", _number(1, 1), _number(2, 0), _attribute(3, _attribute(1, struct.pack(">H", port)))
        ),
        _expression(b"counter"),
    ]
    if drop:
        rule.append(_expression(b"immediate", _number(1, 0), verdict))
    chain = _attribute(3, b"out\0")
    hook = _attribute(4, _number(1, LOCAL_OUT) + _number(2, 0))
    of_chain = _attribute(1, TABLE), _attribute(2, b"out\0")
    _ask(
        (NEW_TABLE, CREATE, _attribute(1, TABLE)),
        (NEW_CHAIN, CREATE, _attribute(1, TABLE), chain, hook, _attribute(7, b"filter\0")),
        (NEW_RULE, CREATE, *of_chain, _attribute(4, b"".join(rule))),
    )

    def counted():
        said = _ask((GET_RULE, 0, *of_chain), flags=DUMP, batch=False)
        at = said.index(b"counter\0") + 8
        # the data's header, then the two attributes
        return struct.unpack_from(">4x4xQ4xQ", said, at)

    try:
        yield counted
    finally:
        _ask((DEL_TABLE, 0, _attribute(1, TABLE)))


@contextlib.contextmanager
def watching(device):
    """Have a chain at a device see what arrives there."""
    hook = _number(1, INGRESS) + _number(2, 0) + _attribute(3, device.encode() + b"\0")
    chain = _attribute(1, TABLE), _attribute(3, b"in\0"), _attribute(4, hook), _attribute(7, b"filter\0")
    _ask((NEW_TABLE, CREATE, _attribute(1, TABLE)), (NEW_CHAIN, CREATE, *chain), family=DEVICE)
    try:
        yield
    finally:
        _ask((DEL_TABLE, 0, _attribute(1, TABLE)), family=DEVICE)
