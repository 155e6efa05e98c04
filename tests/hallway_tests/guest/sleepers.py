# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Connections on whose other ends threads are asleep, each in recv().

sleepers.py hear PORT COUNT         sends back what it receives
sleepers.py say PORT HOST COUNT     plays ping-pong on all until /tmp/say exists, and makes
                                    /tmp/said; sends one byte on each once /tmp/say is gone,
                                    and removes /tmp/said; ends once all have come back
"""

import os
import socket
import sys
import threading
import time


def hear(port, count):
    """Play the other ends."""

    def answer(connection):
        while data := connection.recv(4096):
            connection.sendall(data)

    with socket.create_server(("", port), backlog=count) as listener:
        threads = [threading.Thread(target=answer, args=(listener.accept()[0],)) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def say(port, host, count):
    """Play the senders."""
    connections = [socket.create_connection((host, port)) for _ in range(count)]
    while not os.path.exists("/tmp/say"):
        for connection in connections:
            connection.sendall(b"p")
            connection.recv(1)
    open("/tmp/said", "w").close()
    while os.path.exists("/tmp/say"):
        time.sleep(0.01)
    for connection in connections:
        connection.sendall(b"p")
    os.remove("/tmp/said")
    for connection in connections:
        assert connection.recv(1) == b"p"


if sys.argv[1] == "hear":
    hear(int(sys.argv[2]), int(sys.argv[3]))
else:
    say(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
