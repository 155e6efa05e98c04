# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs a command while the kernel stamps all that arrives.

    stamped.py COMMAND...

The kernel begins some time after the first socket asks, and ends after the last
one is closed: a command that opens and closes sockets would see it at times only.
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
