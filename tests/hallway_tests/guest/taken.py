# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A reader that takes bytes before their doorbell comes, and then waits for the next ones by epoll.

taken.py hear PORT TRIPS          the reader; fails if a byte comes and does not wake it
taken.py say PORT HOST TRIPS      sends the bytes, one at a time
"""

import select
import socket
import sys

PATIENCE = 20  # seconds


def hear(port, trips):
    """Read a byte that comes at once, and wait for another one."""
    connection, _ = socket.create_server(("", port)).accept()
    poll = select.epoll()
    poll.register(connection, select.EPOLLIN)
    for trip in range(trips):
        # It finds nothing, and asks for the doorbell of the next byte.
        assert not poll.poll(0)
        connection.sendall(b"1")
        # All that comes: this call asks for no other doorbell.
        assert connection.recv(1) == b"1"
        connection.sendall(b"2")
        if not poll.poll(PATIENCE):
            sys.exit(f"nothing woke it in trip {trip}")
        assert connection.recv(1) == b"2"


def say(port, host, trips):
    """Send what the reader asks for."""
    connection = socket.create_connection((host, port))
    for _ in range(2 * trips):
        connection.sendall(connection.recv(1))


if sys.argv[1] == "hear":
    hear(int(sys.argv[2]), int(sys.argv[3]))
else:
    say(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
