# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A socket that claims to be one end of another connection.

    forge.py LOCAL PORT REMOTE PORT

TCP_REPAIR makes an established socket with any addresses and any sequence
numbers, without a packet. The script tries to read from it until SIGTERM, and
closes it without a packet.
"""

import signal
import socket
import sys
import time

TCP_REPAIR = 19
ON, OFF_SILENTLY = 1, -1


def repair(forged, value):
    """Enter or leave repair mode, in which no packet is sent; leaving sends none either."""
    forged.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, value)


local, local_port, remote, remote_port = sys.argv[1:]
forged = socket.socket()
repair(forged, ON)
forged.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
forged.bind((local, int(local_port)))
forged.connect((remote, int(remote_port)))
repair(forged, OFF_SILENTLY)
forged.setblocking(False)
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
try:
    while True:
        try:
            forged.recv(1)
        except BlockingIOError:
            time.sleep(0.02)
finally:
    repair(forged, ON)
