# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The module's netlink family, without a process for each question: rows ask it often.

The numbers come from the ABI's headers, which lie in the shared folder.
"""

from __future__ import annotations

import re
import socket
import struct
from pathlib import Path

NETLINK_GENERIC = 16
CONTROL_GETFAMILY, CONTROL_FAMILY_ID, CONTROL_FAMILY_NAME = 3, 1, 2
REQUEST, ACK, DUMP = 1, 4, 0x300
ERROR, DONE, CONTROL = 2, 3, 16


def _numbers(header):
    text = (Path("/hallway/abi") / header).read_text()
    return {name: int(number) for name, number in re.findall(r"^#define\s+HALLWAY_(\w+)\s+(\d+)", text, re.M)}


def _attributes(data):
    """Yield the number and the payload of each attribute."""
    while len(data) >= 4:
        size, kind = struct.unpack_from("HH", data)
        yield kind & 0x3FFF, data[4:size]
        data = data[(size + 3) & ~3 :]


class Family:
    """A netlink socket that speaks to the module."""

    def __init__(self):
        self._n = _numbers("netlink.h")
        self.reasons = {
            number: name.removeprefix("REASON_")
            for name, number in _numbers("reason.h").items()
            if "COUNT" not in name
        }
        self._sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC)
        self._sock.bind((0, 0))
        name = struct.pack("HH8s", 12, CONTROL_FAMILY_NAME, b"hallway")
        (answer,) = self._ask(CONTROL, CONTROL_GETFAMILY, name)
        (self._id,) = struct.unpack("H", dict(_attributes(answer))[CONTROL_FAMILY_ID])

    def close(self):
        """Let go of the socket."""
        self._sock.close()

    def _request(self, family, command, attributes, flags):
        size = 20 + len(attributes)
        self._sock.send(
            struct.pack("IHHIIBBH", size, family, REQUEST | flags, 0, 0, command, 1, 0) + attributes
        )

    def _ask(self, family, command, attributes=b"", flags=ACK):
        """Send a request; return the answers' attributes."""
        self._request(family, command, attributes, flags)
        answers = []
        while True:
            data = self._sock.recv(1 << 16)
            while data:
                size, kind = struct.unpack_from("IH", data)
                if kind == ERROR and (code := struct.unpack_from("i", data, 16)[0]):
                    raise OSError(-code, "the module refuses")
                if kind in (ERROR, DONE):
                    return answers
                answers.append(data[20:size])
                data = data[(size + 3) & ~3 :]

    def switch(self, on):
        """Switch Hallway on or off; off returns when nothing is attached."""
        value = struct.pack("HHB3x", 5, self._n["A_ENABLED"], on)
        self._ask(self._id, self._n["CMD_SET"], value)

    def counters(self):
        """Return the module's counters."""
        (answer,) = self._ask(self._id, self._n["CMD_GET"])
        found = {}
        for kind, payload in _attributes(answer):
            if kind == self._n["A_COUNTER"]:
                nested = dict(_attributes(payload))
                name = nested[self._n["A_NAME"]].rstrip(b"\0").decode()
                (found[name],) = struct.unpack("Q", nested[self._n["A_VALUE"]])
        return found

    def members(self):
        """Return the addresses of all members, of 16 bytes each."""
        answers = self._ask(self._id, self._n["CMD_MEMBERS"], flags=DUMP)
        fields = [field for answer in answers for field in _attributes(answer)]
        return {payload for kind, payload in fields if kind == self._n["A_ADDRESS"]}

    def member_fields(self):
        """Return the names of the attributes of each member."""
        names = {number: name for name, number in self._n.items() if name.startswith("A_")}
        answers = self._ask(self._id, self._n["CMD_MEMBERS"], flags=DUMP)
        return [{names[kind] for kind, _ in _attributes(answer)} for answer in answers]

    def begin_connections(self):
        """Ask for all connections, and read but the first answer's beginning: True if it is no error."""
        self._request(self._id, self._n["CMD_CONNECTIONS"], b"", DUMP)
        return struct.unpack_from("H", self._sock.recv(6), 4)[0] != ERROR

    def connections(self):
        """Return ports, carriers, reason and the peer's name of each attached end."""
        found = []
        for answer in self._ask(self._id, self._n["CMD_CONNECTIONS"], flags=DUMP):
            fields = dict(_attributes(answer))
            found.append(
                {
                    "port": struct.unpack("H", fields[self._n["A_LOCAL_PORT"]])[0],
                    "peer_port": struct.unpack("H", fields[self._n["A_REMOTE_PORT"]])[0],
                    "peer": fields[self._n["A_NAME"]].rstrip(b"\0"),
                    "sends": struct.unpack("I", fields[self._n["A_TX_CARRIER"]])[0],
                    "receives": struct.unpack("I", fields[self._n["A_RX_CARRIER"]])[0],
                    "reason": self.reasons[struct.unpack("I", fields[self._n["A_REASON"]])[0]],
                }
            )
        return found
