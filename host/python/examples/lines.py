#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Lines as messages.

lines.py listen ADDRESS    print those of one peer, then say how many came
lines.py send ADDRESS      send those of the input
"""

from __future__ import annotations

import sys

import hallway


def listen(at: str) -> None:
    """Print the messages of one peer."""
    with hallway.listen(at) as listener:
        print("listening at", listener.address, file=sys.stderr, flush=True)
        with listener.accept() as connection:
            count = 0
            for message in connection:
                sys.stdout.buffer.write(message + b"\n")
                count += 1
            sys.stdout.buffer.flush()
            connection.send(f"{count} messages".encode())


def send(to: str) -> None:
    """Send lines, and print the answer."""
    with hallway.connect(to) as connection:
        print("connected to", connection.peer, file=sys.stderr)
        for line in sys.stdin.buffer:
            connection.send(line.rstrip(b"\n"))
        connection.shutdown()
        answer = connection.recv()
        print(answer.decode() if answer else "no answer")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("listen", "send"):
        sys.exit(__doc__)
    try:
        {"listen": listen, "send": send}[sys.argv[1]](sys.argv[2])
    except OSError as error:
        sys.exit(f"lines.py: {error}")
