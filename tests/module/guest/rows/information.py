# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What the kernel says of a connection."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess

from pairs import KINDS, PATIENCE, Sleeper, pattern, take, wait_for
from row import outcome, row

from .data import arrived, unacknowledged, unsent, waiting

TCP_INQ = TCP_CM_INQ = 36
SIOCATMARK = 0x8905
SO_MEMINFO = 55
SO_TIMESTAMP, SO_TIMESTAMPNS, SO_TIMESTAMPING = 29, 35, 37
SO_TIMESTAMP_NEW, SO_TIMESTAMPNS_NEW, SO_TIMESTAMPING_NEW = 63, 64, 65
COUNTED = ("bytes_acked", "bytes_received")  # as ss calls them
TIMESTAMPS_OF_ARRIVAL = 8 | 16  # SOF_TIMESTAMPING_RX_SOFTWARE, _SOFTWARE
TIMESTAMPS_OF_SENDING = 2 | 16 | 128  # SOF_TIMESTAMPING_TX_SOFTWARE, _SOFTWARE, _OPT_ID

# Times, sizes that TCP tunes by itself, what names the socket, and what takes it over.
VARYING_TCP = {11, 24, 26, 35, 36}
VARYING_SOCKET = {4, 7, 8, 49, 55, 56, 57}
TAKING_OVER = {14, 19, 31, 32}  # MD5SIG, REPAIR, ULP, MD5SIG_EXT


@row("getsockname(), getpeername()")
def names(link):
    """Each end names itself and the other, IPv4, IPv6 or mapped."""
    seen = []
    ends = [link.pair(kind) for kind in KINDS]
    link.cross()
    for a, b in ends:
        a.sendall(b"x")
        b.recv(1)
        seen.append([sorted(s.getsockname()[0] for s in (a, b)), sorted(s.getpeername()[0] for s in (a, b))])
        seen.append(a.getsockname()[1] == b.getpeername()[1] and b.getsockname()[1] == a.getpeername()[1])
    return seen


@row("getsockopt() of every option")
def every_option(link):
    """What TCP answers, byte by byte, but for times and sizes that vary by themselves."""
    a, b = link.pair()
    link.cross()
    seen = {}
    for level, count, varying in (
        (socket.IPPROTO_TCP, 64, VARYING_TCP),
        (socket.SOL_SOCKET, 90, VARYING_SOCKET),
    ):
        for option in set(range(count)) - varying:
            seen[f"{level}.{option}"] = str(outcome(a.getsockopt, level, option, 128))
    a.sendall(b"x")
    return seen, b.recv(9)


@row("setsockopt() of every option")
def set_every_option(link):
    """Taken or refused as TCP does, and bytes flow on."""
    a, b = link.pair()
    link.cross()
    seen = {}
    for option in sorted(set(range(64)) - VARYING_TCP - TAKING_OVER):
        said = outcome(a.setsockopt, socket.IPPROTO_TCP, option, 1)
        seen[option] = (said, str(outcome(a.getsockopt, socket.IPPROTO_TCP, option, 128)))
    a.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
    a.sendall(b"x")
    return seen, b.recv(9)


@row("SIOCINQ")
def siocinq(link):
    """Bytes to read, over both carriers."""
    a, b = link.pair()
    seen = [waiting(b)]
    a.sendall(pattern(1000))
    arrived(b, 1000)
    take(b, 300)
    seen.append(waiting(b))
    link.cross()
    seen.append(waiting(b))
    a.sendall(pattern(500))
    arrived(b, 1200)
    a.shutdown(socket.SHUT_WR)
    take(b, 1200)
    return [*seen, waiting(b)]


@row("SIOCOUTQ, SIOCOUTQNSD")
def siocoutq(link):
    """Nothing is left to send once the peer's kernel has it all."""
    a, b = link.pair()
    a.sendall(pattern(1000))
    link.cross()
    a.sendall(pattern(1000))
    wait_for(lambda: not unacknowledged(a), "all is acknowledged")
    return unsent(a), waiting(b), len(take(b, 2000))


@row("TCP_INQ")
def inq(link):
    """Each recvmsg() says what is left, once, also of bytes that came in two pieces."""
    a, b = link.pair()
    b.setsockopt(socket.IPPROTO_TCP, TCP_INQ, 1)

    def left(count, flags=0):
        # Room for the one message that there is.
        got, control, said, _ = b.recvmsg(count, socket.CMSG_SPACE(4), flags)
        return len(got), [(level, kind, struct.unpack("i", data)) for level, kind, data in control], said

    def left_of_two():
        reader = Sleeper(left, 2000, socket.MSG_WAITALL).asleep("recvmsg")
        a.sendall(pattern(1000))
        wait_for(lambda: not unacknowledged(a), "the first piece is there")
        a.sendall(pattern(1000))
        return reader.result()

    seen = [left_of_two()]
    a.sendall(pattern(1000))
    arrived(b, 1000)
    seen += [left(300), left(100, socket.MSG_PEEK)]
    link.cross()
    a.sendall(pattern(1000))
    arrived(b, 1700)
    seen += [left(1000, socket.MSG_WAITALL), left(700)]
    seen.append(left_of_two())
    a.shutdown(socket.SHUT_WR)
    poll = select.poll()
    poll.register(b, select.POLLRDHUP)
    poll.poll(PATIENCE * 1000)
    return [*seen, left(9), b.getsockopt(socket.IPPROTO_TCP, TCP_INQ)]


@row("SO_MEMINFO")
def meminfo(link):
    """Has its fields; what has been read and acknowledged is charged to nobody."""
    a, b = link.pair()
    a.sendall(pattern(1000))
    link.cross()
    take(b, 1000)

    def charged():
        said = struct.unpack("9I", a.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36))
        return said[0] + said[2]  # rmem_alloc, wmem_alloc

    wait_for(lambda: not charged(), "nothing is charged any more")
    return len(a.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36)), b.recv(0)


def _stamped(link, option, value):
    a, b = link.pair()
    b.setsockopt(socket.SOL_SOCKET, option, value)
    link.demoted("TIMESTAMP")
    seen = [outcome(b.recvmsg, 9, 512, socket.MSG_DONTWAIT)]

    def arrival():
        a.sendall(b"12345")
        arrived(b, 5)
        return b.recvmsg(9, 512)

    wait_for(lambda: arrival()[1], "the kernel has begun to note times")
    for _ in range(3):
        got, control, flags, _ = arrival()
        kinds = [(level, kind, len(data)) for level, kind, data in control]
        seen.append((got, kinds, flags, all(any(data) for _, _, data in control)))
    return seen


@row("SO_TIMESTAMP, SO_TIMESTAMPNS, SO_TIMESTAMPING, and …_NEW", demotes="TIMESTAMP", crosses=False)
def timestamps(link):
    """Bytes come with the time of their arrival; sends leave theirs on the error queue."""
    plain = (SO_TIMESTAMP, SO_TIMESTAMPNS, SO_TIMESTAMP_NEW, SO_TIMESTAMPNS_NEW)
    seen = [_stamped(link, option, 1) for option in plain]
    for option in (SO_TIMESTAMPING, SO_TIMESTAMPING_NEW):
        seen.append(_stamped(link, option, TIMESTAMPS_OF_ARRIVAL))
    a, b = link.pair()
    a.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, TIMESTAMPS_OF_SENDING)
    poll = select.poll()
    poll.register(a, 0)
    for _ in range(2):
        a.sendall(b"12345")
        link.demoted("TIMESTAMP")
        seen.append(take(b, 5))
        poll.poll(PATIENCE * 1000)
        got, control, flags, _ = a.recvmsg(9, 512, socket.MSG_ERRQUEUE)
        seen.append((got, [(level, kind, len(data)) for level, kind, data in control], flags))
    return [*seen, *_stamped_message(link)]


def _stamped_message(link):
    """Ask for the time of one message's sending alone; return what is there then."""
    a, b = link.pair()
    asked = struct.pack("I", 2)  # SOF_TIMESTAMPING_TX_SOFTWARE
    a.sendmsg([b"12345"], [(socket.SOL_SOCKET, SO_TIMESTAMPING, asked)])
    link.demoted("TIMESTAMP")
    seen = [take(b, 5), outcome(a.recvmsg, 9, 512, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)]
    a.sendall(b"later")
    return [*seen, take(b, 5)]


def line_of(sock):
    """Return the words of the socket's line in /proc/net/tcp."""
    inode = str(os.fstat(sock.fileno()).st_ino)
    with open("/proc/net/tcp") as file:
        (found,) = [line.split() for line in file if line.split()[9] == inode]
    return found


@row("/proc/net/tcp")
def proc_net_tcp(link):
    """Lists the connection with its state, owner and inode."""
    a, b = link.pair()
    a.sendall(b"x")
    link.cross()
    b.recv(1)
    wait_for(lambda: not unacknowledged(a), "all is acknowledged")
    return [(line[3], line[4], line[7]) for line in (line_of(a), line_of(b))]


@row("ss -tiem")
def ss(link):
    """Finds the connection and tells all of it; the bytes that it counts move with the stream."""
    a, b = link.pair()

    def moved(count):
        before = _listed(a)[1], _listed(b)[1]
        a.sendall(bytes(count))
        take(b, count)
        wait_for(lambda: not unacknowledged(a), "all is acknowledged")
        return [
            [int(now.get(name, 0)) - int(then.get(name, 0)) for name in COUNTED]
            for now, then in zip((_listed(a)[1], _listed(b)[1]), before, strict=True)
        ]

    seen = [moved(3000)]
    link.cross()
    seen.append(moved(2000))
    columns, fields = _listed(b)
    return [*seen, columns, {"ino", "skmem", "rto", "cwnd", "bytes_received"} <= set(fields)]


def _listed(sock):
    """Return the first columns that ss prints of a socket, and what it names."""
    asked = ["ss", "-Htiem", "sport", "=", f":{sock.getsockname()[1]}"]
    words = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    return words[:3], dict(word.split(":", 1) for word in words[5:] if ":" in word)


def reported(sock):
    """Return what TCP_INFO tells: the state; bytes acknowledged, received and sent."""
    said = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    acked, received = struct.unpack_from("QQ", said, 120)
    (sent,) = struct.unpack_from("Q", said, 200)
    return said[0], acked, received, sent


@row("TCP_INFO")
def tcp_info(link):
    """The connection's state; the bytes sent, acknowledged and received move with the stream alone."""
    a, b = link.pair()
    before = reported(a), reported(b)

    def moved(count):
        a.sendall(bytes(count))
        take(b, count)
        wait_for(lambda: not unacknowledged(a), "all is acknowledged")
        return since()

    def since():
        return [
            [x - y for x, y in zip(now, then, strict=True)]
            for now, then in zip((reported(a), reported(b)), before, strict=True)
        ]

    seen = [reported(a)[0], moved(3000)]
    link.cross()
    return [*seen, since(), moved(2000), reported(a)[0]]
