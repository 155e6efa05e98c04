# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Datagrams of AF_VSOCK between two guests.

datagrams.py echo PORT                      echo each datagram to its sender
datagrams.py trips CID PORT COUNT PROGRAMS  have as many echoed to each program; print what was wrong
datagrams.py deaf PORT BYTES                read nothing before a line of the input; then all, in order
datagrams.py flood CID PORT COUNT LENGTH    send numbered datagrams, as many as that
datagrams.py share CID PORT SECONDS LENGTH PROGRAMS  print how many each program sent
datagrams.py calls CID PORT                 what calls see
datagrams.py late CID PORT LENGTH PROGRAMS  print "waiting" once the ring is full, and programs wait that get
                                            no CPU; then whether one behind them has sent soon
datagrams.py announce PORT COUNT LENGTH CID...  send multicast ones; wait for each to come back from each CID
datagrams.py send CID PORT                  for each line of the input send one, or send "till refused"; print
                                            the error of the last
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tunnel import failure

MOST = 65536  # bytes of a datagram
LENGTHS = (0, 1, 15, 16, 17, 64, 1000, 4096, 16384, MOST)
PATIENCE = 60
SOON = 20  # seconds, for what comes at once
PAUSE = 0.01  # seconds between two looks; a refusal is known for 10 times that
MULTICAST = 0x80000000  # HALLWAY_CID_MULTICAST
SO_RCVBUFFORCE = 33
CGROUPS = Path("/sys/fs/cgroup")
ENOUGH = 16 << 20  # bytes of a buffer for all that callers have on their way


def bound(port: int = socket.VMADDR_PORT_ANY) -> socket.socket:
    """Return a socket with a port."""
    sock = socket.socket(socket.AF_VSOCK, socket.SOCK_DGRAM)
    sock.bind((socket.VMADDR_CID_ANY, port))
    return sock


def echo(port: int) -> None:
    """Echo until killed."""
    sock = bound(port)
    sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, ENOUGH)
    print("ready", flush=True)
    while True:
        data, sender = sock.recvfrom(MOST)
        sock.sendto(data, sender)


def _side_by_side(count: int, run: Callable[[int], object]) -> list[object]:
    """Run as many programs at once; return what each returns."""
    pipes = []
    for number in range(count):
        out, into = os.pipe()
        if not os.fork():
            os.write(into, json.dumps(run(number)).encode())
            os._exit(0)
        os.close(into)
        pipes.append(out)
    return [json.loads(os.read(out, MOST)) for out in pipes]


def trips(cid: int, port: int, count: int, programs: int) -> None:
    """Check what comes back, and from where."""

    def run(number: int) -> object:
        draw, sock, sent = random.Random(number), bound(), 0
        for place in range(count):
            data = draw.randbytes(draw.choice((*LENGTHS, draw.randrange(MOST))))
            sock.sendto(data, (cid, port))
            sent += len(data)
            if not select.select([sock], [], [], PATIENCE)[0]:
                return f"{number}: datagram {place} of {len(data)} bytes did not come back", sent
            got, sender = sock.recvfrom(MOST)
            if got != data or sender != (cid, port):
                return f"{number}: datagram {place}: {len(got)} bytes, not {len(data)}, of {sender}", sent
        return "", sent

    found = _side_by_side(programs, run)
    print(json.dumps({"wrong": [one[0] for one in found if one[0]], "sent": sum(one[1] for one in found)}))


def deaf(port: int, size: int) -> None:
    """Print how many datagrams are in the queue, the first of all that were sent."""
    sock = bound(port)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
    print("ready", flush=True)
    sys.stdin.readline()
    sock.setblocking(False)
    numbers = []
    with contextlib.suppress(BlockingIOError):
        while True:
            numbers.append(int.from_bytes(sock.recv(MOST)[:4], "little"))
    assert numbers == list(range(len(numbers))), numbers
    print(len(numbers), flush=True)


def flood(cid: int, port: int, count: int, length: int) -> None:
    """Send without a pause."""
    sock = bound()
    for number in range(count):
        sock.sendto(number.to_bytes(4, "little") + bytes(length - 4), (cid, port))
    print(count)


def share(cid: int, port: int, seconds: int, length: int, programs: int) -> None:
    """Send in all programs for the same time."""
    begin = time.time() + 1

    def run(_: int) -> int:
        sock, data, count = bound(), bytes(length), 0
        time.sleep(begin - time.time())
        while time.time() < begin + seconds:
            sock.sendto(data, (cid, port))
            count += 1
        return count

    print(json.dumps(_side_by_side(programs, run)))


def calls(cid: int, port: int) -> None:
    """Print what each call gives; an echo listens at the port."""
    sock = bound()
    own = sock.getsockname()[1]
    found: dict[str, object] = {
        "port": own > 1023,
        "taken": failure(lambda: bound(own)),
        "too long": failure(lambda: sock.sendto(bytes(MOST + 1), (cid, port))),
        "nowhere": failure(lambda: sock.sendto(b"x", (0x7FFFFFFF, port))),
        "host": failure(lambda: sock.sendto(b"x", (2, port))),
        "not connected": failure(lambda: sock.send(b"x")),
        "empty": failure(lambda: sock.recv(1, socket.MSG_DONTWAIT)),
    }
    sock.connect((cid, port))
    sock.send(b"hello")
    found["readable"] = bool(select.select([sock], [], [], PATIENCE)[0])
    found["peeked"] = sock.recv(2, socket.MSG_PEEK).decode()
    data, _, flags, sender = sock.recvmsg(2)
    found["cut"] = data.decode(), bool(flags & socket.MSG_TRUNC), sender == (cid, port)
    sock.send(b"whole")
    found["length"] = len(sock.recv(2, socket.MSG_TRUNC))
    found["drained"] = failure(lambda: sock.recv(1, socket.MSG_DONTWAIT))
    sock.settimeout(0.05)
    try:
        sock.recv(1)
    except TimeoutError:
        found["timeout"] = True
    os.setuid(65534)
    found["reserved"] = failure(lambda: bound(7))
    print(json.dumps(found))


def announce(port: int, count: int, length: int, *cids: int) -> None:
    """Print what did not come back whole from all of them, once each."""
    sock, draw = bound(), random.Random(count)
    sock.settimeout(SOON)
    for number in range(count):
        data = draw.randbytes(length)
        sock.sendto(data, (MULTICAST, port))
        answers: list[tuple[tuple[int, int], bytes]] = []
        with contextlib.suppress(TimeoutError):
            answers.extend(sock.recvfrom(MOST)[::-1] for _ in cids)
        if sorted(answers) != sorted(((cid, port), data) for cid in cids):
            print(json.dumps(f"datagram {number}: {[(sender, len(one)) for sender, one in answers]}"))
            return
    sock.setblocking(False)
    found = failure(lambda: sock.recv(1))
    print(json.dumps("" if found == "EAGAIN" else "more came back than was sent"))


def send(cid: int, port: int) -> None:
    """Send as often as there are lines."""
    sock = bound()
    print("ready", flush=True)
    for line in sys.stdin:
        end = time.monotonic() + PATIENCE
        while True:
            found = failure(lambda: sock.sendto(b"needle!!", (cid, port)))
            if line.strip() != "till refused" or found == "ECONNREFUSED" or time.monotonic() > end:
                break
            time.sleep(PAUSE)
        print(found, flush=True)


def _forked(run: Callable[[], object]) -> int:
    """Run that in another process; return its number."""
    pid = os.fork()
    if not pid:
        run()
        os._exit(0)
    return pid


def _await(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(PAUSE)


def _sleeps(pid: int) -> bool:
    """Tell whether a process waits in a call."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def _busy() -> None:
    while True:
        pass


@contextlib.contextmanager
def _starved(pids: list[int]) -> Iterator[None]:
    """Give processes a thousandth of a CPU, which they share with one that uses it up; then end them."""
    (CGROUPS / "cgroup.subtree_control").write_text("+cpu")
    group = CGROUPS / "starved"
    group.mkdir()
    all_pids = [_forked(_busy), *pids]
    try:
        (group / "cpu.max").write_text("1000 1000000")
        for pid in all_pids:
            (group / "cgroup.procs").write_text(str(pid))
        _await(lambda: "nr_throttled 0" not in (group / "cpu.stat").read_text(), "its CPU is used up")
        yield
    finally:
        # To end takes CPU time, too, and what ends can not be moved.
        (group / "cpu.max").write_text("max")
        for pid in all_pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        group.rmdir()


def late(cid: int, port: int, length: int, programs: int) -> None:
    """Have programs wait that get no CPU any more, and one behind them that does."""

    def send(count: int) -> None:
        sock = bound()
        for _ in range(count):
            sock.sendto(bytes(length), (cid, port))

    starved = []
    for _ in range(programs):
        starved.append(_forked(lambda: send(1000)))
        _await(lambda: _sleeps(starved[-1]), "the ring is full")
    last = _forked(lambda: send(1))
    _await(lambda: _sleeps(last), "the last one waits")
    with _starved(starved):
        print("waiting", flush=True)
        ended = select.select([os.pidfd_open(last)], [], [], SOON)[0]
    if not ended:
        print("too late", flush=True)
        return
    _, status = os.waitpid(last, 0)
    print(f"failed: {status}" if status else "in time", flush=True)


def main() -> None:
    """Do what the command line says."""
    word, *rest = sys.argv[1:]
    commands = (echo, trips, deaf, flood, share, calls, announce, send, late)
    next(one for one in commands if one.__name__ == word)(*map(int, rest))


if __name__ == "__main__":
    main()
