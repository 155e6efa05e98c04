# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Three connections of which one end is about to die, and the errors that the other end gets.

    last_words.py hear PORT           the survivor
    last_words.py say PORT HOST N     the victim

Both play ping-pong until /tmp/say exists on the victim's side; the connections
get onto rings meanwhile. On the first connection the survivor then sends bytes that
the victim never reads, and the victim N bytes (the last words) that the survivor
does not read before /tmp/killed exists on its side. The second connection is idle:
only keep-alive can find out that the peer is gone. On the third one the survivor has
sent bytes that the victim never reads, too, and a short TCP_USER_TIMEOUT. /tmp/dying
is made on the survivor's side right before the victim dies: times count from there.
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
    """Return `count` bytes that look random."""
    return hashlib.shake_256(b"last words").digest(count)


def until(path):
    """Wait for a file."""
    while not os.path.exists(path):
        time.sleep(0.01)


def mark(path):
    """Make a file."""
    open(path, "w").close()


def listen_to_the_end(connection):
    """Read until the end; return the bytes, and "EOF" or the name of the error."""
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
    talker, idle, hasty = (server.accept()[0] for _ in range(3))
    for option, value in (
        (socket.TCP_KEEPIDLE, 1),
        (socket.TCP_KEEPINTVL, 1),
        (socket.TCP_KEEPCNT, 2),
    ):
        idle.setsockopt(socket.IPPROTO_TCP, option, value)
    idle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    while all(connection.recv(1) == b"p" for connection in (talker, idle, hasty)):
        for connection in (talker, idle, hasty):
            connection.sendall(b"q")
    hasty.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 2500)  # milliseconds
    for connection in (hasty, talker):
        connection.sendall(bytes(5000))
    ends, after = {}, {}

    def listen(name, connection):
        ends[name] = listen_to_the_end(connection)[1]
        after[name] = time.time() - os.stat("/tmp/dying").st_mtime

    waiters = [threading.Thread(target=listen, args=one) for one in (("idle", idle), ("hasty", hasty))]
    for waiter in waiters:
        waiter.start()
    until("/tmp/killed")
    got, end = listen_to_the_end(talker)
    first = "hasty" in ends
    for waiter in waiters:
        waiter.join()
    seen_by_reader = {"got": len(got), "right": got == words(len(got)), "end": end, "first": first}
    print(json.dumps({**seen_by_reader, **ends, "after": after}))


def say(port, host, count):
    """Play the victim."""
    talker, idle, hasty = (socket.create_connection((host, port)) for _ in range(3))
    while not os.path.exists("/tmp/say"):
        for connection in (talker, idle, hasty):
            connection.sendall(b"p")
        for connection in (talker, idle, hasty):
            connection.recv(1)
    talker.sendall(b"w" + words(count))
    mark("/tmp/said")
    threading.Event().wait()


if sys.argv[1] == "hear":
    hear(int(sys.argv[2]))
else:
    say(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
