# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The host as an end of tunnels: a guest's programs over AF_VSOCK, and the host's by Unix sockets."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import random
import socket
import struct
import subprocess
import termios
from pathlib import Path

import pytest
from hallway_lab.hostend import CID, PATH, listened
from hallway_tests import hostend, library, sshproxy, tunnels
from hallway_tests.guest import tunnel
from hallway_tests.guests import Delta, odd
from hallway_tests.hostend import Caller, HostEnd, reach, serve
from hallway_tests.suite import wait_for
from hallway_tests.tunnels import KINDS, PORT, Talk

pytestmark = [pytest.mark.xdist_group("e2e-tunnel-host"), pytest.mark.slow_on("6.12")]

COPIED_BYTES = 3_000_000
KILLED_BYTES = 100_000  # that the host has sent when its process is killed
TRIES = 5
CLOSES = 100


def test_guest_to_host(host_end: HostEnd) -> None:
    """Programs of the guest connect to services of the host: each byte and message comes back by rings."""
    vm = host_end.vm
    with host_end.loaded():
        for place, kind in enumerate(KINDS):
            delta = Delta(vm)
            with hostend.served(PORT + place, serve, kind):
                said = tunnels.run(vm, f"echo {kind} {CID} {PORT} 1000000 3", 200 * host_end.slow)
            assert not said["wrong"], said["wrong"]
            moved = delta.of(vm)
            assert moved["tx_bytes_tunnel"] == said["sent"]
            assert moved["rx_bytes_tunnel"] == said["sent"] - 3 * tunnel.NAME
            assert moved["tunnel_connections"] == 3
            assert not moved["tunnel_resets"]
            assert not odd(moved)
        wait_for(lambda: not host_end.report()["sockets"], "all is closed", 30)
        assert not host_end.report()["corrupt"]


def test_host_to_guest(host_end: HostEnd) -> None:
    """Programs of the host connect to services of the guest: each byte and message comes back by rings."""
    vm = host_end.vm
    with host_end.loaded(), tunnels.served(vm):
        for kind in KINDS:
            delta, wrong = Delta(vm), list[str]()
            tunnel._echo_checked(Caller(kind, PORT), 7, COPIED_BYTES, wrong)
            assert not wrong, wrong
            moved = delta.of(vm)
            assert moved["rx_bytes_tunnel"] == COPIED_BYTES + tunnel.NAME
            assert moved["tx_bytes_tunnel"] == COPIED_BYTES
            assert moved["tunnel_arrivals"] == 1
            assert not odd(moved)
        wait_for(lambda: not host_end.report()["sockets"], "all is closed", 30)


@pytest.mark.parametrize("kind", KINDS)
def test_closed_by_host(host_end: HostEnd, kind: str) -> None:
    """A program that knows of the close() of one of the host can send no more, though DONE is on its way."""
    vm = host_end.vm
    name = "STREAM" if kind == "stream" else "SEQPACKET"
    with host_end.loaded(), hostend.served(PORT, lambda sock: sock.sendall(b"x"), kind):
        delta = Delta(vm)
        lost = tunnels.send_to_closed(vm, name, CID, PORT, CLOSES, 200 * host_end.slow)
        assert not lost, f"{lost} sends went nowhere"
        assert delta.of(vm)["rx_bytes_tunnel"] == CLOSES
        wait_for(lambda: not host_end.report()["sockets"], "all is closed", 30)
        assert not host_end.report()["corrupt"]


def test_refused(host_end: HostEnd) -> None:
    """Where nothing listens a guest's connect() fails, and a program of the host is hung up on."""
    vm = host_end.vm
    with host_end.loaded():
        talk = Talk(vm, f"try stream {CID} 4999 {TRIES}")
        assert json.loads(talk.hear()) == ["ECONNRESET"] * TRIES
        talk.end()
        for kind in KINDS:
            with pytest.raises(ConnectionRefusedError):
                reach(4998, kind)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(PATH))
            sock.sendall(b"CONNECT me to port 1\n")
            with contextlib.suppress(ConnectionResetError):
                assert not sock.recv(100)
        wait_for(lambda: host_end.report()["refused"], "the refusals are reported", 30)
        wait_for(lambda: not host_end.report()["sockets"], "all is closed", 30)


def test_socat(host_end: HostEnd) -> None:
    """socat in the guest carries a file to the host, and back."""
    vm = host_end.vm
    vm.run(f"head -c {COPIED_BYTES} /dev/urandom >/tmp/sent")
    with host_end.loaded(), hostend.served(7100, tunnel.SERVICES["echo"]):
        vm.run(f"socat -t 60 - VSOCK-CONNECT:{CID}:7100 </tmp/sent >/tmp/got", timeout=120 * host_end.slow)
        assert not vm.run("cmp /tmp/sent /tmp/got").out


@pytest.mark.needs("hallway_tests.sshproxy:prepare")
def test_ssh_proxy(host_end: HostEnd, tmp_path: Path) -> None:
    """The host's ssh reaches the guest by systemd's ssh-proxy, and carries a file there and back."""
    vm = host_end.vm
    sent = random.Random(1).randbytes(COPIED_BYTES)
    with host_end.loaded():
        vm.spawn("exec socat VSOCK-LISTEN:22,fork EXEC:'/usr/sbin/sshd -i'")
        wait_for(lambda: ":22 " in vm.run("ss -Hl --vsock").out, "it listens")
        delta = Delta(vm)
        words = [*sshproxy.command(tmp_path, PATH), "tee /tmp/got"]
        done = subprocess.run(
            words, input=sent, capture_output=True, timeout=200 * host_end.slow, check=False
        )
        assert not done.returncode, done.stderr
        moved = delta.of(vm)
        assert moved["tunnel_arrivals"] == 1
        assert min(moved["tx_bytes_tunnel"], moved["rx_bytes_tunnel"]) > COPIED_BYTES
    assert done.stdout == sent
    assert hashlib.sha256(sent).hexdigest() in vm.run("sha256sum /tmp/got").out


def test_commands(host_end: HostEnd) -> None:
    """The commands cat, listen and perf reach a VM and the host by their names."""
    a, b = host_end.vm, host_end.other
    a.run(f"head -c {COPIED_BYTES} /dev/urandom >/tmp/sent; echo copied 7200 >/etc/hallway.services")
    with host_end.loaded(), hostend.served(7100, tunnel.SERVICES["echo"]):
        for option in ("", "--packets"):
            delta = Delta(a)
            b.run("rm -f /tmp/got")
            listener = b.spawn(f"exec hallway listen {option} 7200 >/tmp/got </dev/null")
            wait_for(lambda: ":7200 " in b.run("ss -Hl --vsock").out, "it listens")
            a.run(f"hallway cat {option} {b.name}:copied </tmp/sent", timeout=120 * host_end.slow)
            assert not listener.wait(60 * host_end.slow).code
            sums = [vm.run(f"sha256sum <{name}").out for vm, name in ((a, "/tmp/sent"), (b, "/tmp/got"))]
            assert sums[0] == sums[1]
            assert delta.of(a)["tx_bytes_tunnel"] == COPIED_BYTES
            b.spawn(f"exec hallway perf {option} --serve 7300")
            wait_for(lambda: ":7300 " in b.run("ss -Hl --vsock").out, "it serves")
            for more, word in (("", "messages/s"), ("--round-trip", "round trips")):
                said = a.run(f"hallway perf {option} --seconds 1 --size 100 {more} {b.name}:7300").out
                assert word in said
            b.run("pkill -KILL -x hallway", check=False)
        said = a.run("hallway cat host:7100 </tmp/sent | sha256sum", timeout=120 * host_end.slow).out
        assert said == sums[0]
        assert "no VM nobody" in a.run("hallway cat nobody:1 2>&1", check=False).out


@pytest.mark.needs("hallway_tests.library:prepare")
def test_library_on_host(host_end: HostEnd, tmp_path: Path) -> None:
    """The library's examples carry messages between the host and a guest, both ways, by rings."""
    vm, patience = host_end.vm, 60 * host_end.slow
    lines, at = library.lines(), f"unix://{PATH}:7400"
    sent, answer = "".join(f"{line}\n" for line in lines), f"{len(lines)} messages"
    sizes = [sum(map(len, lines)), len(answer)]
    vm.put(sent, "/tmp/sent")
    host, guest = library.example("python", library.folder()), library.example("c", "/hallway/library")
    with host_end.loaded():
        delta = Delta(vm)
        vm.run(">/tmp/said")
        job = vm.spawn(f"exec {guest} listen 7400 >/tmp/got 2>/tmp/said")
        wait_for(lambda: "listening" in vm.get("/tmp/said"), "it listens")
        words = [*host.split(), "send", at]
        done = subprocess.run(
            words, input=sent, capture_output=True, text=True, timeout=patience, check=False
        )
        assert (done.stdout.strip(), done.stderr.strip()) == (answer, f"connected to {at}")
        assert not job.wait(patience).code
        assert not vm.run("cmp /tmp/sent /tmp/got").out
        moved = delta.of(vm)
        assert [moved["rx_bytes_tunnel"], moved["tx_bytes_tunnel"]] == sizes

        delta = Delta(vm)
        # The host end is of another user, and connects to the listener.
        words = [*host.split(), "listen", at]
        with (
            (tmp_path / "got").open("w") as got,
            subprocess.Popen(words, stdout=got, stderr=subprocess.PIPE, text=True, umask=0) as listener,
        ):
            try:
                assert listener.stderr is not None
                assert listener.stderr.readline() == f"listening at {at}\n"
                said = vm.run(f"{guest} send vsock://{CID}:7400 </tmp/sent", timeout=patience)
                assert listener.wait(patience) == 0
            finally:
                listener.kill()
        assert (said.out.strip(), said.err.strip()) == (answer, f"connected to vsock://{CID}:7400")
        assert (tmp_path / "got").read_text() == sent
        moved = delta.of(vm)
        assert [moved["tx_bytes_tunnel"], moved["rx_bytes_tunnel"]] == sizes
        assert not listened(7400).exists()
        assert not odd(moved)


def test_ports(host_end: HostEnd) -> None:
    """A guest is reached at those ports alone that its group's configuration names; older tunnels stay."""
    a, b = host_end.vm, host_end.other
    with host_end.loaded(), tunnels.served(b):
        number = tunnels.cid(b)

        def attempt(kind: str, port: int) -> str:
            talk = Talk(a, f"try {kind} {number} {port} 1")
            try:
                return json.loads(talk.hear())[0]
            finally:
                talk.end()

        assert attempt("stream", PORT) == attempt("packet", PORT + 1) == "none"
        try:
            host_end.configure(group=f'tunnels = [{PORT}, "6000-6999"]\n')
            wait_for(lambda: attempt("packet", PORT + 1) == "ECONNRESET", "the port is closed", 60)
            delta = Delta(b)
            kept = Talk(a, f"try stream {number} {PORT} 1")
            assert json.loads(kept.hear()) == ["none"]
            assert attempt("packet", PORT + 1) == "ECONNRESET"
            assert delta.of(b)["tunnel_refusals"] == 1
            listener = Talk(b, "hear stream 6999 5")
            assert listener.hear() == "ready"
            assert attempt("stream", 6999) == "none"
            listener.end()
            host_end.configure(group="tunnels = false\n")
            wait_for(lambda: attempt("stream", PORT) == "ECONNRESET", "all ports are closed", 60)
            assert not delta.of(b)["tunnel_resets"]
            kept.end()
        finally:
            host_end.configure()
        wait_for(lambda: attempt("packet", PORT + 1) == "none", "the port is open", 60)


def test_ports_of_datagrams(host_end: HostEnd) -> None:
    """A datagram to a port that the group's configuration does not name is dropped, and counted."""
    a, b = host_end.vm, host_end.other
    with host_end.loaded():
        for port in (PORT, 7000):
            assert Talk(b, f"echo {port}", tunnels.DATAGRAMS).hear() == "ready"
        senders = [Talk(a, f"send {tunnels.cid(b)} {port}", tunnels.DATAGRAMS) for port in (PORT, 7000)]
        assert all(one.hear() == "ready" for one in senders)

        def send(sender: Talk) -> tuple[int, int]:
            delta = Delta(b)
            sender.say("one")
            assert sender.hear() == "none"

            def came() -> tuple[int, int] | None:
                moved = delta.of(b)
                counts = moved["tunnel_datagrams_received"], moved["tunnel_datagrams_dropped"]
                return counts if any(counts) else None

            counts = wait_for(came, "it came", 60 * host_end.slow)
            assert isinstance(counts, tuple)
            return counts

        named, other = senders
        assert send(named) == send(other) == (1, 0)
        try:
            host_end.configure(group=f"tunnels = [{PORT}]\n")
            wait_for(lambda: send(other) == (0, 1), "the port is closed", 60 * host_end.slow)
            assert send(named) == (1, 0)
            host_end.configure(group="tunnels = false\n")
            wait_for(lambda: send(named) == (0, 1), "all ports are closed", 60 * host_end.slow)
        finally:
            host_end.configure()
        wait_for(lambda: send(other) == (1, 0), "the port is open", 60 * host_end.slow)


def test_process_killed(host_end: HostEnd) -> None:
    """What the guest has received of a process that dies it reads, then ECONNRESET; another takes over."""
    vm = host_end.vm
    with host_end.loaded():
        listener = Talk(vm, f"hear stream {PORT} 5")
        assert listener.hear() == "ready"
        listener.say("accept")
        with reach(PORT) as sock:
            assert listener.hear() == "accepted"
            sock.sendall(bytes(KILLED_BYTES))
            wait_for(lambda: not _count_untaken(sock), "all is in the ring", 30)
            host_end.kill_process()
        listener.say("read")
        assert listener.hear() == f"{KILLED_BYTES} ECONNRESET"
        host_end.wait_host()
        listener.say("accept")
        with wait_for(lambda: _try_reach(PORT), "the guest is reached", 60) as sock:  # type: ignore[union-attr]
            assert listener.hear() == "accepted"
        listener.end()


def _count_untaken(sock: socket.socket) -> int:
    """Return how many bytes, and more, the other end has not received."""
    return struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))[0]


def _try_reach(port: int) -> socket.socket | None:
    try:
        return reach(port)
    except OSError:
        return None


def test_daemon_killed(host_end: HostEnd) -> None:
    """A tunnel goes on while hallwayd is killed and started again; the process stays."""
    with host_end.loaded(), tunnels.served(host_end.vm):
        pid = wait_for(host_end.pid, "there is a process", 30)
        with Caller("stream", PORT).call("echo") as sock:
            host_end.site.daemon.kill()
            sock.sendall(b"before")
            assert tunnel.take(sock, 6) == b"before"
            host_end.site.daemon.start()
            sock.sendall(b"after")
            assert tunnel.take(sock, 5) == b"after"
            wait_for(lambda: host_end.pid() == pid, "the process is known", 30)


def test_withdrawn(host_end: HostEnd) -> None:
    """Without [vm.tunnels] the process and its region go; with it they come again."""
    with host_end.loaded():
        pid = wait_for(host_end.pid, "there is a process", 30)
        try:
            host_end.configure("")
            wait_for(lambda: not host_end.knows_host(), "the host has gone", 60)
            # A zombie has none.
            wait_for(lambda: not Path(f"/proc/{pid}/exe").exists(), "the process has ended", 30)
            wait_for(lambda: not host_end.is_plugged(), "its memory is out of QEMU", 60)
        finally:
            host_end.configure()
        host_end.wait_host()
