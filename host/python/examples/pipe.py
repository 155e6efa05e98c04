#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A pipe between programs.

pipe.py send ADDRESS      send the input
pipe.py listen ADDRESS    print it

In a tunnel, no copy is made but those of read() and write(), from and to ring memory.
"""

from __future__ import annotations

import os
import sys

import hallway

PIECE = 64 << 10  # bytes of a message at most


def listen(at: str) -> None:
    """Print what one peer sends."""
    with hallway.listen(at) as listener:
        print("listening at", listener.address, file=sys.stderr, flush=True)
        with listener.accept() as connection:
            while (message := connection.peek()) is not None:
                os.write(sys.stdout.fileno(), message)
                connection.release()
            print("lent:", str(connection.is_lent).lower(), file=sys.stderr)


def send(to: str) -> None:
    """Send the input."""
    with hallway.connect(to) as connection:
        print("connected to", connection.peer, file=sys.stderr)
        while count := os.readv(sys.stdin.fileno(), [connection.reserve(PIECE)]):
            connection.commit(count)
        connection.shutdown()
        if connection.peek() is not None:  # it ends once it has printed all
            sys.exit("pipe.py: an answer came")
        print("lent:", str(connection.is_lent).lower(), file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("listen", "send"):
        sys.exit(__doc__)
    try:
        {"listen": listen, "send": send}[sys.argv[1]](sys.argv[2])
    except OSError as error:
        sys.exit(f"pipe.py: {error}")
