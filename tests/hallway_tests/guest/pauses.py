# SPDX-License-Identifier: Apache-2.0 OR MIT
"""pauses.py echo PORT | ask HOST PORT FILE: for how long a stream stands still.

`ask` sends a byte and waits until it comes back, without end. Each long round trip
is a line of the file, in seconds, and so is one round trip a second that was not
long: its line shows that all lines of before are in the file.
"""

import socket
import sys
import time

LONG = 0.02


def echo(port: int) -> None:
    """Send back all that comes."""
    sock = socket.create_server(("", port)).accept()[0]
    while data := sock.recv(100):
        sock.sendall(data)


def ask(host: str, port: int, path: str) -> None:
    """Measure."""
    sock = socket.create_connection((host, port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    written = 0.0
    with open(path, "a", buffering=1) as file:
        while True:
            begin = time.monotonic()
            sock.sendall(b"x")
            if not sock.recv(1):
                sys.exit("the other side has ended")
            took = time.monotonic() - begin
            if took > LONG or begin > written + 1:
                file.write(f"{took:.4f}\n")
                written = begin
            time.sleep(0.005)


if sys.argv[1] == "echo":
    echo(int(sys.argv[2]))
else:
    ask(sys.argv[2], int(sys.argv[3]), sys.argv[4])
