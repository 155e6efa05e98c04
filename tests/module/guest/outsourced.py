# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The rows of docs/compatibility.md on sockets that the host executes: what e2e/test_outsourced_rows.py runs.

One end of a row's connection calls the host at a published port, the other accepts there: both are sockets
of this guest, and the host executes both. What a program sees must be what it sees natively.

    outsourced.py IPV4 IPV6 PORT    plays rows with the host at these addresses

The name of a row is written to the pipe `asked`; what was seen is read from the pipe `seen`. Each row has a
process of its own, forked from this one: Python takes longer to start than most rows take.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from pathlib import Path

from genl import Family
from link import TCP, Link
from pairs import connect, hallway, take
from rows import ROWS

_, V4, V6, PORT = sys.argv
LIMIT = 100  # seconds that a row may take
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


def compare(name):
    """Play a row natively, then outsourced; return what was seen."""
    (row,) = (row for row in ROWS if row.name == name)
    module = Family()
    hallway("off")
    try:
        native = play(row, TCP, module)
        before = module.counters()["rx_bytes_outsourced"]
        outsourced = play(row, "outsourced", module)
        moved = module.counters()["rx_bytes_outsourced"] - before
    finally:
        hallway("on")
    return {"native": native, "outsourced": outsourced, "bytes": moved}


def answer(name):
    """Play a row in a process of its own, with what it starts; return what it wrote."""
    with open("said", "w+") as said:
        child = os.fork()
        if not child:
            os.setsid()
            os.dup2(said.fileno(), sys.stdout.fileno())
            os.dup2(said.fileno(), sys.stderr.fileno())
            try:
                print(json.dumps(compare(name)), flush=True)
            except BaseException:
                traceback.print_exc()
            os._exit(0)
        ended = os.pidfd_open(child)
        late = not select.select([ended], [], [], LIMIT)[0]
        os.close(ended)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        said.seek(0)
        return said.read() + (f"{name} took longer than {LIMIT} s" if late else "")


def main():
    """Play rows until this process is killed."""
    for pipe in ("asked", "seen"):
        Path(pipe).unlink(missing_ok=True)
        os.mkfifo(pipe)
    while True:
        name = Path("asked").read_text().strip()
        Path("seen").write_text(answer(name))


main()
