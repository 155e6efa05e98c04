# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Other users of the socket."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess

import bpf
import native
import nft
from bpf import MSG_VERDICT, SK_MSG, SK_SKB, STREAM_VERDICT, Sockmap, attached, redirection
from cgroup import cgroup
from pairs import PATIENCE, Sleeper, pattern, take, wait_for
from row import outcome, row

from .data import arrived, unacknowledged, unsent, waiting

TCP_REPAIR_QUEUE, TCP_QUEUE_SEQ = 20, 21
RECEIVE_QUEUE, SEND_QUEUE = 1, 2
TCP_REPAIR, TCP_ULP, TCP_MD5SIG, TCP_ZEROCOPY_RECEIVE, TCP_AO_ADD_KEY = 19, 31, 14, 35, 38
SOL_TLS, TLS_TX, TLS_RX = 282, 1, 2
IPV6_ADDRFORM = 1
IPPROTO_MPTCP = 262


def both_ways(a, b):
    """Send something each way; return what came."""
    a.sendall(b"there")
    seen = [take(b, 5)]
    b.sendall(b"back")
    return [*seen, take(a, 4)]


@row("kTLS (TCP_ULP)", demotes="ULP", crosses=False)
def ktls(link):
    """What was sent before comes as it is; with keys set, records go out and come in."""
    subprocess.run(["modprobe", "tls"], check=True)
    a, b = link.pair()
    a.sendall(b"plain")
    a.setsockopt(socket.IPPROTO_TCP, TCP_ULP, b"tls")
    link.demoted("ULP")
    seen = [take(b, 5), *both_ways(a, b)]
    b.setsockopt(socket.IPPROTO_TCP, TCP_ULP, b"tls")
    # TLS 1.2, AES-GCM-128: nonce, key, salt, sequence number
    keys = struct.pack("HH8s16s4s8s", 0x0303, 51, b"12345678", b"k" * 16, b"salt", bytes(8))
    a.setsockopt(SOL_TLS, TLS_TX, keys)
    b.setsockopt(SOL_TLS, TLS_RX, keys)
    a.sendall(b"secret")
    return [*seen, take(b, 6)]


def _unread(link):
    """Return a connection with bytes to read at both ends."""
    a, b = link.pair()
    a.sendall(pattern(9000))
    b.sendall(b"for a")
    arrived(b, 9000)
    arrived(a, 5)
    return a, b


def _inserted(link, ends):
    """Put ends of a connection into a map and take them out again."""
    a, b = _unread(link)
    with contextlib.closing(Sockmap(len(ends))) as held:
        for key, end in enumerate(ends):
            held.put((a, b)[end], key)
        if len(ends) == 1:
            link.demoted("SOCKMAP")
        a.sendall(b"later")
        seen = [take(a, 5), take(b, 9005) == pattern(9000) + b"later", *both_ways(a, b)]
        for key in range(len(ends)):
            held.drop(key)
    return [*seen, *both_ways(a, b)]


@contextlib.contextmanager
def _redirected(kind, where, ends):
    """Within the block both are in a map, and what its program sees goes out of the second one."""
    with contextlib.ExitStack() as stack:
        held = stack.enter_context(contextlib.closing(Sockmap(2)))
        program = stack.enter_context(contextlib.closing(redirection(held, kind, 1)))
        stack.enter_context(attached(held.fd, program, where))
        for key, end in enumerate(ends):
            held.put(end, key)
        yield
        # A socket would keep the program, that the map, and that the socket.
        for key in range(len(ends)):
            held.drop(key)


def _verdict(link):
    """Bytes that come in go out of another socket, the unread ones first."""
    a, b = _unread(link)
    c, d = _unread(link)
    with _redirected(SK_SKB, STREAM_VERDICT, (b, c)):
        link.demoted("SOCKMAP")
        a.sendall(b"later")
        seen = [take(d, 18005) == 2 * pattern(9000) + b"later", take(a, 5)]
    return [*seen, *both_ways(a, b)]


def _message(link):
    """Bytes that are sent go out of another socket; those sent before go their own way."""
    a, b = _unread(link)
    c, d = _unread(link)
    with _redirected(SK_MSG, MSG_VERDICT, (a, c)):
        link.demoted("SOCKMAP")
        a.sendall(b"later")
        seen = [take(d, 9005) == pattern(9000) + b"later"]
        seen += [take(b, 9000) == pattern(9000), take(a, 5), take(c, 5)]
    return [*seen, *both_ways(a, b), *both_ways(c, d)]


@row("sockmap, SK_SKB verdicts, sk_msg", demotes="SOCKMAP", crosses=False)
def sockmap(link):
    """Unread bytes are there for a verdict; what is sent later comes later; a socket can leave the map."""
    return [*(_inserted(link, ends) for ends in ((0,), (1,), (0, 1))), _verdict(link), _message(link)]


@row("TCP_REPAIR (CRIU)", demotes="REPAIR", crosses=False)
def repair(link):
    """The queues of a socket under repair hold all bytes; after it the connection goes on."""
    a, b = link.pair()
    a.sendall(b"unread")
    arrived(b, 6)
    wait_for(lambda: not unacknowledged(a), "all is acknowledged")
    b.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    link.demoted("REPAIR")
    a.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    seen = [(unacknowledged(end), unsent(end), waiting(end)) for end in (a, b)]
    for sends, reads in ((a, b), (b, a)):
        (sent, out), (received, there) = _queue(sends, SEND_QUEUE), _queue(reads, RECEIVE_QUEUE)
        seen += [sent == received, out, there]
    for end in (a, b):
        end.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, -1)
    return [*seen, take(b, 6), *both_ways(a, b)]


def _queue(sock, which):
    """Return where a queue of a socket under repair ends in the stream, and the bytes in it."""
    sock.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR_QUEUE, which)
    end = sock.getsockopt(socket.IPPROTO_TCP, TCP_QUEUE_SEQ)
    return end, outcome(sock.recv, 99, socket.MSG_PEEK | socket.MSG_DONTWAIT)


@row("TCP_MD5SIG, TCP_AO_ADD_KEY", demotes="SECURED", crosses=False)
def md5(link):
    """A key for another peer can be set, of the kinds that this kernel knows; the connection goes on."""
    a, b = link.pair()
    address = struct.pack("!H2s4s120x", 0, b"\0\0", b"\x0a\1\2\3")
    address = struct.pack("H", socket.AF_INET) + address[2:]
    key = address + struct.pack("=BBHi80s", 0, 0, 3, 0, b"key")
    seen = [outcome(a.setsockopt, socket.IPPROTO_TCP, TCP_MD5SIG, key)]
    link.demoted("SECURED")
    c, d = link.pair()
    # struct tcp_ao_add
    key = address + struct.pack("64siIH6B80s", b"hmac(sha1)", 0, 0, 0, 32, 1, 1, 12, 0, 3, b"key")
    seen.append(outcome(c.setsockopt, socket.IPPROTO_TCP, TCP_AO_ADD_KEY, key))
    return [*seen, *both_ways(a, b), *both_ways(c, d)]


@row("IPV6_ADDRFORM", demotes="ADDRFORM", crosses=False)
def addrform(link):
    """A mapped socket becomes an IPv4 one, and goes on."""
    b, a = link.pair("mapped")
    end = a if a.family == socket.AF_INET6 else b
    other = b if end is a else a
    other.sendall(b"before")
    arrived(end, 6)
    end.setsockopt(socket.IPPROTO_IPV6, IPV6_ADDRFORM, socket.AF_INET)
    link.demoted("ADDRFORM")
    return [end.getsockname()[0], take(end, 6), *both_ways(a, b)]


@row("MSG_OOB, SO_OOBINLINE, SIOCATMARK", demotes="URGENT", crosses=False)
def urgent(link):
    """Urgent data is where it was sent in the stream, out of it or in it, and its waiters are notified."""
    return [_urgent(link, *how) for how in ((0, False), (0, True), (1, False))] + [_peek_at_urgent(link)]


def _peek_at_urgent(link):
    """Peek at urgent data: bytes before it end the call, and it alone is nothing to peek at."""
    a, b = link.pair()
    a.sendall(b"abc")
    a.send(b"!", socket.MSG_OOB)
    link.demoted("URGENT")
    poll = select.poll()
    poll.register(b, select.POLLPRI)
    poll.poll(1000 * PATIENCE)
    seen = [b.recv(10, socket.MSG_PEEK | socket.MSG_WAITALL), take(b, 3)]
    reader = Sleeper(b.recv, 10, socket.MSG_PEEK).asleep("recv")
    a.sendall(b"d")
    return [*seen, reader.result(), take(b, 1)]


def _urgent(link, inline, early):
    """Send a byte of urgent data in the midst of others; read it early, or at its mark."""
    a, b = link.pair()
    b.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, inline)
    fcntl.fcntl(b, fcntl.F_SETOWN, os.getpid())
    poll = select.poll()
    poll.register(b, select.POLLPRI)
    got = []

    def marks():
        return [mask for _, mask in poll.poll(0)], _at_mark(b)

    def urgent_data():
        return outcome(b.recv, 1, socket.MSG_OOB)

    before = signal.signal(signal.SIGURG, lambda *_: got.append(1))
    try:
        a.sendall(b"before")
        seen = [marks(), urgent_data()]
        sleeper = Sleeper(select.select, [], [], [b], PATIENCE).asleep("select")
        a.send(b"!", socket.MSG_OOB)
        seen.append({_at_mark(b) for _ in range(1000)})  # on its way and there, it is not next
        link.demoted("URGENT")
        wait_for(lambda: got, "SIGURG comes")
    finally:
        signal.signal(signal.SIGURG, before)
    a.sendall(b"after")
    seen += [len(sleeper.result()[2]), marks()]
    if early:
        seen += [urgent_data(), marks()]
    # Even a read for all ends at the mark.
    seen += [b.recv(99, socket.MSG_WAITALL), marks(), urgent_data(), urgent_data(), marks()]
    return [*seen, take(b, 5 + inline), marks(), urgent_data(), *both_ways(a, b)]


def _at_mark(sock):
    said = ctypes.c_int(-1)
    native.checked("ioctl", sock.fileno(), ctypes.c_ulong(0x8905), ctypes.byref(said))
    return said.value


@row("MSG_ZEROCOPY, MSG_ERRQUEUE, TCP_ZEROCOPY_RECEIVE", demotes="ZEROCOPY", crosses=False)
def zerocopy(link):
    """Each send's completion comes on the error queue; a program that maps what came finds every byte."""
    return _completed(link), _mapped(link)


def _completed(link):
    so_zerocopy, msg_zerocopy = 60, 0x4000000
    a, b = link.pair()
    seen = [outcome(a.recv, 1, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)]
    a.setsockopt(socket.SOL_SOCKET, so_zerocopy, 1)
    a.sendall(b"before")
    data = pattern(20000)
    for _ in range(2):
        seen.append(a.send(data, msg_zerocopy))
    link.demoted("ZEROCOPY")
    seen.append(take(b, 40006) == b"before" + 2 * data)
    completed = []

    def completions():
        said = outcome(a.recvmsg, 9, 512, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
        if not isinstance(said, str):
            _errno, origin, _type, _code, _pad, low, high = struct.unpack_from("=IBBBBII", said[1][0][2])
            completed.extend([origin, *range(low, high + 1)])
        return len([n for n in completed if n < 2]) == 2

    wait_for(completions, "both sends are complete")
    return [*seen, sorted(set(completed)), outcome(a.recv, 1, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)]


def _mapped(link):
    a, b = link.pair()
    data = pattern(5000)
    a.sendall(data)
    arrived(b, 5000)
    libc = native.libc
    libc.mmap.restype = ctypes.c_void_p
    area = libc.mmap(None, ctypes.c_size_t(16384), 1, 1, b.fileno(), ctypes.c_long(0))
    assert area not in (None, ctypes.c_void_p(-1).value), "the socket can not be mapped"
    request = ctypes.create_string_buffer(struct.pack("QIIIi", area, 16384, 0, 0, 0), 24)
    length = ctypes.c_uint(24)
    native.checked(
        "getsockopt", b.fileno(), socket.IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, request, ctypes.byref(length)
    )
    link.demoted("ZEROCOPY")
    mapped, hint = struct.unpack_from("II", request.raw, 8)
    got = ctypes.string_at(area, mapped) + take(b, 5000 - mapped)
    libc.munmap(ctypes.c_void_p(area), ctypes.c_size_t(16384))
    return mapped, hint, got == data, both_ways(a, b)


def _by_its_own(link):
    """Send while the socket has a filter."""
    attach, detach, drop_all = 26, 27, ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0), 8)
    program = struct.pack("HxxxxxxP", 1, ctypes.addressof(drop_all))
    a, b = link.pair()
    a.sendall(b"before")
    arrived(b, 6)
    b.setsockopt(socket.SOL_SOCKET, attach, program)
    a.sendall(b"after")
    link.demoted("FILTERED")
    wait_for(lambda: unacknowledged(a), "it is sent over TCP, and dropped there")
    seen = [take(b, 6), waiting(b)]
    b.setsockopt(socket.SOL_SOCKET, detach, 0)
    return [*seen, take(b, 5), *both_ways(a, b)]


def _dropped(link, a, b):
    """Send something that rules drop."""
    link.refused("FILTERED")
    a.sendall(b"later")
    return unacknowledged(a), waiting(b)


def _by_programs(link):
    """Send while the cgroup has a program."""
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(cgroup())
        a, b = link.pair()
        where = os.open(group, os.O_RDONLY)
        stack.callback(os.close, where)
        program = stack.enter_context(contextlib.closing(bpf.dropper()))
        with attached(where, program, bpf.EGRESS):
            seen = [_dropped(link, a, b)]
        return [*seen, take(b, 5), *both_ways(a, b)]


def _by_rules(link):
    """Send while the network namespace has rules."""
    a, b = link.pair()
    port = b.getsockname()[1]
    with nft.counting(port) as counted:
        link.refused("FILTERED")
        before = counted()[0]
        a.sendall(pattern(5000))
        seen = [take(b, 5000) == pattern(5000)]
        wait_for(lambda: counted()[0] >= before + 5000, "every byte is counted")
        wait_for(lambda: not unacknowledged(a), "all is acknowledged")
    with nft.counting(port, drop=True):
        seen.append(_dropped(link, a, b))
    return [*seen, take(b, 5), *both_ways(a, b)]


@row("SO_ATTACH_FILTER, cgroups' BPF programs, nftables, iptables", demotes="FILTERED", crosses=False)
def filtered(link):
    """What is sent to a socket with a filter, or soon after rules came, is theirs to count or drop."""
    return [_by_programs(link), _by_rules(link), _by_its_own(link)]


@row("MPTCP", crosses=False, carried=False)
def mptcp(link):
    """Stays what it is: its subflows belong to MPTCP."""
    try:
        listener = link.own(socket.socket(proto=IPPROTO_MPTCP))
    except OSError as error:
        return f"this kernel has none: {error}"
    with listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        a = link.own(socket.socket(proto=IPPROTO_MPTCP))
        a.connect(listener.getsockname())
        b = link.own(listener.accept()[0])
    return [*both_ways(a, b), *both_ways(a, b)]


@contextlib.contextmanager
def _namespace(name):
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


@row("network namespaces", crosses=False)
def namespaces(link):
    """On one kernel a connection from one to another is promoted; it outlives the name of its own."""
    with _namespace("row"):
        for command in (
            "ip link add row0 type veth peer name row1 netns row",
            "ip addr add 10.99.0.1/24 dev row0",
            "ip link set row0 up",
            "ip -n row addr add 10.99.0.2/24 dev row1",
            "ip -n row link set row1 up",
        ):
            subprocess.run(command.split(), check=True)
        with socket.create_server(("10.99.0.1", 0)) as listener:
            here = os.open("/proc/self/ns/net", os.O_RDONLY)
            there = os.open("/run/netns/row", os.O_RDONLY)
            try:
                native.checked("setns", there, 0)
                a = socket.socket()
            finally:
                native.checked("setns", here, 0)
                os.close(here)
                os.close(there)
            a.connect(listener.getsockname())
            b, _ = listener.accept()
        link.adopt(a, b)
        seen = both_ways(a, b)
    seen += both_ways(a, b)
    subprocess.run(["ip", "link", "del", "row0"], check=True)
    return seen


@row("BPF sockops")
def sockops(link):
    """A cgroup's program is called as often, and sets options, as connections come and change states."""
    with contextlib.closing(bpf.Map(bpf.ARRAY, 8, 32)) as counts, contextlib.ExitStack() as stack:
        program = stack.enter_context(contextlib.closing(bpf.calls_counter(counts)))
        cgroup = os.open("/sys/fs/cgroup", os.O_RDONLY)
        stack.callback(os.close, cgroup)
        with attached(cgroup, program, bpf.IN_SOCK_OPS):
            a, b = link.pair()
            seen = both_ways(a, b)
            link.cross()
            seen += both_ways(a, b)
            link.ends()
            seen += [one.getsockopt(bpf.SOL_TCP, bpf.USER_TIMEOUT) for one in (a, b)]
            a.close()
            seen.append(b.recv(1))
            b.close()
            closed = bpf.STATES_FROM + 7
            wait_for(lambda: counts.number(closed) == 3, "both ends and their listener are closed")
        # The newcomers at either end, and all states.
        keys = bpf.REFUSED, 4, 5, *range(bpf.STATES_FROM, 32)
        return [*seen, [counts.number(key) for key in keys]]


@row("LSM hooks: sendmsg, recvmsg")
def lsm(link):
    """What a security module forbids is forbidden; what it does not, flows on."""
    a, b = link.pair()
    a.sendall(b"there")
    seen = []
    for _ in range(2):
        with bpf.forbidding(errno.EACCES):
            seen += [outcome(a.send, b"x"), outcome(b.recv, 1), outcome(os.write, a.fileno(), b"x")]
        link.cross()
    return [*seen, take(b, 5), *both_ways(a, b)]
