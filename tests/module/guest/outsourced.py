"""The rows of docs/compatibility.md on sockets that the host executes: what e2e/test_outsourced_rows.py runs.

One end of a row's connection calls the host at a published port, the other accepts there: both are sockets
of this guest, and the host executes both. What a program sees must be what it sees natively.

    outsourced.py NAME IPV4 IPV6 PORT    plays a row with the host at these addresses
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys

from genl import Family
from link import TCP, Link
from pairs import connect, hallway, take
from rows import ROWS

_, NAME, V4, V6, PORT = sys.argv
KINDS = {
    "v4": (socket.AF_INET, "0.0.0.0", socket.AF_INET, V4),
    "v6": (socket.AF_INET6, "::", socket.AF_INET6, V6),
    "mapped": (socket.AF_INET6, "::", socket.AF_INET, V4),
    "mapped_both": (socket.AF_INET6, "::", socket.AF_INET6, "::ffff:" + V4),
}


class Outsourced(Link):
    """What a row gets: connections that the host executes, and that cross to nothing."""

    def __init__(self, stack, module):
        super().__init__("outsourced", stack, module)

    def pair(self, kind="v4"):
        """Return both ends of a connection."""
        a, b = (self.own(end) for end in connect(kind, KINDS, int(PORT)))
        for source, sink in ((a, b), (b, a)):
            source.sendall(b"knock")
            assert take(sink, 5) == b"knock", "other bytes came than were sent"
        return a, b

    def adopt(self, a, b):
        """Take a row's own connection as it is."""
        return self.own(a), self.own(b)

    def cross(self):
        """There is no other carrier."""
        self.crossed = True


def play(row, kind, module):
    """Make a row's calls; return what its program saw, as text."""
    with contextlib.ExitStack() as stack:
        link = Link(TCP, stack, module) if kind == TCP else Outsourced(stack, module)
        try:
            return repr(row.test(link))
        except Exception as error:
            return f"{type(error).__name__}: {error}"


def main():
    """Play the row natively, then outsourced, and print what was seen."""
    (row,) = (row for row in ROWS if row.name == NAME)
    module = Family()
    hallway("off")
    try:
        native = play(row, TCP, module)
        before = module.counters()["rx_bytes_outsourced"]
        outsourced = play(row, "outsourced", module)
        moved = module.counters()["rx_bytes_outsourced"] - before
    finally:
        hallway("on")
    print(json.dumps({"native": native, "outsourced": outsourced, "bytes": moved}))


main()
