# SPDX-License-Identifier: Apache-2.0 OR MIT
"""connect() and accept() of outsourced sockets while nothing answers: timeouts, signals, O_NONBLOCK."""

from __future__ import annotations

import errno
import json
import os
import socket
from pathlib import Path

import pytest
from hallway_lab import isolate
from hallway_lab.outsourcing import HOST, OUTSIDE, serving
from hallway_lab.sh import run
from hallway_tests.guests import Delta, loaded, rmmod
from hallway_tests.outsourced import Outsourced, wait_published
from hallway_tests.suite import wait_for

pytestmark = pytest.mark.xdist_group("e2e-outsourcing")

# Its queue is full, so that Linux drops each SYN, until something is written to the pipe.
SILENT = """
import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=0)
filling = socket.create_connection(listener.getsockname())
open(sys.argv[3]).read()
listener.accept()
while True:
    sock = listener.accept()[0]
    sock.sendall(sock.recv(99))
"""
# Python calls again after a signal: these calls are libc's.
CALLS = """
import ctypes, errno, json, os, select, signal, socket, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
TIMED = struct.pack("ll", 0, 300_000)
LONG = struct.pack("ll", 60, 0)
said = {}
def called(result):
    return errno.errorcode[ctypes.get_errno()] if result < 0 else "done"
def sleeps(thread):
    # In connect().
    with open(f"/proc/self/task/{thread.native_id}/syscall") as file:
        return file.read().split()[0] == "42"
def tell(name, *seen):
    said[name] = seen
def mark(path):
    open(path, "w").close()
def alarmed(restart=False):
    # The first signal may come before the call begins: others follow.
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.siginterrupt(signal.SIGALRM, not restart)
    signal.setitimer(signal.ITIMER_REAL, 0.3, 0.3)
def quiet():
    signal.setitimer(signal.ITIMER_REAL, 0)
def end():
    print(json.dumps(said))
"""
CONNECT = (
    CALLS
    + """
address = struct.pack("=H", socket.AF_INET) + struct.pack("!H", int(sys.argv[2]))
address += socket.inet_aton(sys.argv[1]) + bytes(8)
def connect(sock):
    return called(libc.connect(sock.fileno(), address, len(address)))
def error(sock):
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
def events(sock, timeout=0):
    poll = select.poll()
    poll.register(sock, select.POLLIN | select.POLLOUT)
    return [event for _, event in poll.poll(timeout)]

with socket.socket() as sock:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, TIMED)
    tell("timed", connect(sock), connect(sock), events(sock))
with socket.socket() as sock:
    sock.setblocking(False)
    tell("nonblocking", connect(sock), connect(sock), events(sock))
with socket.socket() as sock:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, LONG)
    alarmed(restart=True)
    tell("interrupted, timed", connect(sock), events(sock))
    quiet()
with socket.socket() as sock:
    sock.setblocking(False)
    connect(sock)
    tell("no listener", called(libc.listen(sock.fileno(), 1)), called(libc.accept(sock.fileno(), None, None)))
    tell("given up", called(libc.shutdown(sock.fileno(), socket.SHUT_RDWR)), error(sock), connect(sock))
with socket.socket() as sock:
    thread = threading.Thread(target=lambda: tell("given up, asleep", connect(sock), error(sock)))
    thread.start()
    while not sleeps(thread):
        time.sleep(0.01)
    called(libc.shutdown(sock.fileno(), socket.SHUT_WR))
    thread.join()
with socket.socket() as sock:
    alarmed()
    tell("interrupted", connect(sock), connect(sock))
    quiet()
    mark("/tmp/interrupted")
    tell("polled", events(sock, 60_000), error(sock))
    tell("completed", connect(sock), connect(sock))
    sock.sendall(b"knock")
    tell("echoed", sock.recv(99).decode())
end()
"""
)
ACCEPT = (
    CALLS
    + """
listener = socket.create_server(("", int(sys.argv[1])))
def accept(listener):
    fd = libc.accept(listener.fileno(), None, None)
    if fd >= 0:
        with socket.socket(fileno=fd) as sock:
            # A reset: the next test may have this port.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return called(fd)

mark("/tmp/listening")
open("/tmp/begin").read()
listener.setblocking(False)
tell("nonblocking", accept(listener))
listener.setblocking(True)
alarmed()
tell("interrupted", accept(listener))
quiet()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMED)
tell("timed", accept(listener))
listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, LONG)
alarmed(restart=True)
tell("interrupted, timed", accept(listener))
listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bytes(16))
# Python's handlers run after the call. This sees two signals while it goes on.
seen, noted = os.pipe()
os.set_blocking(noted, False)
signal.set_wakeup_fd(noted)
threading.Thread(target=lambda: (os.read(seen, 1), os.read(seen, 1), mark("/tmp/restarted"))).start()
tell("restarted", accept(listener))
quiet()
end()
"""
)


@pytest.fixture(params=[False, True], ids=["native", "outsourced"])
def is_outsourced(request: pytest.FixtureRequest, outsourced: Outsourced) -> bool:
    """Tell whether sockets are outsourced: with the module, or without."""
    vm = outsourced.vm
    if request.param:
        outsourced.load()
    elif loaded(vm):
        rmmod(vm)
    vm.run("rm -f /tmp/interrupted /tmp/listening /tmp/begin /tmp/restarted")
    return request.param


@pytest.mark.slow_on("6.1")
def test_connect(outsourced: Outsourced, is_outsourced: bool, tmp_path: Path) -> None:
    """The server is silent: connect() times out, or is interrupted and goes on; it completes later."""
    vm, pipe = outsourced.vm, tmp_path / "pipe"
    os.mkfifo(pipe)
    vm.put(CONNECT, "/tmp/connect.py")
    delta = Delta(vm) if is_outsourced else None
    with serving(["python3", "-B", "-c", SILENT, OUTSIDE, "7010", str(pipe)], 7010):
        inside = isolate.on_host("outside")
        full = [*inside, "ss", "-Htn", "state", "established", "sport = :7010"]
        wait_for(lambda: run(full).strip(), "the queue is full")
        job = vm.spawn(f"python3 -B /tmp/connect.py {OUTSIDE} 7010")
        interrupted = "test -e /tmp/interrupted"
        wait_for(lambda: not vm.run(interrupted, check=False).code, "connect() is interrupted", 60)
        pipe.write_text("")
        said = json.loads(job.result(120 * outsourced.slow).out)
    assert said == {
        "timed": ["EINPROGRESS", "EALREADY", []],
        "nonblocking": ["EINPROGRESS", "EALREADY", []],
        "interrupted, timed": ["EINTR", []],
        "no listener": ["EINVAL", "EINVAL"],
        "given up": ["done", errno.ECONNRESET, "EINPROGRESS"],
        "given up, asleep": ["ECONNRESET", 0],
        "interrupted": ["EINTR", "EINTR"],
        "polled": [[4], 0],
        "completed": ["done", "EISCONN"],
        "echoed": ["knock"],
    }
    if delta:
        moved = delta.of(vm)
        assert moved["outsource_calls"] == 7
        assert (moved["tx_bytes_outsourced"], moved["rx_bytes_outsourced"]) == (5, 5)


@pytest.mark.slow_on("6.1")
def test_accept(outsourced: Outsourced, is_outsourced: bool) -> None:
    """Nothing calls: accept() of a published port times out, is interrupted, or is restarted."""
    vm = outsourced.vm
    vm.put(ACCEPT, "/tmp/accept.py")
    vm.run("mkfifo /tmp/begin")
    delta = Delta(vm) if is_outsourced else None
    job = vm.spawn("python3 -B /tmp/accept.py 8080")
    wait_for(lambda: not vm.run("test -e /tmp/listening", check=False).code, "it listens", 60)
    if is_outsourced:
        wait_published(8080)
    vm.run("echo >/tmp/begin")
    wait_for(lambda: not vm.run("test -e /tmp/restarted", check=False).code, "accept() is restarted", 60)
    with socket.create_connection((HOST if is_outsourced else vm.ip4, 8080)):
        said = json.loads(job.result(60 * outsourced.slow).out)
    assert said == {
        "nonblocking": ["EAGAIN"],
        "interrupted": ["EINTR"],
        "timed": ["EAGAIN"],
        "interrupted, timed": ["EINTR"],
        "restarted": ["done"],
    }
    if delta:
        assert delta.of(vm)["outsource_arrivals"] == 1
