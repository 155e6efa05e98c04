"""Runs a command while the kernel stamps all that arrives.

    stamped.py COMMAND...

It begins to do so some time after the first socket asks, and ends after the last
one is gone: a command whose sockets come and go would see it now and then.
"""

from __future__ import annotations

import socket
import subprocess
import sys

SO_TIMESTAMPING = 37
RX_SOFTWARE, SOFTWARE = 1 << 3, 1 << 4

with socket.socket(type=socket.SOCK_DGRAM) as sock:
    sock.bind(("127.0.0.1", 0))
    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, RX_SOFTWARE | SOFTWARE)
    stamps = []
    while not stamps:
        sock.sendto(b"stamped?", sock.getsockname())
        _, stamps, _, _ = sock.recvmsg(64, 256)
    sys.exit(subprocess.call(sys.argv[1:]))
