# SPDX-License-Identifier: Apache-2.0 OR MIT
"""UDP sockets of a guest that the host executes: unmodified programs, to a server outside."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
from hallway_lab import isolate
from hallway_lab.outsourcing import HOST, HOST6, OUTSIDE, OUTSIDE6
from hallway_lab.sh import run
from hallway_lab.vm import Job
from hallway_tests.guests import Delta, connections, rmmod
from hallway_tests.outsourced import Outsourced, is_published, waits
from hallway_tests.suite import wait_for

pytestmark = [pytest.mark.xdist_group("e2e-outsourcing"), pytest.mark.slow_on("6.1")]

REFUSED = "10.77.0.254"  # the host's own, which no rule names
# Answers each datagram with its sender's address and its bytes in reverse.
SERVER = """
import json, socket, sys
sock = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
sock.bind((sys.argv[1], int(sys.argv[2])))
while True:
    data, sender = sock.recvfrom(65536)
    sock.sendto(json.dumps(sender[:2]).encode() + b"\\n" + data[::-1], sender)
"""
# Sends to each address in turns, and says which addresses the servers have seen.
CLIENT = """
import json, random, socket, sys
how, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
sock.settimeout(20)
if how == "connected":
    sock.connect((address, port))
seen = set()
for size in (0, 1, 1400, 9000, 60000, *[100] * 200):
    data = random.randbytes(size)
    sock.send(data) if how == "connected" else sock.sendto(data, (address, port))
    answer, sender = sock.recvfrom(65536)
    assert sender[:2] == (address, port), sender
    name, _, back = answer.partition(b"\\n")
    assert back[::-1] == data
    seen.add(tuple(json.loads(name)))
print(json.dumps(sorted(seen)))
"""
BYTES = 1 + 1400 + 9000 + 60000 + 100 * 200


@contextlib.contextmanager
def served(
    address: str, port: int, netns: str | None, program: str = SERVER, *words: object
) -> Iterator[None]:
    """Run the server, or another one, on the host, or outside, in the block."""
    inside = isolate.on_host(netns)
    call = ["python3", "-B", "-c", program, address, str(port), *map(str, words)]
    with subprocess.Popen([*inside, *call]) as server:
        try:
            wait_for(lambda: run([*inside, "ss", "-Hlun", f"sport = :{port}"]), "the server is there", 20)
            yield
        finally:
            server.kill()


@pytest.mark.parametrize("how", ["connected", "unconnected"])
@pytest.mark.parametrize(("own", "peer"), [(HOST, OUTSIDE), (HOST6, OUTSIDE6)], ids=["v4", "v6"])
def test_datagrams(outsourced: Outsourced, own: str, peer: str, how: str) -> None:
    """Every datagram goes by one socket of the host, and every answer comes back by it."""
    vm = outsourced.vm
    outsourced.load()
    delta = Delta(vm)
    vm.put(CLIENT, "/tmp/datagrams.py")
    with served(peer, 7020, "outside"):
        said = json.loads(vm.run(f"python3 -B /tmp/datagrams.py {how} {peer} 7020", timeout=120).out)
    assert [address for address, _ in said] == [own]
    moved = delta.of(vm)
    assert (moved["outsource_datagram_sockets"], moved["outsource_returned"]) == (1, 0)
    assert moved["tx_bytes_outsourced"] == BYTES
    assert moved["rx_bytes_outsourced"] > BYTES


# Datagrams to a neighbour that does not answer fill the buffer of a closed socket.
FULL = """
import socket, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
for number in range(8):
    sock.sendto(bytes(1400), (sys.argv[1], 9))
"""
NOBODY = "10.77.0.250"


def test_returned_to_closed_and_full(outsourced: Outsourced) -> None:
    """What comes back to a socket that is closed, and for which there is no space, is lost; the rest goes."""
    vm = outsourced.vm
    outsourced.load()
    delta = Delta(vm)
    vm.put(FULL, "/tmp/full.py")
    pid = outsourced.outsourcer()
    assert pid
    os.kill(pid, signal.SIGSTOP)
    try:
        vm.run(f"python3 -B /tmp/full.py {NOBODY}")
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: delta.of(vm)["outsource_returned"], "some are sent", 20 * outsourced.slow)
    rmmod(vm)


# Gives the port back that the kernel has chosen, by connect() to AF_UNSPEC.
DISCONNECTING = """
import ctypes, socket, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.settimeout(20)
to = sys.argv[1], int(sys.argv[2])
for turn in range(3):
    sock.sendto(b"%d" % turn, to)
    assert sock.recvfrom(100)[0].endswith(b"\\n%d" % turn)
    assert not ctypes.CDLL(None).connect(sock.fileno(), bytes(16), 16)
"""


def test_disconnected(outsourced: Outsourced) -> None:
    """A socket that is disconnected gets another port, there and on the host, and answers again."""
    vm = outsourced.vm
    outsourced.load()
    delta = Delta(vm)
    vm.put(DISCONNECTING, "/tmp/disconnecting.py")
    with served(OUTSIDE, 7020, "outside"):
        vm.run(f"python3 -B /tmp/disconnecting.py {OUTSIDE} 7020", timeout=120)
    moved = delta.of(vm)
    assert (moved["outsource_datagram_sockets"], moved["outsource_returned"]) == (3, 0)
    assert moved["rx_bytes_outsourced"]


def test_not_allowed(outsourced: Outsourced) -> None:
    """The first datagram comes back; it and the others go by the guest's own stack."""
    vm = outsourced.vm
    outsourced.load()
    delta = Delta(vm)
    vm.put(CLIENT, "/tmp/datagrams.py")
    with served(REFUSED, 7021, None):
        said = json.loads(vm.run(f"python3 -B /tmp/datagrams.py unconnected {REFUSED} 7021", timeout=120).out)
    assert [address for address, _ in said] == [vm.ip4]
    moved = delta.of(vm)
    assert (moved["outsource_datagram_sockets"], moved["outsource_returned"]) == (1, 1)
    assert not moved["rx_bytes_outsourced"]


MANY = 40  # ends of one socket, at once
# Answers at all ports, of which the first one is there last.
MANY_SERVER = """
import select, socket, sys
address, first, many = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
socks = []
for port in reversed(range(first, first + many)):
    socks.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    socks[-1].bind((address, port))
while True:
    for sock in select.select(socks, [], [])[0]:
        sock.sendto(*sock.recvfrom(100))
"""
MANY_CLIENT = """
import socket, sys
address, first, many = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.settimeout(20)
for turn in range(5):
    for port in range(first, first + many):
        sock.sendto(b"%d" % turn, (address, port))
    seen = set()
    while len(seen) < many:
        data, sender = sock.recvfrom(100)
        assert data == b"%d" % turn, data
        seen.add(sender)
print(len(seen))
"""


def test_many_not_allowed(outsourced: Outsourced) -> None:
    """Datagrams to many ends that the policy refuses arrive, though all come back."""
    vm = outsourced.vm
    outsourced.load()
    delta = Delta(vm)
    vm.put(MANY_CLIENT, "/tmp/many.py")
    with served(REFUSED, 7100, None, MANY_SERVER, MANY):
        said = vm.run(f"python3 -B /tmp/many.py {REFUSED} 7100 {MANY}", timeout=120).out
    assert int(said) == MANY
    moved = delta.of(vm)
    assert (moved["outsource_datagram_sockets"], moved["outsource_returned"]) == (1, MANY)


# Corks the socket while its first datagram is at the host, which returns it.
CORKED = """
import os, socket, sys, time
SOL_UDP, UDP_CORK = 17, 1
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.settimeout(20)
to = sys.argv[1], int(sys.argv[2])
sock.sendto(b"a", to)
sock.setsockopt(SOL_UDP, UDP_CORK, 1)
open("/tmp/corked", "w").close()
while not os.path.exists("/tmp/go-on"):
    time.sleep(0.01)
sock.sendto(b"b", to)
sock.setsockopt(SOL_UDP, UDP_CORK, 0)
print(sock.recvfrom(100)[0].partition(b"\\n")[2].decode())
"""


def test_returned_to_corked(outsourced: Outsourced) -> None:
    """A datagram that comes back becomes no part of the one that its program makes."""
    vm = outsourced.vm
    outsourced.load()
    delta = Delta(vm)
    vm.put(CORKED, "/tmp/corking.py")
    vm.run("rm -f /tmp/corked /tmp/go-on")
    pid = outsourced.outsourcer()
    assert pid
    with served(REFUSED, 7021, None):
        os.kill(pid, signal.SIGSTOP)
        try:
            job = vm.spawn(f"exec python3 -B /tmp/corking.py {REFUSED} 7021")
            wait_for(lambda: not vm.run("test -e /tmp/corked", check=False).code, "it is corked")
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_for(
            lambda: delta.of(vm)["outsource_returned"] == 1, "the first one is back", 20 * outsourced.slow
        )
        vm.run("touch /tmp/go-on")
        assert job.wait(60).out == "b\n"


@pytest.mark.parametrize("how", ["connected", "unconnected"])
@pytest.mark.parametrize(("own", "peer"), [(HOST, OUTSIDE), (HOST6, OUTSIDE6)], ids=["v4", "v6"])
def test_no_route(outsourced: Outsourced, own: str, peer: str, how: str) -> None:
    """A guest without a route to the server has its answers, by the host."""
    vm = outsourced.vm
    outsourced.load()
    vm.put(CLIENT, "/tmp/datagrams.py")
    family = "-6" if ":" in peer else "-4"
    route = vm.run(f"ip {family} route show default").out.split("\n")[0]
    vm.run(f"ip {family} route del {route}")
    try:
        with served(peer, 7028, "outside"):
            said = json.loads(vm.run(f"python3 -B /tmp/datagrams.py {how} {peer} 7028", timeout=120).out)
        assert [address for address, _ in said] == [own]
    finally:
        vm.run(f"ip {family} route add {route}")


# What a port that nothing has gives to a program, by each way to learn of it.
ERRORS = """
import errno, json, select, socket, struct, sys
address, port = sys.argv[1], int(sys.argv[2])
def name(call):
    try:
        return repr(call())
    except OSError as error:
        return errno.errorcode[error.errno]
said = []
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.settimeout(20)
sock.connect((address, port))
sock.send(b"1")
said.append(name(lambda: sock.recv(1)))
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.setsockopt(socket.IPPROTO_IP, 11, 1)  # IP_RECVERR
sock.sendto(b"2", (address, port))
poll = select.poll()
poll.register(sock, 0)
said.append(poll.poll(20000)[0][1])
data, control, flags, sender = sock.recvmsg(100, 1000, socket.MSG_ERRQUEUE)
said += [flags, list(sender), struct.unpack_from("IBBB", control[0][2])]
said.append(name(lambda: sock.recv(1, socket.MSG_DONTWAIT)))
print(json.dumps(said))
"""


def test_errors(outsourced: Outsourced) -> None:
    """ICMP errors reach the program as natively."""
    vm = outsourced.vm
    outsourced.load()
    vm.put(ERRORS, "/tmp/errors.py")
    delta = Delta(vm)
    said = json.loads(vm.run(f"python3 -B /tmp/errors.py {OUTSIDE} 7022", timeout=120).out)
    assert delta.of(vm)["tx_bytes_outsourced"] == 2
    # The same in a socket that has chosen to be native.
    chosen = "import socket\ndef chosen(sock):\n    sock.setsockopt(0x48414C, 1, 0)\n    return sock\n"
    choice = "socket.socket = lambda *a, make=socket.socket: chosen(make(*a))\n"
    vm.put(chosen + choice + ERRORS, "/tmp/native.py")
    native = json.loads(vm.run(f"python3 -B /tmp/native.py {OUTSIDE} 7022", timeout=120).out)
    assert said == native
    assert delta.of(vm)["tx_bytes_outsourced"] == 2


# Prints the sizes of what comes.
SIZES = """
import socket, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind((sys.argv[1], int(sys.argv[2])))
print(*(len(sock.recv(65536)) for _ in range(4)))
"""
# One call with UDP_SEGMENT, while the host has not refused the destination yet.
SEGMENTS = """
import socket, struct
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
control = [(17, 103, struct.pack("H", 100))]
sock.sendmsg([b"x" * 350], control, 0, ("%s", 7025))
"""


def test_returned_segments(outsourced: Outsourced) -> None:
    """Datagrams of one call with UDP_SEGMENT come back, and are sent natively, as several."""
    vm = outsourced.vm
    outsourced.load()
    delta = Delta(vm)
    words = ["timeout", "60", "python3", "-c", SIZES, REFUSED, "7025"]
    with subprocess.Popen([*isolate.on_host(None), *words], stdout=subprocess.PIPE, text=True) as server:
        wait_for(lambda: run(["ss", "-Hlun", "sport = :7025"]), "the server is there", 20)
        vm.put(SEGMENTS % REFUSED, "/tmp/segments.py")
        vm.run("python3 -B /tmp/segments.py")
        assert server.communicate()[0] == "100 100 100 50\n"
    assert delta.of(vm)["outsource_returned"] == 1


# What control messages say of a message of ICMP: those of the packet, and nothing else.
ERROR_CONTROL = """
import json, select, socket
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for option in (11, 12, 13, 20):  # IP_RECVERR, IP_RECVTTL, IP_RECVTOS, IP_RECVORIGDSTADDR
    sock.setsockopt(socket.IPPROTO_IP, option, 1)
sock.sendto(b"1", ("%s", 7026))
poll = select.poll()
poll.register(sock, 0)
poll.poll(20000)
data, control, flags, sender = sock.recvmsg(100, 1000, socket.MSG_ERRQUEUE)
print(json.dumps({kind: list(value) for _, kind, value in control}))
"""


def test_control_of_errors(outsourced: Outsourced) -> None:
    """What a program sees of the message of ICMP is what the host saw, or nothing."""
    vm = outsourced.vm
    outsourced.load()
    vm.put(ERROR_CONTROL % OUTSIDE, "/tmp/control.py")
    control = json.loads(vm.run("python3 -B /tmp/control.py", timeout=60).out)
    assert control["2"] == [64, 0, 0, 0]  # IP_TTL: one wire away
    assert control["1"] == [0xC0]  # IP_TOS: as Linux sends such messages
    assert control["20"][2:4] == [0, 0]  # the port of IP_ORIGDSTADDR


def test_sent_before_close(outsourced: Outsourced) -> None:
    """What a program sends before it ends arrives, though the host has not answered then."""
    vm = outsourced.vm
    outsourced.load()
    program = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('%s', 7023))"
    inside = isolate.on_host("outside")
    take = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('%s', 7023));"
    words = [*inside, "timeout", "60", "python3", "-c", take % OUTSIDE + "print(s.recv(9), s.recv(9))"]
    delta = Delta(vm)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        wait_for(lambda: run([*inside, "ss", "-Hlun", "sport = :7023"]), "the server is there", 20)
        for _ in range(2):
            vm.run(f'python3 -c "{program % OUTSIDE}"')
        assert server.communicate()[0] == "b'x' b'x'\n"
    assert delta.of(vm)["tx_bytes_outsourced"] == 2


# Asks again and again, and counts the answers.
ASKER = """
import contextlib, os, socket, sys, time
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.settimeout(1)
answers = 0
while True:
    with contextlib.suppress(TimeoutError):
        sock.sendto(b"x", (sys.argv[1], int(sys.argv[2])))
        sock.recv(100)
        answers += 1
    with open("/tmp/answers.new", "w") as file:
        file.write(str(answers))
    os.rename("/tmp/answers.new", "/tmp/answers")
    time.sleep(0.05)
"""


def test_outsourcer_killed(outsourced: Outsourced) -> None:
    """A socket goes on with the next outsourcer, and natively without the module."""
    vm = outsourced.vm
    outsourced.load()
    delta = Delta(vm)
    vm.put(ASKER, "/tmp/asker.py")
    vm.run("rm -f /tmp/answers")

    def count() -> int:
        return int(vm.run("cat /tmp/answers", check=False).out or 0)

    def wait_sockets(number: int) -> None:
        opened = "outsource_datagram_sockets"
        wait_for(lambda: delta.of(vm)[opened] == number, f"{number} sockets", 60 * outsourced.slow)

    def wait_answers() -> None:
        before = count()
        wait_for(lambda: count() > before + 1, "it has answers", 60 * outsourced.slow)

    with served(OUTSIDE, 7024, "outside"):
        job = vm.spawn(f"exec python3 -B /tmp/asker.py {OUTSIDE} 7024")
        wait_sockets(1)
        wait_answers()
        outsourced.kill_outsourcer()
        wait_sockets(2)
        wait_answers()
        rmmod(vm)
        wait_answers()
        job.kill()


# Answers each datagram with its sender, in one of the ways of servers; "two" are sockets that share the port.
PUBLISHED = """
import select, socket, sys
how, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
family = socket.AF_INET6 if ":" in address else socket.AF_INET
def make():
    sock = socket.socket(family, socket.SOCK_DGRAM)
    if how == "two":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if how == "control":
        sock.setsockopt(socket.IPPROTO_IP, 8, 1)  # IP_PKTINFO
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1) if ":" in address else None
    sock.bind((address, port))
    return sock
sockets = [make() for _ in range(2 if how == "two" else 1)]
open("/tmp/bound", "w")
while True:
    for sock in select.select(sockets, [], [])[0]:
        data, control, _, sender = sock.recvmsg(65536, 1000)
        answer = repr(sender[:2]).encode() + b" " + data
        sock.sendmsg([answer], control if how == "control" else [], 0, sender)
"""
# Asks from 50 ports, and says what it heard. Its socket is connected: others are not heard. No two
# of them ask from the same port: an end that has come by the host is answered there, later too.
ASK = """
import json, socket, sys
address, port, first = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
said = []
for number in range(50):
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(20)
    sock.bind(("", first + number))
    sock.connect((address, port))
    sock.send(b"x" * number * 100)
    said.append((sock.recv(65536).decode(), sock.getsockname()[:2]))
print(json.dumps(said))
"""
PORTS = itertools.count(10_000, 50)
ASKED = sum(number * 100 for number in range(50))


@contextlib.contextmanager
def bound(outsourced: Outsourced, how: str, address: str) -> Iterator[None]:
    """Run the server in the guest, at the published port, in the block."""
    vm = outsourced.vm
    vm.put(PUBLISHED, "/tmp/published.py")
    vm.run("rm -f /tmp/bound")
    job = vm.spawn(f"exec python3 -B /tmp/published.py {how} {address} 7030")
    try:
        bound_file = "test -e /tmp/bound"
        wait_for(lambda: not vm.run(bound_file, check=False).code, "it is bound", 60 * outsourced.slow)
        yield
    finally:
        job.kill()


def ask(address: str, netns: str | None, prefix: str = "") -> None:
    """Ask the server, which must see each asker's own address."""
    words = ["python3", "-B", "-c", ASK, address, "7030", str(next(PORTS))]
    said = json.loads(run([*isolate.on_host(netns), *words]))
    for number, (answer, (own, port)) in enumerate(said):
        assert answer == f"('{prefix}{own}', {port}) " + "x" * number * 100


def moves(outsourced: Outsourced, address: str, netns: str | None, prefix: str = "") -> tuple[int, bool]:
    """Ask, and return the bytes that came by the host, and whether the answers went there."""
    delta = Delta(outsourced.vm)
    ask(address, netns, prefix)
    moved = delta.of(outsourced.vm)
    return moved["rx_bytes_outsourced"], moved["tx_bytes_outsourced"] > ASKED


@pytest.mark.parametrize("how", ["plain", "control", "two"])
def test_published(outsourced: Outsourced, how: str) -> None:
    """One socket is reached by the host and by the NIC; each asker is answered from where it has asked."""
    vm = outsourced.vm
    outsourced.load()
    with bound(outsourced, how, "::"):
        assert is_published(7030, "u")
        assert moves(outsourced, HOST, "outside", "::ffff:") == (ASKED, True)
        assert moves(outsourced, HOST6, "outside") == (ASKED, True)
        assert moves(outsourced, vm.ip4, None, "::ffff:") == (0, False)
        assert moves(outsourced, vm.ip4, "outside", "::ffff:") == (0, False)
    wait_for(lambda: not is_published(7030, "u"), "the port is free")


BECOMES_IPV4 = """
import os, socket, time
sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
sock.bind(("::", 7030))
while not os.path.exists("/tmp/go-on"):
    time.sleep(0.05)
sock.connect(("::ffff:10.78.0.2", 7031))
IPV6_ADDRFORM = 1
sock.setsockopt(socket.IPPROTO_IPV6, IPV6_ADDRFORM, socket.AF_INET)
assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN) == socket.AF_INET
open("/tmp/done", "w").close()
time.sleep(1000)
"""


@contextlib.contextmanager
def published_by(outsourced: Outsourced, program: str) -> Iterator[Job]:
    """Run a program in the guest in the block, which begins when its port is published."""
    vm = outsourced.vm
    outsourced.load()
    vm.put(program, "/tmp/publisher.py")
    vm.run("rm -f /tmp/go-on /tmp/done")
    job = vm.spawn("exec python3 -B /tmp/publisher.py")
    try:
        wait_for(lambda: is_published(7030, "u"), "the port is published", 60 * outsourced.slow)
        yield job
    finally:
        job.kill()


def test_published_becomes_ipv4(outsourced: Outsourced) -> None:
    """A published socket that IPV6_ADDRFORM makes one of IPv4 gives the host's port back."""
    vm = outsourced.vm
    with published_by(outsourced, BECOMES_IPV4) as job:
        vm.run("touch /tmp/go-on")
        wait_for(lambda: not vm.run("test -e /tmp/done", check=False).code, "it is an IPv4 socket", 60)
        wait_for(lambda: not is_published(7030, "u"), "the port is free", 20 * outsourced.slow)
        assert not job.poll(), "the program has ended"
    wait_for(lambda: not connections(vm), "nothing is left", 20 * outsourced.slow)


def test_published_life(outsourced: Outsourced) -> None:
    """A bound socket is published for each outsourcer that comes, and its native clients never notice."""
    vm = outsourced.vm
    outsourced.load()
    rmmod(vm)

    def both(by_host: tuple[int, bool] = (ASKED, True)) -> None:
        limit = 60 * outsourced.slow
        wait_for(lambda: is_published(7030, "u") == by_host[1], "it is published, or not", limit)
        if by_host[1]:
            assert moves(outsourced, HOST, "outside") == by_host
        assert moves(outsourced, vm.ip4, None) == (0, False)

    # Before the module is there.
    with bound(outsourced, "plain", "0.0.0.0"):
        outsourced.load()
        both()
        outsourced.kill_outsourcer()
        both()
        vm.run("hallway outsource off")
        both((0, False))
        vm.run("hallway outsource on")
        both()
        rmmod(vm)
        wait_for(lambda: not is_published(7030, "u"), "the port is free")
        ask(vm.ip4, None)
        # The socket keeps a table of the module that has gone.
        outsourced.load()
        both()


# Answers from memory that is never paged in until /tmp/go-on: its thread has the socket's part of the host.
FAULTY = """
import os, socket, sys, threading, time
sys.path.insert(0, "/hallway/tests")
from native import Unpaged
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("0.0.0.0", 7030))
sock.connect(sock.recvfrom(100)[1])
page = Unpaged()
threading.Thread(target=page.send, args=(sock, 100)).start()
while not os.path.exists("/tmp/go-on"):
    time.sleep(0.05)
page.close()
time.sleep(1000)
"""
ASK_ONCE = """
import socket, sys
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"?", (sys.argv[1], 7030))
"""


def test_withdrawn_in_fault(outsourced: Outsourced) -> None:
    """`hallway outsource off` does not wait for a program that is in a page fault as it sends."""
    vm = outsourced.vm
    with published_by(outsourced, FAULTY):
        run([*isolate.on_host("outside"), "python3", "-B", "-c", ASK_ONCE, HOST])
        wait_for(lambda: waits(vm, "python3", "handle_userfault"), "a thread is in a fault")
        vm.run("hallway outsource off", timeout=20 * outsourced.slow)
        vm.run("touch /tmp/go-on")
        wait_for(lambda: not is_published(7030, "u"), "the port is free", 20 * outsourced.slow)
        vm.run("hallway outsource on")
        wait_for(lambda: is_published(7030, "u"), "the port is published again", 20 * outsourced.slow)


def test_newly_published(outsourced: Outsourced) -> None:
    """Another configuration closes the port of a bound socket on the host, and opens it again."""
    vm = outsourced.vm
    outsourced.load()
    before = outsourced.outsourcer()
    with bound(outsourced, "plain", "0.0.0.0"):
        assert moves(outsourced, HOST, "outside") == (ASKED, True)
        with outsourced.configured('publish = ["tcp/8080"]'):
            wait_for(lambda: not is_published(7030, "u"), "the port is free")
            assert moves(outsourced, vm.ip4, "outside") == (0, False)
        wait_for(lambda: is_published(7030, "u"), "it is published again")
        assert moves(outsourced, HOST, "outside") == (ASKED, True)
        assert outsourced.outsourcer() == before


# Binds one socket after another to the port, each of which is closed at once.
AGAIN = """
import socket
for number in range(300):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("0.0.0.0", 7030))
"""


def test_bound_again(outsourced: Outsourced) -> None:
    """The port of a socket that was closed is free for the next one."""
    outsourced.load()
    outsourced.vm.put(AGAIN, "/tmp/again.py")
    outsourced.vm.run("python3 -B /tmp/again.py", timeout=60 * outsourced.slow)
    wait_for(lambda: not is_published(7030, "u"), "the port is free")


FORGE = """
import socket
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("%s", 0))
sock.sendto(b"forged", ("%s", 7030))
"""


def test_forged_source(outsourced: Outsourced) -> None:
    """A datagram that says that it is from the guest itself reaches the host, and is not delivered."""
    vm = outsourced.vm
    outsourced.load()
    inside = isolate.on_host("outside")
    filters = ("net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.wan.rp_filter=0")
    run([*isolate.on_host(None), "sysctl", "-q", *filters])
    with bound(outsourced, "plain", "0.0.0.0"):
        before = outsourced.report()["received_bytes"]
        delta = Delta(vm)
        run([*inside, "ip", "addr", "add", f"{vm.ip4}/32", "dev", "lo"])
        try:
            run([*inside, "python3", "-c", FORGE % (vm.ip4, HOST)])
        finally:
            run([*inside, "ip", "addr", "del", f"{vm.ip4}/32", "dev", "lo"])
        wait_for(lambda: outsourced.report()["received_bytes"] > before, "the host has it", 20)
        ask(HOST, "outside")
        assert delta.of(vm)["rx_bytes_outsourced"] == ASKED


# Says how bind() fails, and whether the socket can be bound elsewhere then.
TAKEN = """
import errno, socket
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try:
    sock.bind(("0.0.0.0", 7030))
except OSError as error:
    print(errno.errorcode[error.errno])
print(sock.getsockname())
sock.bind(("0.0.0.0", 7031))
print(sock.getsockname())
"""


def test_published_port_is_taken(outsourced: Outsourced) -> None:
    """A port that another program of the host has cannot be bound; ports that are not published can."""
    vm = outsourced.vm
    outsourced.load()
    vm.put(TAKEN, "/tmp/taken.py")
    with served(HOST, 7030, None):
        said = vm.run("python3 -B /tmp/taken.py").out
    assert said.split("\n")[:3] == ["EADDRINUSE", "('0.0.0.0', 0)", "('0.0.0.0', 7031)"]
    said = vm.run("python3 -B /tmp/taken.py", check=False).out
    assert said.startswith("('0.0.0.0', 7030)")


# Asks each time that the file /tmp/ask appears, and removes it then.
ON_DEMAND = """
import os, socket, sys, time
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.settimeout(20)
sock.connect((sys.argv[1], int(sys.argv[2])))
while True:
    while not os.path.exists("/tmp/ask"):
        time.sleep(0.05)
    sock.send(b"x")
    sock.recv(100)
    os.unlink("/tmp/ask")
"""


@pytest.mark.slow
def test_idle(outsourced: Outsourced) -> None:
    """A socket that carries nothing has no rings, and none on the host; the next datagram opens another."""
    vm = outsourced.vm
    outsourced.load()
    idle = "/sys/module/hallway/parameters/datagram_idle_ms"
    delta = Delta(vm)
    vm.put(ON_DEMAND, "/tmp/on_demand.py")
    vm.run("rm -f /tmp/ask")

    def wait(count: int) -> None:
        limit = 60 * outsourced.slow
        wait_for(lambda: outsourced.report()["datagrams"] == count, f"{count} sockets", limit)

    def again(number: int) -> None:
        vm.run("touch /tmp/ask; while test -e /tmp/ask; do sleep 0.1; done")
        assert delta.of(vm)["outsource_datagram_sockets"] == number

    with served(OUTSIDE, 7027, "outside"), bound(outsourced, "plain", "0.0.0.0"):
        job = vm.spawn(f"exec python3 -B /tmp/on_demand.py {OUTSIDE} 7027")
        again(1)
        wait(2)
        (one,) = [c for c in connections(vm) if c["protocol"] == "udp" and c["remote_port"]]
        assert (one["outsourced"], one["state"], one["local"]) == (True, "ESTABLISHED", vm.ip4)
        assert (one["remote"], one["remote_port"]) == (OUTSIDE, 7027)
        assert (one["tx"]["ring_bytes"], one["rx"]["ring_bytes"] > 1) == (1, True)
        vm.run(f"echo 2000 > {idle}")
        try:
            # The one that is published.
            wait(1)
            assert [c["local_port"] for c in connections(vm) if c["protocol"] == "udp"] == [7030]
            again(2)
            wait(1)
        finally:
            vm.run(f"echo 120000 > {idle}")
        assert moves(outsourced, HOST, "outside") == (ASKED, True)
        job.kill()
