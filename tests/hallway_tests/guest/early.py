# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A server that answers early, and closes with a part of the request unread.

early.py hear PORT               answers once /tmp/answer exists
early.py say PORT HOST           sends a little, much once /tmp/send exists; prints what it reads, and the end
"""

import errno
import os
import socket
import sys
import time

SMALL, MUCH = 1, 20_000  # bytes


def wait_for_file(path):
    """Wait until a file is there."""
    while not os.path.exists(path):
        time.sleep(0.01)


def hear(port):
    """Answer a request that has hardly begun."""
    connection, _ = socket.create_server(("", port)).accept()
    connection.recv(SMALL)
    wait_for_file("/tmp/answer")
    connection.sendall(b"no")
    connection.close()


def say(port, host):
    """Send a request, and read until the end."""
    connection = socket.create_connection((host, port))
    # A ring comes with a call that sends.
    while not os.path.exists("/tmp/send"):
        connection.sendall(bytes(SMALL))
        time.sleep(0.05)
    connection.sendall(bytes(MUCH))
    open("/tmp/sent", "w").close()
    read, end = b"", "end"
    try:
        while part := connection.recv(100):
            read += part
    except OSError as error:
        end = errno.errorcode[error.errno]
    print(read.decode(), end)


if sys.argv[1] == "hear":
    hear(int(sys.argv[2]))
else:
    say(int(sys.argv[2]), sys.argv[3])
