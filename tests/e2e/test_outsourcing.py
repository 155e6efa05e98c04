# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Sockets of a guest that the host executes: unmodified programs, to a server and from a client outside."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import re
import select
import signal
import socket
import stat
import struct
import termios
import time
from collections import Counter
from pathlib import Path

import pytest
from hallway_lab import isolate
from hallway_lab.outsourcing import HOST, HOST6, OUTSIDE, OUTSIDE6, serving
from hallway_lab.sh import run
from hallway_lab.vm import VM
from hallway_tests.guests import Delta, connections, counters, healthy, loaded, rmmod, status, wait_listening
from hallway_tests.outsourced import ECHO, PUBLISH, TALKER, Outsourced, is_published, wait_published, waits
from hallway_tests.suite import wait_for

pytestmark = pytest.mark.xdist_group("e2e-outsourcing")

REFUSED = "10.77.0.254"  # the host's own, which no rule names
# Answers each connection with the digest of its bytes, and the bytes in reverse.
# "poll" after its address and port has it sleep in select() instead of accept().
SERVER = """
import hashlib, select, socket, sys, threading
def serve(sock):
    digest, data = hashlib.sha256(), bytearray()
    while piece := sock.recv(65536):
        digest.update(piece)
        data += piece
    sock.sendall(digest.digest() + data[::-1])
    sock.close()
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), family=family)
while True:
    if sys.argv[3:] == ["poll"]:
        select.select([listener], [], [])
    threading.Thread(target=serve, args=(listener.accept()[0],)).start()
"""
CLIENT = """
import hashlib, json, random, socket, sys
data = random.randbytes(int(sys.argv[3]))
sock = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)
names = {"own": sock.getsockname(), "peer": sock.getpeername()}
sock.sendall(data)
sock.shutdown(socket.SHUT_WR)
got = bytearray()
while piece := sock.recv(65536):
    got += piece
good = got[:32] == hashlib.sha256(data).digest() and got[32:] == data[::-1]
print(json.dumps({"good": good, **names}))
"""


def served(
    address: str, port: int, netns: str | None, program: str = SERVER
) -> contextlib.AbstractContextManager[None]:
    """Run a server on the host, or outside, in the block."""
    return serving(["python3", "-B", "-c", program, address, str(port)], port, netns)


@pytest.mark.parametrize(("own", "peer"), [(HOST, OUTSIDE), (HOST6, OUTSIDE6)], ids=["v4", "v6"])
def test_connect(outsourced: Outsourced, own: str, peer: str) -> None:
    """A program in the guest talks to a server outside: every byte goes by the outsourcer's socket."""
    vm = outsourced.vm
    outsourced.load()
    delta = Delta(vm)
    vm.put(CLIENT, "/tmp/client.py")
    with served(peer, 7000, "outside"):
        said = json.loads(vm.run(f"python3 -B /tmp/client.py {peer} 7000 3000000", timeout=120).out)
    assert said["good"]
    assert (said["own"][0], said["peer"][:2]) == (own, [peer, 7000])
    moved = delta.of(vm)
    assert moved["outsource_connections"] == 1
    assert moved["tx_bytes_outsourced"] == 3_000_000
    assert moved["rx_bytes_outsourced"] == 3_000_032


def test_ring_grows(outsourced: Outsourced) -> None:
    """Once the outsourcer is known to know how, a ring grows where a program sends much, and only there."""
    vm = outsourced.vm
    outsourced.load()
    vm.put(CLIENT, "/tmp/client.py")
    with served(OUTSIDE, 7042, "outside"):
        # The first ring is large: the outsourcer has not said anything yet.
        for size, grown in ((300_000, 0), (5_000, 0), (300_000, 1)):
            delta = Delta(vm)
            said = json.loads(vm.run(f"python3 -B /tmp/client.py {OUTSIDE} 7042 {size}", timeout=120).out)
            moved = delta.of(vm)
            assert said["good"]
            assert (moved["tx_bytes_outsourced"], moved["rings_grown"]) == (size, grown)


# Sends a byte for each that comes back.
PINGER = """
import socket, sys
sock = socket.create_connection((sys.argv[1], int(sys.argv[2])))
for count in range(int(sys.argv[3])):
    sock.sendall(bytes([count % 256]))
    assert sock.recv(1) == bytes([count % 256])
"""


@pytest.mark.not_on("debug", "other work there ends most spins")
def test_spinning(outsourced: Outsourced) -> None:
    """A reader looks for bytes before it sleeps, and so does the outsourcer: no doorbell has to ring."""
    vm = outsourced.vm
    outsourced.load(spin_us=1_000_000)  # longer than a busy machine keeps the outsourcer from its CPU
    vm.put(PINGER, "/tmp/pinger.py")
    delta, trips = Delta(vm), 200
    with outsourced.configured("spin-us = 1000"), served(OUTSIDE, 7043, "outside", ECHO):
        vm.run(f"python3 -B /tmp/pinger.py {OUTSIDE} 7043 {trips}", timeout=60 * outsourced.slow)
    moved = delta.of(vm)
    assert moved["rx_bytes_outsourced"] >= trips
    assert moved["rx_spin_hits"] >= trips / 2
    # Asleep, each trip needs one of each. On a busy host the outsourcer's millisecond is often too short.
    assert moved["doorbells_received"] < trips / 2
    assert moved["doorbells_sent"] < trips


CROWDED = 800
SHORT_RING = (4 + 16) << 10  # bytes, with its head
# Answers the first byte of each connection, and keeps it.
HOST_OF_CROWD = """
import socket, sys
listener, kept = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=1000), []
while True:
    kept.append(listener.accept()[0])
    kept[-1].sendall(kept[-1].recv(1))
"""
IDLE_CROWD = f"""
import socket, sys
kept = []
for _ in range({CROWDED}):
    kept.append(socket.create_connection((sys.argv[1], int(sys.argv[2])), 60))
    kept[-1].sendall(b"1")
    assert kept[-1].recv(1) == b"1"
open("/tmp/crowded", "w").close()
kept[0].recv(1)
"""


@pytest.mark.slow_on("6.1")
def test_idle_crowd(outsourced: Outsourced) -> None:
    """Each of many connections takes 20 KiB of each side, and wakes neither while it is idle."""
    vm = outsourced.vm
    # A ninth is for other members.
    outsourced.load(memory_bytes=CROWDED * SHORT_RING * 9 // 8 + SHORT_RING)
    vm.put(CLIENT, "/tmp/client.py")
    vm.put(IDLE_CROWD, "/tmp/crowd.py")
    vm.run("rm -f /tmp/crowded")
    pid = outsourced.outsourcer()
    assert pid

    def moved() -> tuple[list[str], list[int]]:
        """CPU time of the outsourcer, and doorbells of the guest."""
        ticks = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
        now = counters(vm)
        return ticks, [now[name] for name in ("doorbells_sent", "doorbells_received")]

    def is_quiet() -> bool:
        _, before = moved()
        time.sleep(1)
        return moved()[1] == before

    with served(OUTSIDE, 7044, "outside"), served(OUTSIDE, 7045, "outside", HOST_OF_CROWD):
        # The outsourcer says that it supports rings that grow.
        vm.run(f"python3 -B /tmp/client.py {OUTSIDE} 7044 1", timeout=120)
        delta = Delta(vm)
        job = vm.spawn(f"exec python3 -B /tmp/crowd.py {OUTSIDE} 7045")
        wait_for(lambda: not vm.run("test -e /tmp/crowded", check=False).code, "all are there", 120)
        assert delta.of(vm)["outsource_connections"] == CROWDED
        wait_for(is_quiet, "the last doorbells have come", 60)
        before, begin = moved(), time.monotonic()
        wait_for(lambda: time.monotonic() > begin + 5, "some time passes")
        ticks, doorbells = moved()
        assert doorbells == before[1]
        # It says that it lives, and what it carries.
        assert sum(map(int, ticks)) - sum(map(int, before[0])) <= 10, "a fiftieth of a CPU"
        job.kill()


# Sends the first part, and the second one when it is asked for.
IN_PARTS = """
import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
sock = listener.accept()[0]
sock.sendall(bytes(60_000))
sock.recv(1)
sock.sendall(bytes(40_000))
sock.recv(1)
"""
# Writes parts of which four fill a short ring, each when poll() says that there is space.
POLLED = """
import os, select, socket, sys, time
sock = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)
poller = select.poll()
poller.register(sock, select.POLLOUT)
while not os.path.exists("/tmp/write"):
    time.sleep(0.05)
for _ in range(20):
    assert poller.poll(60_000)
    sock.send(bytes(4096), socket.MSG_DONTWAIT)
open("/tmp/written", "w").close()
sock.shutdown(socket.SHUT_WR)
while sock.recv(65536):
    pass
"""
PATIENT = """
import array, fcntl, json, select, socket, sys, termios
sock = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)
sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 100_000)
poller, unread = select.poll(), array.array("i", [0])
poller.register(sock, select.POLLIN)
early = poller.poll(1000)
sock.sendall(b"1")
late = poller.poll(60_000)
fcntl.ioctl(sock, termios.FIONREAD, unread)
print(json.dumps([len(early), len(late), unread[0]]))
"""


@pytest.mark.slow_on("6.1")
def test_polled_ring_grows(outsourced: Outsourced) -> None:
    """So does the ring of a program that polls before each write, and writes little, before it is full."""
    vm = outsourced.vm
    outsourced.load()
    vm.put(CLIENT, "/tmp/client.py")
    vm.put(POLLED, "/tmp/polled.py")
    vm.run("rm -f /tmp/write /tmp/written")
    pid = outsourced.outsourcer()
    assert pid
    with served(OUTSIDE, 7043, "outside"):
        # The outsourcer says that it knows such rings.
        vm.run(f"python3 -B /tmp/client.py {OUTSIDE} 7043 1", timeout=120)
        delta = Delta(vm)
        job = vm.spawn(f"python3 -B /tmp/polled.py {OUTSIDE} 7043")
        wait_for(lambda: delta.of(vm)["outsource_connections"], "it is connected", 60)
        os.kill(pid, signal.SIGSTOP)
        try:
            vm.run("touch /tmp/write")
            wait_for(lambda: not vm.run("test -e /tmp/written", check=False).code, "it has written", 30)
        finally:
            os.kill(pid, signal.SIGCONT)
        done = job.wait(60)
        assert not done.code, done
    moved = delta.of(vm)
    assert moved["tx_bytes_outsourced"] == 20 * 4096
    assert moved["rings_grown"] == 1


@pytest.mark.slow_on("6.1")
def test_lowat_above_short_ring(outsourced: Outsourced) -> None:
    """A poller waits for more bytes than a ring holds before it has grown."""
    vm = outsourced.vm
    outsourced.load()
    delta = Delta(vm)
    vm.put(PATIENT, "/tmp/patient.py")
    with served(OUTSIDE, 7041, "outside", IN_PARTS):
        said = json.loads(vm.run(f"python3 -B /tmp/patient.py {OUTSIDE} 7041", timeout=120).out)
    assert said == [0, 1, 100_000]
    moved = delta.of(vm)
    assert moved["outsource_connections"] == 1
    assert moved["rings_grown"] == 0  # the guest's own


@pytest.mark.slow_on("6.1")
def test_not_allowed(outsourced: Outsourced) -> None:
    """What no rule allows goes by the guest's own stack, and its program notices nothing."""
    vm = outsourced.vm
    outsourced.load()
    delta = Delta(vm)
    vm.put(CLIENT, "/tmp/client.py")
    with served(REFUSED, 7001, None):
        said = json.loads(vm.run(f"python3 -B /tmp/client.py {REFUSED} 7001 300000", timeout=120).out)
    assert said["good"]
    assert said["own"][0] == vm.ip4
    moved = delta.of(vm)
    assert (moved["outsource_calls"], moved["outsource_refused"]) == (1, 1)
    assert not moved["tx_bytes_outsourced"]


# Calls that are not outsourced: to a loopback address, of a bound socket, and two with a mark.
UNSUITABLE = """
import contextlib, socket, sys
outside = (sys.argv[1], 9)
def call(address, bind=None, mark=0):
    with socket.socket() as sock, contextlib.suppress(OSError):
        sock.settimeout(0)
        if bind:
            sock.bind(bind)
        if mark:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
        sock.connect(address)
call(("127.0.0.1", 9))
call(outside, bind=("", 7777))
for mark in (1, 2):
    call(outside, mark=mark)
"""


def test_native_reasons(outsourced: Outsourced) -> None:
    """Of each connect() that is not outsourced the reason is counted, and shown to people and programs."""
    vm = outsourced.vm
    outsourced.load()

    def natives() -> dict[str, int]:
        return {one["reason_name"]: one["count"] for one in status(vm)["module"]["natives"]}

    vm.put(UNSUITABLE, "/tmp/unsuitable.py")
    before = Counter(natives())
    vm.run(f"python3 -B /tmp/unsuitable.py {OUTSIDE}")
    with served(REFUSED, 7017, None, ECHO):
        vm.run(f"python3 -c 'import socket; socket.create_connection((\"{REFUSED}\", 7017), 60)'")
    vm.run("hallway outsource off")
    vm.run(f"python3 -B /tmp/unsuitable.py {OUTSIDE}")
    vm.run("hallway outsource on")
    expected = {"LOCAL": 1, "BOUND": 1, "OPTION": 2, "REFUSED": 1, "OFF": 4}
    assert Counter(natives()) - before == expected
    assert re.search(r"^left native +reason$", vm.run("hallway status").out, re.M)
    count = natives()["OPTION"]
    assert f'hallway_outsource_natives_total{{reason="OPTION"}} {count}' in vm.run("hallway metrics").out
    assert f"{count} not outsourced, OPTION" in vm.run("hallway doctor", check=False).out


# A thread is in a page fault, with the socket's lock, as the answer to connect() comes: until /tmp/go-on.
FAULTY_CALLER = """
import contextlib, errno, os, select, socket, sys, threading, time
sys.path.insert(0, "/hallway/tests")
from native import Unpaged
def wait(name):
    while not os.path.exists(name):
        time.sleep(0.05)
def fault():
    with contextlib.suppress(OSError):
        page.setsockopt(sock, socket.SOL_SOCKET, 26, 16)  # SO_ATTACH_FILTER
page, sock = Unpaged(), socket.socket()
sock.setblocking(False)
wait("/tmp/call")
assert sock.connect_ex((sys.argv[1], int(sys.argv[2]))) == errno.EINPROGRESS
threading.Thread(target=fault).start()
wait("/tmp/go-on")
page.close()
select.select([], [sock], [], 60)
assert not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
sock.getpeername()
print(sock.getsockname()[0])
"""


@pytest.mark.slow_on("6.12")
def test_refused_in_fault(outsourced: Outsourced) -> None:
    """No work item waits for a thread that has a socket's lock; its refusal has effect after that."""
    vm = outsourced.vm
    outsourced.load()
    delta = Delta(vm)
    vm.put(FAULTY_CALLER, "/tmp/faulty.py")
    vm.run("rm -f /tmp/call /tmp/go-on")
    pid = outsourced.outsourcer()
    assert pid
    with served(REFUSED, 7016, None, ECHO):
        job = vm.spawn(f"exec python3 -B /tmp/faulty.py {REFUSED} 7016")
        os.kill(pid, signal.SIGSTOP)
        try:
            vm.run("touch /tmp/call")
            wait_for(lambda: waits(vm, "python3", "handle_userfault"), "a thread is in a fault")
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_for(lambda: delta.of(vm)["offers_declined"], "it is refused", 20 * outsourced.slow)
        assert not waits(vm, "kworker", "__lock_sock")
        vm.run("touch /tmp/go-on")
        assert job.wait(60).out.strip() == vm.ip4
    assert delta.of(vm)["outsource_refused"] == 1


def _stays_native(outsourced: Outsourced, ruled: str) -> None:
    """Fail unless the connection of a client is native in that command, and outsourced without it."""
    vm = outsourced.vm
    outsourced.load()
    delta = Delta(vm)
    vm.put(CLIENT, "/tmp/client.py")
    client = f"python3 -B /tmp/client.py {OUTSIDE} 7005 100000"
    with served(OUTSIDE, 7005, "outside"):
        native = json.loads(vm.run(ruled.format(client=client), timeout=120).out)
        assert not delta.of(vm)["outsource_calls"]
        free = json.loads(vm.run(client, timeout=120).out)
    assert native["good"], native
    assert free["good"], free
    assert delta.of(vm)["outsource_connections"] == 1


@pytest.mark.slow_on("6.1")
def test_guest_rules(outsourced: Outsourced) -> None:
    """A connection to which packet rules of the guest apply stays native."""
    program = (
        "import nft, subprocess, sys\nwith nft.counting(9):\n    subprocess.run(sys.argv[1:], check=True)"
    )
    outsourced.vm.put(program, "/tmp/ruled.py")
    _stays_native(outsourced, "PYTHONPATH=/hallway/tests python3 -B /tmp/ruled.py {client}")


@pytest.mark.kernel("6.1", "6.12")  # the debug kernel has no xfrm_user
def test_guest_ipsec(outsourced: Outsourced) -> None:
    """No connection passes by IPsec policies of the guest."""
    policy = "ip xfrm policy add dst 192.0.2.0/24 dir out action block"
    _stays_native(outsourced, f"{policy} && {{client}}; code=$?; ip xfrm policy flush; exit $code")


def test_published(outsourced: Outsourced) -> None:
    """One listener in the guest serves a client on the host, one by the NIC, and one in the guest."""
    vm = outsourced.vm
    outsourced.load()
    delta = Delta(vm)
    vm.put(SERVER, "/tmp/server.py")
    vm.put(CLIENT, "/tmp/client.py")
    job = vm.spawn("exec python3 -B /tmp/server.py 0.0.0.0 8080")
    wait_listening(vm, 8080)
    wait_published(8080)
    for netns, address in (("outside", HOST), (None, vm.ip4)):
        words = [*isolate.on_host(netns), "python3", "-B", "-c", CLIENT, address, "8080", "1000000"]
        said = json.loads(run(words))
        assert said["good"], said
    assert json.loads(vm.run("python3 -B /tmp/client.py 127.0.0.1 8080 10000").out)["good"]
    moved = delta.of(vm)
    assert moved["outsource_arrivals"] == 1
    assert moved["rx_bytes_outsourced"] == 1_000_000
    # On the host this is a local user, and in the guest a program might trust it.
    with pytest.raises(ConnectionResetError), socket.create_connection(("127.0.0.1", 8080), 60) as loopback:
        loopback.recv(1)
    assert delta.of(vm)["outsource_arrivals"] == 1
    job.kill()


def fetch(address: str, port: int) -> None:
    """Have a client outside talk to the server at a port."""
    words = [*isolate.on_host("outside"), "python3", "-B", "-c", CLIENT, address, str(port), "100000"]
    assert json.loads(run(words))["good"]


@pytest.mark.slow_on("6.12")
def test_older_listeners(outsourced: Outsourced) -> None:
    """Listeners from before the module are published, one in accept() after its next native connection.

    They are published again for the next outsourcer, and for the module that is loaded again.
    """
    vm = outsourced.vm
    if loaded(vm):
        rmmod(vm)
    jobs = []
    vm.put(SERVER, "/tmp/server.py")
    for port, how in ((8080, "poll"), (8081, "")):
        jobs.append(vm.spawn(f"exec python3 -B /tmp/server.py 0.0.0.0 {port} {how}"))
        wait_listening(vm, port)
    vm.put(CLIENT, "/tmp/client.py")
    outsourced.load()
    delta = Delta(vm)
    wait_published(8080)
    fetch(HOST, 8080)
    assert not is_published(8181), "published, with a thread in the native accept()"
    assert json.loads(vm.run("python3 -B /tmp/client.py 127.0.0.1 8081 10000").out)["good"]
    wait_published(8181)
    fetch(HOST, 8181)
    listed = [c for c in connections(vm) if c["outsourced"] and c["state"] == "LISTEN"]
    assert {c["local_port"] for c in listed} == {8080, 8081}, listed
    outsourced.kill_outsourcer()
    wait_published(8080, 8181)
    fetch(HOST, 8080)
    fetch(HOST, 8181)
    assert delta.of(vm)["outsource_arrivals"] == 4
    outsourced.load()
    wait_published(8080)
    fetch(HOST, 8080)
    for job in jobs:
        assert job.poll() is None, "a server ended"
        job.kill()
    wait_for(lambda: not is_published(8080) and not is_published(8181), "the ports are free")


def test_switch(outsourced: Outsourced) -> None:
    """`hallway outsource off` leaves sockets to the native stack; on publishes listeners again."""
    vm = outsourced.vm
    outsourced.load()
    vm.put(SERVER, "/tmp/server.py")
    vm.put(CLIENT, "/tmp/client.py")
    job = vm.spawn("exec python3 -B /tmp/server.py 0.0.0.0 8080")
    wait_published(8080)
    client = f"python3 -B /tmp/client.py {OUTSIDE} 7006 100000"
    with served(OUTSIDE, 7006, "outside"):
        for on in (False, True):
            vm.run(f"hallway outsource {'on' if on else 'off'}")
            assert f"outsourcing {'on' if on else 'off'}" in vm.run("hallway status").out
            delta = Delta(vm)
            assert json.loads(vm.run(client, timeout=120).out)["own"][0] == (HOST if on else vm.ip4)
            assert delta.of(vm)["outsource_connections"] == on
            wait_for(lambda: is_published(8080) == on, f"published: {on}")  # noqa: B023
            fetch(HOST if on else vm.ip4, 8080)
            assert delta.of(vm)["outsource_arrivals"] == on
    job.kill()


CGROUP = "/sys/fs/cgroup/chosen"
# Connects with or without a choice of its own, and says from where.
CHOOSER = """
import socket, sys
sock = socket.socket()
if sys.argv[3:]:
    sock.setsockopt(0x48414c, 1, int(sys.argv[3]))
sock.connect((sys.argv[1], int(sys.argv[2])))
print(sock.getsockname()[0])
"""


@pytest.mark.slow_on("6.12")
def test_scope(outsourced: Outsourced) -> None:
    """Sockets are outsourced of programs in chosen cgroups, of `hallway exec`, and as each socket asks."""
    vm = outsourced.vm
    outsourced.load()
    vm.put(SERVER, "/tmp/server.py")
    vm.put(CHOOSER, "/tmp/chooser.py")
    choose = f"python3 -B /tmp/chooser.py {OUTSIDE} 7013"
    vm.run(f"mkdir -p {CGROUP}/below")

    def address(words: str, choice: str = "") -> str:
        return vm.run(f"{words} {choose} {choice}").out.strip()

    inside = f"sh -c 'echo $$ > {CGROUP}/below/cgroup.procs; exec \"$@\"' sh"
    with served(OUTSIDE, 7013, "outside"):
        assert [address("", choice) for choice in ("", "0", "1")] == [HOST, vm.ip4, HOST]
        job = vm.spawn("exec python3 -B /tmp/server.py 0.0.0.0 8080")
        wait_published(8080)
        vm.run(f"hallway outsource on --cgroup {CGROUP}")
        wait_for(lambda: not is_published(8080), "the listener is out of scope", 60 * outsourced.slow)
        assert "outsourcing on in 1 cgroups" in vm.run("hallway status").out
        assert [address("", choice) for choice in ("", "0", "1")] == [vm.ip4, vm.ip4, HOST]
        assert [address(inside, choice) for choice in ("", "0")] == [HOST, vm.ip4]
        assert address("hallway exec") == HOST
        assert (address(""), address(inside)) == (vm.ip4, HOST)
        vm.run("hallway outsource off")
        assert address("", "1") == vm.ip4
        assert address("hallway exec") == HOST
        vm.run("hallway outsource on")
        wait_published(8080)
        job.kill()
        assert address("") == HOST
    refused = vm.run("hallway outsource on --cgroup /tmp", check=False)
    assert refused.code and "/tmp is no cgroup" in refused.err
    refused = vm.run(f"hallway outsource off --cgroup {CGROUP}", check=False)
    assert refused.code and "does not go with off" in refused.err


ERRORS = """
import errno, json, select, socket, sys
address, closed, silent = sys.argv[1], 9, int(sys.argv[2])
said = {}
def name(error):
    return errno.errorcode.get(error, error)
try:
    socket.create_connection((address, closed), 20)
except OSError as error:
    said["refused"] = name(error.errno)
sock = socket.socket()
sock.setblocking(False)
said["begin"] = name(sock.connect_ex((address, closed)))
poll = select.poll()
poll.register(sock, select.POLLIN | select.POLLOUT)
mask = poll.poll(20000)[0][1]
said["polled"] = bool(mask & select.POLLERR and mask & select.POLLHUP)
said["error"] = name(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
said["again"] = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
sock.close()
sock = socket.create_connection((address, silent), 20)
said["twice"] = [name(sock.connect_ex((address, silent))) for _ in range(2)]
sock.sendall(b"reset")
try:
    said["got"] = sock.recv(10).decode()
    said["after"] = sock.recv(10).decode()
except OSError as error:
    said["after"] = name(error.errno)
try:
    sock.sendall(b"x")
except OSError as error:
    said["send"] = name(error.errno)
def send_nothing(sock):
    try:
        return sock.send(b"")
    except OSError as error:
        return name(error.errno)
said["nothing"] = [send_nothing(sock)]
sock = socket.create_connection((address, silent), 20)
said["nothing"].append(send_nothing(sock))
# The server answers by a reset.
sock.shutdown(socket.SHUT_WR)
poll = select.poll()
poll.register(sock, 0)
poll.poll(20000)
said["ended"] = name(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
said["nothing"].append(send_nothing(sock))
try:
    sock.listen()
except OSError as error:
    said["listen"] = name(error.errno)
try:
    sock.accept()
except OSError as error:
    said["accept"] = name(error.errno)
# It is reset before its program learns that it was connected.
for noticed in (False, True):
    sock = socket.socket()
    sock.setblocking(False)
    sock.connect_ex((address, silent))
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    poll.poll(20000)
    sock.send(b"reset")
    poll.modify(sock, 0)
    poll.poll(20000)
    if noticed:
        said["reset"] = name(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    said[f"connect, {noticed}"] = [name(sock.connect_ex((address, silent))) for _ in range(2)]
# The host's policy is against it, and the guest has no way.
sock = socket.socket()
said["no way"] = name(sock.connect_ex((sys.argv[3], 80)))
said["no way, again"] = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
print(json.dumps(said))
"""
NO_WAY = "203.0.113.1"
# Sends a few bytes, and resets the connection.
RESETTER = """
import socket, struct, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
while True:
    sock = listener.accept()[0]
    try:
        sock.recv(5)
        sock.sendall(b"last")
    except OSError:
        pass  # the client was faster
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
"""


def test_errors(outsourced: Outsourced) -> None:
    """A refused connect(), blocking or not, and a reset show as they do natively."""
    vm = outsourced.vm
    vm.put(ERRORS, "/tmp/errors.py")
    vm.run(f"ip route replace unreachable {NO_WAY}")
    said = []
    for is_outsourced in (False, True):
        if loaded(vm):
            rmmod(vm)
        if is_outsourced:
            outsourced.load()
            delta = Delta(vm)
        with served(OUTSIDE, 7002, "outside", RESETTER):
            words = f"python3 -B /tmp/errors.py {OUTSIDE} 7002 {NO_WAY}"
            said.append(json.loads(vm.run(words, timeout=120).out))
    vm.run(f"ip route del unreachable {NO_WAY}")
    assert said[0] == said[1]
    assert said[1]["refused"] == "ECONNREFUSED"
    assert said[1]["connect, True"] == ["ECONNABORTED", "EINPROGRESS"]
    assert said[1]["no way"] == "EHOSTUNREACH"
    moved = delta.of(vm)
    # Two are refused by the server's host, one by the policy; two are given up as they begin.
    assert (moved["outsource_calls"], moved["outsource_refused"]) == (9, 1)


def talked(vm: VM) -> tuple[int, int]:
    """Return how many messages the talker has echoed, and how many connections failed."""
    count, failed = vm.run("cat /tmp/talked 2>/dev/null || echo 0 0").out.split()
    return int(count), int(failed)


@pytest.mark.slow_on("6.12")
def test_outsourcer_killed(outsourced: Outsourced) -> None:
    """The outsourcer is killed three times under load: connections fail, and new ones soon go by the next."""
    vm = outsourced.vm
    outsourced.load()
    vm.put(TALKER, "/tmp/talker.py")
    with served(OUTSIDE, 7003, "outside", ECHO):
        talker = vm.spawn(f"exec python3 -B /tmp/talker.py {OUTSIDE} 7003 /tmp/talked")
        for _ in range(3):
            outsourced.wait_outsourced(100_000)
            listed = [c for c in connections(vm) if c["outsourced"]]
            assert all(c["remote"] == OUTSIDE and c["peer"] == "outsourcer" for c in listed), listed
            outsourced.kill_outsourcer()
        outsourced.wait_outsourced(100_000)
        talker.kill()
        assert talker.wait(20).err == "", "the talker failed"
    assert talked(vm)[1] >= 1


@pytest.mark.slow_on("6.1")
def test_daemon_restarted(outsourced: Outsourced) -> None:
    """hallwayd dies or ends, and the next one goes on with the same outsourcer: programs notice nothing."""
    vm, daemon = outsourced.vm, outsourced.site.daemon
    outsourced.load()
    vm.put(TALKER, "/tmp/talker.py")
    vm.put(ECHO, "/tmp/echo.py")
    vm.run("rm -f /tmp/talked")
    with served(OUTSIDE, 7012, "outside", ECHO):
        echo = vm.spawn("exec python3 -B /tmp/echo.py 0.0.0.0 8080")
        talker = vm.spawn(f"exec python3 -B /tmp/talker.py {OUTSIDE} 7012 /tmp/talked")
        wait_published(8080)
        before = outsourced.outsourcer()
        with socket.create_connection((HOST, 8080), 60) as client:
            for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
                outsourced.wait_outsourced(30_000)
                daemon.kill(number)
                outsourced.wait_outsourced(30_000)
                daemon.start()
                assert outsourced.outsourcer() == before
                client.sendall(b"still there?")
                assert client.recv(12, socket.MSG_WAITALL) == b"still there?"
        wait_for(lambda: outsourced.report().get("sent_bytes"), "the outsourcer reports", 60)
        outsourced.wait_outsourced(30_000)
        talker.kill()
        echo.kill()
        assert talker.wait(20).err == "", "the talker failed"
    count, failed = talked(vm)
    assert count and not failed


@pytest.mark.slow_on("6.1")
def test_newly_published(outsourced: Outsourced) -> None:
    """Another configuration publishes other listeners that are there: connections stay."""
    vm = outsourced.vm
    outsourced.load()
    vm.put(ECHO, "/tmp/echo.py")
    jobs = [vm.spawn(f"exec python3 -B /tmp/echo.py 0.0.0.0 {port}") for port in (8080, 8082)]
    wait_listening(vm, 8082)
    wait_published(8080)
    assert not is_published(8082)
    before, delta = outsourced.outsourcer(), Delta(vm)
    with socket.create_connection((HOST, 8080), 60) as client:
        client.sendall(b"first")
        assert client.recv(5, socket.MSG_WAITALL) == b"first"
        with outsourced.configured('publish = ["tcp/8082"]'):
            wait_published(8082)
            wait_for(lambda: not is_published(8080), "port 8080 is closed")
            with socket.create_connection((HOST, 8082), 60) as other:
                other.sendall(b"other")
                assert other.recv(5, socket.MSG_WAITALL) == b"other"
            client.sendall(b"still there?")
            assert client.recv(12, socket.MSG_WAITALL) == b"still there?"
        wait_published(8080)
        wait_for(lambda: not is_published(8082), "port 8082 is closed")
        assert outsourced.outsourcer() == before
    assert delta.of(vm)["outsource_arrivals"] == 2
    for job in jobs:
        job.kill()


# Begins connections at once, and says how each ended.
CROWD = """
import errno, json, select, socket, sys, time
socks, poll = [socket.socket() for _ in range(14)], select.poll()
start = time.monotonic()
for sock in socks:
    sock.setblocking(False)
    assert sock.connect_ex((sys.argv[1], int(sys.argv[2]))) == errno.EINPROGRESS
    poll.register(sock, select.POLLOUT)
ends = {}
while len(ends) < len(socks):
    for number, _ in poll.poll():
        sock = next(sock for sock in socks if sock.fileno() == number)
        ends[number] = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        poll.unregister(sock)
print(json.dumps({"ends": list(ends.values()), "took": time.monotonic() - start}))
"""


@pytest.mark.slow_on("6.1")
def test_rate(outsourced: Outsourced) -> None:
    """Connections above the rate wait for their turn, some for too long: that is ETIMEDOUT, and counted."""
    vm = outsourced.vm
    outsourced.load()
    vm.put(CROWD, "/tmp/crowd.py")
    before, delta = outsourced.report(), Delta(vm)
    with outsourced.configured(PUBLISH + "\nrate = 1\nburst = 1"), served(OUTSIDE, 7016, "outside", SILENT):
        said = json.loads(vm.run(f"python3 -B /tmp/crowd.py {OUTSIDE} 7016", timeout=120).out)
        # The tenth second grants a turn and ends the wait of others: their order is open.
        late = said["ends"].count(errno.ETIMEDOUT)
        assert said["ends"].count(0) == 14 - late, said
        assert 1 <= late <= 7
        assert 9.5 < said["took"] < 40
        refused = late + before["refused"].get("rate", 0)
        wait_for(lambda: outsourced.report()["refused"].get("rate") == refused, "the host counts them", 60)
        assert outsourced.report()["delayed"] >= 10 + before["delayed"]
        daemon = outsourced.site.daemon
        shown = run([daemon.binaries / "hallway", "status", "--run-dir", daemon.run_dir])
        assert "connections: rate" in shown and f"refused {refused} times: rate" in shown, shown
    assert delta.of(vm)["outsource_connections"] == 14 - late


@pytest.mark.slow_on("6.12")
def test_limits(outsourced: Outsourced) -> None:
    """Beyond the limits and the permissions of the host a socket is native, and the operator learns why."""
    vm = outsourced.vm
    outsourced.load()
    vm.put(CLIENT, "/tmp/client.py")
    vm.put(ECHO, "/tmp/echo.py")
    before, delta = Counter(outsourced.report()["refused"]), Delta(vm)
    causes = ("limit of sockets", "permissions of the host")

    def refused() -> list[int]:
        now = outsourced.report()["refused"]
        return [now.get(cause, 0) - before[cause] for cause in causes]

    with outsourced.configured('publish = ["tcp/80"]\nsockets = 1'), served(OUTSIDE, 7018, "outside"):
        one = f"import socket; sock = socket.create_connection(('{OUTSIDE}', 7018)); sock.recv(1)"
        vm.put(one, "/tmp/one.py")
        first = vm.spawn("exec python3 -B /tmp/one.py")
        wait_for(lambda: delta.of(vm)["outsource_connections"], "there is one connection")
        said = json.loads(vm.run(f"python3 -B /tmp/client.py {OUTSIDE} 7018 100000", timeout=120).out)
        assert said["good"] and said["own"][0] == vm.ip4
        # No process without privileges may have such a port.
        server = vm.spawn("exec python3 -B /tmp/echo.py 0.0.0.0 80")
        wait_listening(vm, 80)
        wait_for(lambda: refused() == [1, 1], "the host counts them", 60)
        with socket.create_connection((vm.ip4, 80), 60) as client:
            client.sendall(b"natively")
            assert client.recv(8, socket.MSG_WAITALL) == b"natively"
        server.kill()
        first.kill()
    assert delta.of(vm)["outsource_connections"] == 1


# Keeps each connection that it accepts until the client ends it, and goes on if there is no memory for one.
KEEPER = """
import contextlib, socket, threading
def keep(sock):
    with sock, contextlib.suppress(OSError):
        sock.recv(1)
listener = socket.create_server(("0.0.0.0", 8080))
while True:
    with contextlib.suppress(ConnectionAbortedError):
        threading.Thread(target=keep, args=(listener.accept()[0],), daemon=True).start()
"""


@pytest.mark.slow_on("6.1")
def test_arrivals_without_memory(outsourced: Outsourced) -> None:
    """Connections for which the guest has no ring memory are reset, and leave nothing behind."""
    vm = outsourced.vm
    # A ring takes 20 KiB, and a ninth is for other members.
    outsourced.load(memory_bytes=256 << 10)
    delta = Delta(vm)
    vm.put(KEEPER, "/tmp/keeper.py")
    job = vm.spawn("exec python3 -B /tmp/keeper.py")
    wait_published(8080)
    wait_for(lambda: outsourced.channels() == 1, "it is the listener's")
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection((HOST, 8080))) for _ in range(20)]

        def ended() -> list[socket.socket]:
            return select.select(clients, [], [], 0)[0]

        wait_for(lambda: len(ended()) == 9, "those without memory are reset", 60 * outsourced.slow)
        for client in ended():
            with contextlib.suppress(ConnectionError):
                assert not client.recv(1)
        wait_for(
            lambda: outsourced.channels() > 1, "the host sees those that were accepted", 20 * outsourced.slow
        )
    wait_for(lambda: outsourced.channels() == 1, "the others are free", 20 * outsourced.slow)
    assert delta.of(vm)["outsource_arrivals"] == 11
    job.kill()


@pytest.mark.slow_on("6.1")
def test_accepted_when_outsourcer_is_killed(outsourced: Outsourced) -> None:
    """An accepted socket that its program leaves alone keeps nothing of an outsourcer that was killed."""
    vm = outsourced.vm
    outsourced.load()
    program = """
import socket, time
listener = socket.create_server(("0.0.0.0", 8080))
sock = listener.accept()[0]
listener.close()
time.sleep(1000)
"""
    vm.put(program, "/tmp/idler.py")
    job = vm.spawn("exec python3 -B /tmp/idler.py")
    wait_published(8080)
    with socket.create_connection((HOST, 8080)):
        wait_for(lambda: not is_published(8080), "it is accepted", 20 * outsourced.slow)
        wait_for(outsourced.channels, "it has a channel", 20 * outsourced.slow)
        outsourced.kill_outsourcer()
    wait_for(lambda: not outsourced.channels(), "it has none", 20 * outsourced.slow)
    assert job.poll() is None
    job.kill()


UNREAD = 100_096  # bytes, fewer than the ring holds
# Sends them at once, and no end.
TELLER = f"""
import socket, sys, time
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
sock = listener.accept()[0]
sock.sendall(bytes(range(256)) * {UNREAD // 256})
sock.recv(1)
"""
LATE_READER = """
import errno, hashlib, json, os, socket, sys, time
sock = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)
while not os.path.exists("/tmp/read"):
    time.sleep(0.05)
got, error = bytearray(), 0
try:
    while piece := sock.recv(5000):
        got += piece
except OSError as end:
    error = end.errno
print(json.dumps({"digest": hashlib.sha256(got).hexdigest(), "size": len(got), "errno": error}))
"""


@pytest.mark.slow_on("6.1")
def test_unread_when_outsourcer_is_killed(outsourced: Outsourced) -> None:
    """What the guest has not read when its outsourcer is killed it still reads, and then ECONNRESET."""
    vm = outsourced.vm
    outsourced.load()
    vm.put(LATE_READER, "/tmp/late.py")
    vm.run("rm -f /tmp/read")
    data = bytes(range(256)) * (UNREAD // 256)
    with served(OUTSIDE, 7011, "outside", TELLER):
        job = vm.spawn(f"python3 -B /tmp/late.py {OUTSIDE} 7011")
        with host_socket(outsourced, (OUTSIDE, 7011)) as sock:
            wait_for(lambda: count_taken(sock) == len(data), "all are in the ring", 60)
        outsourced.kill_outsourcer()
        vm.run("touch /tmp/read")
        said = json.loads(job.wait(60).out)
    assert said == {"digest": hashlib.sha256(data).hexdigest(), "size": len(data), "errno": errno.ECONNRESET}


@pytest.mark.slow_on("6.12")
@pytest.mark.parametrize("times", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_unloading(outsourced: Outsourced, times: int) -> None:
    """The module is unloaded repeatedly under load, with an outsourced stream and a published listener."""
    vm = outsourced.vm
    outsourced.load()
    vm.put(TALKER, "/tmp/talker.py")
    vm.put(ECHO, "/tmp/echo.py")
    with served(OUTSIDE, 7004, "outside", ECHO):
        jobs = [
            vm.spawn("exec python3 -B /tmp/echo.py 0.0.0.0 8081"),
            vm.spawn(f"exec python3 -B /tmp/talker.py {OUTSIDE} 7004 /tmp/talked"),
        ]
        for _ in range(times):
            outsourced.wait_outsourced(30_000)
            rmmod(vm)
            outsourced.load()
        for job in jobs:
            assert job.poll() is None, "a program ended"
            job.kill()
    healthy(vm)


# Level, name and value of options: set before connect(), and after it.
OPTIONS_BEFORE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 45678),
    (socket.IPPROTO_TCP, socket.TCP_SYNCNT, 4),
    (socket.IPPROTO_IP, socket.IP_TOS, 0x10),
    (socket.IPPROTO_IP, socket.IP_TTL, 33),
]
OPTIONS_AFTER = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 0),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 0),
    (socket.IPPROTO_TCP, socket.TCP_CORK, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 11),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 5),
    (socket.IPPROTO_IP, socket.IP_TTL, 44),
]
# Sets the first ones, connects, sets the others when it may, and says what it found.
SETTER = f"""
import errno, json, os, socket, struct, sys, time
def settle(file):
    while not os.path.exists(file):
        time.sleep(0.05)
sock = socket.socket()
for option in {OPTIONS_BEFORE}:
    sock.setsockopt(*option)
sock.connect((sys.argv[1], int(sys.argv[2])))
settle("/tmp/second")
for option in {OPTIONS_AFTER}:
    sock.setsockopt(*option)
sock.send(b"the host learns of SO_KEEPALIVE")
took = 60
for _ in range(5):
    start = time.monotonic()
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    took = min(took, time.monotonic() - start)
refused = []
for level, name, value in (
    (socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno"),
    (socket.IPPROTO_IP, socket.IP_OPTIONS, bytes(4)),
):
    try:
        sock.setsockopt(level, name, value)
    except OSError as error:
        refused.append(error.errno == errno.ENOPROTOOPT)
settle("/tmp/third")
mss = struct.unpack_from("I", info, 16)[0]
print(json.dumps({{"state": info[0], "mss": mss, "refused": refused, "took": took}}))
"""
PIDFD_GETFD = 438


def find_socket(pid: int, remote: tuple[str, int]) -> socket.socket | None:
    """Return a copy of the outsourcer's socket that is connected to an address."""
    pidfd = os.pidfd_open(pid)
    try:
        for number in map(int, os.listdir(f"/proc/{pid}/fd")):
            copy = ctypes.CDLL(None).syscall(PIDFD_GETFD, pidfd, number, 0)
            if copy < 0:
                continue
            if not stat.S_ISSOCK(os.fstat(copy).st_mode):
                os.close(copy)
                continue
            found = socket.socket(fileno=copy)
            with contextlib.suppress(OSError):
                if found.getpeername()[:2] == remote:
                    return found
            found.close()
    finally:
        os.close(pidfd)
    return None


def host_socket(outsourced: Outsourced, remote: tuple[str, int]) -> socket.socket:
    """Return a copy of the outsourcer's socket to an address, once it is connected."""
    pid = outsourced.outsourcer()
    assert pid
    found = wait_for(lambda: find_socket(pid, remote), f"there is a socket to {remote}", 60 * outsourced.slow)
    assert isinstance(found, socket.socket)
    return found


def count_taken(sock: socket.socket) -> int:
    """Return how many bytes a socket has received that were read."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    waiting = fcntl.ioctl(sock, termios.FIONREAD, bytes(4))
    return struct.unpack_from("Q", info, 128)[0] - struct.unpack("i", waiting)[0]


def has_options(sock: socket.socket, options: list[tuple[int, int, int]]) -> bool:
    """Tell whether a socket has all of these."""
    return all(sock.getsockopt(level, name) == value for level, name, value in options)


def test_options(outsourced: Outsourced) -> None:
    """Options that a program sets are those of the host's socket; what that can't have is refused."""
    vm = outsourced.vm
    outsourced.load()
    vm.put(SETTER, "/tmp/setter.py")
    vm.run("rm -f /tmp/second /tmp/third")
    with served(OUTSIDE, 7009, "outside"):
        job = vm.spawn(f"python3 -B /tmp/setter.py {OUTSIDE} 7009")
        with host_socket(outsourced, (OUTSIDE, 7009)) as sock:
            # Those of before connect() are there from the SYN on.
            assert has_options(sock, OPTIONS_BEFORE)
            vm.run("touch /tmp/second")
            wait_for(lambda: has_options(sock, OPTIONS_AFTER), "the others are set", 60 * outsourced.slow)
            vm.run("touch /tmp/third")
            said = json.loads(job.wait(60).out)
            # A question takes a second if the answer to it wakes nothing.
            assert said.pop("took") < 0.9
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    assert said == {"state": 1, "mss": struct.unpack_from("I", info, 16)[0], "refused": [True, True]}


@pytest.mark.slow_on("6.1")
def test_inherited_options(outsourced: Outsourced) -> None:
    """A connection that arrives has its listener's options on the host."""
    vm = outsourced.vm
    outsourced.load()
    options = [option for option in OPTIONS_BEFORE if option[1] != socket.TCP_SYNCNT]
    program = (
        "import socket\nlistener = socket.socket()\n"
        f"for option in {options}:\n    listener.setsockopt(*option)\n"
        "listener.bind(('0.0.0.0', 8080))\nlistener.listen()\n"
        "listener.accept()[0].recv(1)\n"
    )
    vm.put(program, "/tmp/inherit.py")
    vm.spawn("python3 -B /tmp/inherit.py")
    wait_published(8080)
    with (
        socket.create_connection((HOST, 8080)) as client,
        host_socket(outsourced, client.getsockname()) as sock,
    ):
        wait_for(lambda: has_options(sock, options), "they are set", 60 * outsourced.slow)


def test_listener_with_new_mark(outsourced: Outsourced) -> None:
    """A published listener that gets an option of packets later is published no more."""
    vm = outsourced.vm
    outsourced.load()
    program = """
import os, socket, time
listener = socket.create_server(("0.0.0.0", 8080))
while not os.path.exists("/tmp/mark"):
    time.sleep(0.05)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 7)
open("/tmp/marked", "w").close()
listener.accept()
open("/tmp/accepted", "w").close()
time.sleep(1000)
"""
    vm.put(program, "/tmp/marked.py")
    vm.run("rm -f /tmp/mark /tmp/marked /tmp/accepted")
    job = vm.spawn("exec python3 -B /tmp/marked.py")
    wait_published(8080)
    vm.run("touch /tmp/mark")
    wait_for(lambda: vm.run("ls /tmp/marked", check=False).out, "it is marked", 60 * outsourced.slow)
    with contextlib.suppress(ConnectionError), socket.create_connection((HOST, 8080), 60) as client:
        client.recv(1)
    wait_for(lambda: not is_published(8080), "it is published no more", 20 * outsourced.slow)
    # One that was taken in before it was marked is not given out either.
    assert not vm.run("ls /tmp/accepted", check=False).out
    job.kill()


# Accepts, and reads nothing.
SILENT = """
import socket, sys, time
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
socks = []
while True:
    socks.append(listener.accept()[0])
"""
# Sends a number of pieces, or until nothing more is taken; says how long close() took.
LINGERER = """
import contextlib, socket, struct, sys, time
sock = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)
sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, int(sys.argv[3])))
sock.settimeout(2)
with contextlib.suppress(TimeoutError):
    for _ in range(int(sys.argv[4])):
        sock.sendall(bytes(100_000))
start = time.monotonic()
sock.close()
print(time.monotonic() - start)
"""


@pytest.mark.slow_on("6.1")
def test_linger(outsourced: Outsourced) -> None:
    """close() waits until the other end's kernel has all, but no longer than SO_LINGER says."""
    vm = outsourced.vm
    outsourced.load()
    vm.put(LINGERER, "/tmp/lingerer.py")
    linger = f"python3 -B /tmp/lingerer.py {OUTSIDE}"
    with served(OUTSIDE, 7014, "outside", SILENT), served(OUTSIDE, 7015, "outside"):
        assert 2.9 < float(vm.run(f"{linger} 7014 3 1000", timeout=120).out) < 60
        assert float(vm.run(f"{linger} 7015 100 1", timeout=120).out) < 60


NOBODY = "10.78.0.99"  # beside the server outside


@pytest.mark.slow_on("6.1")
def test_connect_given_up(outsourced: Outsourced) -> None:
    """A connect() to a silent host that its program gives up ends on the host at once."""
    vm = outsourced.vm
    outsourced.load()

    def calling() -> str:
        return run(["ss", "-Htn", "state", "syn-sent", "dst", NOBODY]).strip()

    program = f"""
import os, socket, time
sock = socket.socket()
sock.setblocking(False)
assert sock.connect_ex(("{NOBODY}", 7010))
while not os.path.exists("/tmp/give-up"):
    time.sleep(0.05)
"""
    vm.put(program, "/tmp/caller.py")
    vm.run("rm -f /tmp/give-up")
    run(["ip", "neigh", "replace", NOBODY, "lladdr", "02:00:00:00:00:99", "dev", "wan"])
    job = vm.spawn("python3 -B /tmp/caller.py")
    wait_for(calling, "the host sends SYNs", 60 * outsourced.slow)
    vm.run("touch /tmp/give-up")
    assert not job.wait(60).code
    wait_for(lambda: not calling(), "the host sends none", 20 * outsourced.slow)
    wait_for(lambda: not connections(vm), "its number is free", 20 * outsourced.slow)
