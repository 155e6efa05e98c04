# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Messages in place by the library: what its calls see.

lent.py waits CID PORT    calls that do not wait, or for a time; PORT is that of packets of `tunnel serve`
lent.py hold CID PORT     find a message; after a line of the input, print what calls see from then on
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable

import hallway
from tunnel import NAME, failure, patience

SIZE = 60_000
LIMIT = 1.5  # seconds that calls wait


def connect(cid: str, port: str, service: str) -> hallway.Connection:
    """Return a connection to a service, by ring memory."""
    connection = hallway.connect(f"vsock://{cid}:{port}")
    connection.send(service.ljust(NAME).encode())
    assert connection.is_lent
    return connection


def fill(connection: hallway.Connection) -> tuple[str, int]:
    """Send until a call fails; return its error, and how many messages were sent."""
    sent = 0

    def send() -> None:
        nonlocal sent
        while True:
            connection.reserve(SIZE)[:] = bytes(SIZE)
            connection.commit(SIZE)
            sent += 1

    return failure(send), sent


def waited(call: Callable[[], object]) -> tuple[str, bool]:
    """Return the error of a call, and whether it took the time that it may take."""
    start = time.monotonic()
    return failure(call), time.monotonic() - start >= LIMIT


def waits(cid: str, port: str) -> dict[str, object]:
    """Return what calls see."""
    seen: dict[str, object] = {}
    with connect(cid, port, "busy") as connection:
        connection.setblocking(False)
        seen["nothing to read"] = failure(connection.peek)
        seen["no space"] = fill(connection)
        connection.setblocking(True)
        patience(connection, LIMIT)
        seen["peek for a time"] = waited(connection.peek)
        patience(connection, LIMIT, socket.SO_SNDTIMEO)
        seen["reserve for a time"] = waited(lambda: connection.reserve(SIZE))
    return seen


def hold(cid: str, port: str) -> None:
    """Find a message, and look on once the peer has gone."""
    connection = connect(cid, port, "say")
    message = connection.peek()
    assert message
    print(bytes(message).decode(), flush=True)
    sys.stdin.readline()
    said: list[object] = [failure(connection.release)]
    # The memory is there, with other bytes, and gives no signal.
    assert len(bytes(message)) == len(message)
    while (error := failure(connection.peek)) == "none":
        found = connection.peek()
        said.append(bytes(found or b"").decode())
        del found
        connection.release()
    said.append(error)
    said.append(failure(lambda: connection.reserve(1)))
    print(json.dumps(said), flush=True)


def main() -> None:
    """Do what the words say."""
    action, cid, port = sys.argv[1:]
    if action == "hold":
        hold(cid, port)
    else:
        print(json.dumps(waits(cid, port)))
