# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A connection whose sender is in a page fault, inside its call, until it is killed.

fault.py hear PORT           sends back what it receives
fault.py say PORT HOST       plays ping-pong until /tmp/fault exists, and then sends from
                             memory that is never paged in
"""

import os
import socket
import sys

sys.path.append("/hallway/tests")

from native import Unpaged


def hear(port):
    """Play the other end."""
    connection, _ = socket.create_server(("", port)).accept()
    while data := connection.recv(4096):
        connection.sendall(data)


def say(port, host):
    """Play the sender."""
    connection = socket.create_connection((host, port))
    while not os.path.exists("/tmp/fault"):
        connection.sendall(b"p")
        connection.recv(1)
    Unpaged().send(connection, 100)


if sys.argv[1] == "hear":
    hear(int(sys.argv[2]))
else:
    say(int(sys.argv[2]), sys.argv[3])
