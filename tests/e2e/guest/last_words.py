"""Two connections whose one end is to die; what the other end then hears.

    last_words.py hear PORT           the survivor
    last_words.py say PORT HOST N     the victim

Both play ping-pong, so that the connections get onto rings, until /tmp/say
exists beside the victim. Then the survivor sends bytes that the victim never
reads, and the victim N bytes that the survivor does not read before /tmp/killed
exists beside it. On the other connection nobody says anything more: only its
keep-alive can tell that the peer is gone.
"""

import errno
import hashlib
import json
import os
import socket
import sys
import threading
import time


def words(count):
    """Return so many bytes, none like its neighbours."""
    return hashlib.shake_256(b"last words").digest(count)


def until(path):
    """Wait for a file."""
    while not os.path.exists(path):
        time.sleep(0.01)


def mark(path):
    """Make a file."""
    open(path, "w").close()


def listen_to_the_end(connection):
    """Read all there is; return it, and how it ended."""
    got = b""
    try:
        while part := connection.recv(65536):
            got += part
        return got, "EOF"
    except OSError as error:
        return got, errno.errorcode.get(error.errno, str(error))


def hear(port):
    """Play the survivor."""
    server = socket.create_server(("", port))
    talker, idle = (server.accept()[0] for _ in range(2))
    for option, value in (
        (socket.TCP_KEEPIDLE, 1),
        (socket.TCP_KEEPINTVL, 1),
        (socket.TCP_KEEPCNT, 2),
    ):
        idle.setsockopt(socket.IPPROTO_TCP, option, value)
    idle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    while talker.recv(1) == b"p" and idle.recv(1) == b"p":
        talker.sendall(b"q")
        idle.sendall(b"q")
    talker.sendall(bytes(5000))
    ends = {}
    waiter = threading.Thread(target=lambda: ends.update(idle=listen_to_the_end(idle)))
    waiter.start()
    until("/tmp/killed")
    got, end = listen_to_the_end(talker)
    waiter.join()
    right = got == words(len(got))
    print(json.dumps({"got": len(got), "right": right, "end": end, "idle": ends["idle"][1]}))


def say(port, host, count):
    """Play the victim."""
    talker, idle = (socket.create_connection((host, port)) for _ in range(2))
    while not os.path.exists("/tmp/say"):
        for connection in (talker, idle):
            connection.sendall(b"p")
        for connection in (talker, idle):
            connection.recv(1)
    talker.sendall(b"w" + words(count))
    mark("/tmp/said")
    threading.Event().wait()


if sys.argv[1] == "hear":
    hear(int(sys.argv[2]))
else:
    say(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
