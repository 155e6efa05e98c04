# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Connections of other families that the kernel carries over TCP: what is sent comes back.

families.py answer FAMILY ADDRESS PORT
families.py ask FAMILY ADDRESS PORT OWN    prints the SHA-256 of what it sent and of what came

FAMILY is `rds` (datagrams) or `smc` (a stream).
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys

AF_SMC = 43
COUNT, SIZE = 200, 8192


def smc() -> socket.socket:
    """Return a socket of AF_SMC; its addresses are those of AF_INET."""
    number = socket.socket(AF_SMC, socket.SOCK_STREAM).detach()
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=number)


def rds(address: str, port: int) -> socket.socket:
    """Return a bound socket of AF_RDS."""
    made = socket.socket(socket.AF_RDS, socket.SOCK_SEQPACKET)
    made.bind((address, port))
    return made


def answer(family: str, address: str, port: int) -> None:
    """Send back what comes: until the peer ends, or as many datagrams as it sends."""
    if family == "rds":
        with rds(address, port) as one:
            print("ready", flush=True)
            for _ in range(COUNT):
                data, peer = one.recvfrom(SIZE)
                one.sendto(data, peer)
            one.recvfrom(SIZE)  # the last answer has come: closing drops what is unsent
        return
    with smc() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen()
        print("ready", flush=True)
        one, _ = listener.accept()
        with one:
            while data := one.recv(65536):
                one.sendall(data)


def ask(family: str, address: str, port: int, own: str) -> None:
    """Send, and print what was sent and what came."""
    sent, came = hashlib.sha256(), hashlib.sha256()
    one = rds(own, port) if family == "rds" else smc()
    with one:
        if family == "smc":
            one.connect((address, port))
        one.settimeout(60)
        for _ in range(COUNT):
            data = os.urandom(SIZE)
            sent.update(data)
            if family == "rds":
                one.sendto(data, (address, port))
                came.update(one.recvfrom(SIZE)[0])
                continue
            one.sendall(data)
            left = SIZE
            while left:
                part = one.recv(left)
                if not part:
                    raise SystemExit("the connection ended early")
                came.update(part)
                left -= len(part)
        if family == "rds":
            one.sendto(b"done", (address, port))
    print(sent.hexdigest(), came.hexdigest())


if __name__ == "__main__":
    what, family, address, port, *own = sys.argv[1:]
    {"answer": answer, "ask": ask}[what](family, address, int(port), *own)
