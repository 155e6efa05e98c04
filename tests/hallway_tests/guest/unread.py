# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A connection whose reader leaves bytes unread until its peer is dead.

unread.py hear PORT          the reader: sends back what it gets, up to "w"; reads the
                             rest once /tmp/killed exists, and says what that was
unread.py say PORT HOST N    plays ping-pong until /tmp/say exists, then sends "w" and
                             N bytes, and makes /tmp/said
"""

import hashlib
import json
import os
import socket
import sys
import threading
import time


def words(count):
    """Return `count` bytes that look random."""
    return hashlib.shake_256(b"unread").digest(count)


def until(path):
    """Wait for a file."""
    while not os.path.exists(path):
        time.sleep(0.01)


def hear(port):
    """Play the reader."""
    connection, _ = socket.create_server(("", port)).accept()
    while (byte := connection.recv(1)) == b"p":
        connection.sendall(byte)
    # The peer is dead: no end comes, but its bytes are all here.
    until("/tmp/killed")
    connection.settimeout(5)
    got = b""
    try:
        while part := connection.recv(1 << 20):
            got += part
    except OSError:
        pass
    print(json.dumps({"got": len(got), "right": got == words(len(got))}))


def say(port, host, count):
    """Play the sender."""
    connection = socket.create_connection((host, port))
    while not os.path.exists("/tmp/say"):
        connection.sendall(b"p")
        connection.recv(1)
    connection.sendall(b"w" + words(count))
    open("/tmp/said", "w").close()
    threading.Event().wait()


if sys.argv[1] == "hear":
    hear(int(sys.argv[2]))
else:
    say(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
