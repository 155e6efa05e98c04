# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Unmodified programs over tunnels: the table of docs/tunnels.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hallway_lab.programs import NCAT, serve
from hallway_tests import tunnels
from hallway_tests.guests import Delta
from hallway_tests.pair import Pair
from hallway_tests.suite import wait_for
from hallway_tests.tunnels import PORT, cid
from programs.program import grouped

pytestmark = [pytest.mark.xdist_group("e2e-tunnels"), pytest.mark.slow_on("6.12")]

COPIED_BYTES = 3_000_000
ANY = 0xFFFFFFFF  # VMADDR_CID_ANY
SOCAT_SERVER = "socat VSOCK-LISTEN:7100 SYSTEM:'cat >/tmp/got; echo done'"


def test_socat(pair: Pair) -> None:
    """socat carries a file to socat, unchanged, and an answer back."""
    pair.load()
    _copy(pair, f"socat -t 60 - VSOCK-CONNECT:{cid(pair.b)}:7100", SOCAT_SERVER, "done")


@pytest.mark.needs("hallway_tests.tunnels:prepare_ncat")
def test_ncat(pair: Pair) -> None:
    """ncat carries a file to socat, with an answer back, and to ncat."""
    pair.load()
    _copy(pair, f"{NCAT} --vsock {cid(pair.b)} 7100", SOCAT_SERVER, "done")
    _copy(
        pair,
        f"{NCAT} --vsock --send-only {cid(pair.b)} 7100",
        f"{NCAT} --vsock -l 7100 --recv-only >/tmp/got",
        "",
    )


def _copy(pair: Pair, client: str, server: str, answer: str) -> None:
    """Have programs copy a file from the first VM to the second one."""
    a, b = pair.both
    a.run(f"head -c {COPIED_BYTES} /dev/urandom >/tmp/sent")
    b.run("rm -f /tmp/got")
    with tunnels.tunnels(pair):
        delta = Delta(*pair.both)
        job = b.spawn(f"exec {server}")
        wait_for(lambda: ":7100 " in b.run("ss -Hl --vsock").out, "it listens")
        said = a.run(f"{client} </tmp/sent", timeout=120 * pair.slow)
        assert said.out.strip() == answer, said
        job.wait(60 * pair.slow)
        assert delta.of(a)["tx_bytes_tunnel"] == delta.of(b)["rx_bytes_tunnel"] == COPIED_BYTES
        tunnels.check(pair, delta)
    sums = [vm.run(f"sha256sum <{name}").out for vm, name in ((a, "/tmp/sent"), (b, "/tmp/got"))]
    assert sums[0] == sums[1]


@contextmanager
def _served(pair: Pair, command: str, port: int = PORT, unread: int = 0) -> Iterator[Delta]:
    """Run a server in the second VM for the length of the block; all bytes have to go through rings.

    unread: bytes that an end may leave unread as it closes.
    """
    a, b = pair.both
    with tunnels.tunnels(pair), grouped(b, "server") as joined:
        serve(b, f"{joined}; exec {command}", port, timeout=60 * pair.slow, sockets="--vsock")
        delta = Delta(a, b)
        yield delta

        def arrived() -> bool:
            first, second = delta.of(a), delta.of(b)
            ways = ((first, second), (second, first))
            return all(0 <= tx["tx_bytes_tunnel"] - rx["rx_bytes_tunnel"] <= unread for tx, rx in ways)

        wait_for(arrived, "what each VM has sent is read in the other one", 30 * pair.slow)
        tunnels.check(pair, delta)


def test_ssh(pair: Pair) -> None:
    """ssh carries a file there and back at once, by socat at both ends."""
    pair.load()
    a, b = pair.both
    a.run(f"head -c {COPIED_BYTES} /dev/urandom >/tmp/sent")
    with _served(pair, "socat VSOCK-LISTEN:22,fork EXEC:'/usr/sbin/sshd -i'", 22) as delta:
        proxy = f"ProxyCommand socat - VSOCK-CONNECT:{cid(b)}:22"
        command = f"ssh -o '{proxy}' {b.name} 'tee /tmp/got' </tmp/sent >/tmp/back"
        a.run(command, timeout=200 * pair.slow)
        moved = delta.of(a)
        assert moved["tunnel_connections"] == 1
        assert min(moved["tx_bytes_tunnel"], moved["rx_bytes_tunnel"]) > COPIED_BYTES
    sums = [a.run(f"sha256sum <{name}").out for name in ("/tmp/sent", "/tmp/back")]
    assert sums == [b.run("sha256sum </tmp/got").out] * 2


def test_qemu_ga(pair: Pair) -> None:
    """The guest agent of QEMU answers another VM."""
    pair.load()
    a, b = pair.both
    questions = "".join(f'{{"execute": "guest-{name}"}}\n' for name in ("ping", "info", "get-host-name"))
    with _served(pair, f"qemu-ga -m vsock-listen -p {ANY}:{PORT}") as delta:
        said = a.run(
            f"socat -t 60 - VSOCK-CONNECT:{cid(b)}:{PORT}", timeout=60 * pair.slow, stdin=questions
        ).out
        assert delta.of(b)["rx_bytes_tunnel"] == len(questions)
        assert delta.of(a)["rx_bytes_tunnel"] == len(said)
    ping, info, name = (json.loads(line)["return"] for line in said.splitlines())
    assert ping == {}
    assert f" {info['version']}" in b.run("qemu-ga --version").out
    assert name == {"host-name": b.run("hostname").out.strip()}


@pytest.mark.needs("hallway_tests.tunnelprograms:prepare_go")
def test_go(pair: Pair) -> None:
    """A program with Go's mdlayher/vsock gets back what it sends to another one."""
    pair.load()
    _echo(pair, "/hallway/echo-go")


@pytest.mark.needs("hallway_tests.tunnelprograms:prepare_rust")
def test_rust(pair: Pair) -> None:
    """A program with Rust's crate `vsock` gets back what it sends to another one."""
    pair.load()
    _echo(pair, "/hallway/echo-rust")


def _echo(pair: Pair, program: str) -> None:
    a, b = pair.both
    with _served(pair, f"{program} serve {PORT}") as delta:
        said = a.run(f"{program} call {cid(b)} {PORT} {COPIED_BYTES}", timeout=120 * pair.slow)
        assert said.out == "same\n"
        moved = delta.of(a)
        assert moved["tx_bytes_tunnel"] == moved["rx_bytes_tunnel"] == COPIED_BYTES


@pytest.mark.needs("hallway_tests.tunnelprograms:prepare_go")
def test_grpc(pair: Pair) -> None:
    """Messages of gRPC come back, one by one and in a stream."""
    pair.load()
    # The client ends without reading what HTTP/2 has to say last.
    with _served(pair, f"/hallway/echo-go serve-grpc {PORT}", unread=1000) as delta:
        command = f"/hallway/echo-go call-grpc {cid(pair.b)} {PORT} {COPIED_BYTES}"
        assert pair.a.run(command, timeout=200 * pair.slow).out == "same\n"
        moved = delta.of(pair.a)
        assert moved["tunnel_connections"] == 1
        assert min(moved["tx_bytes_tunnel"], moved["rx_bytes_tunnel"]) > 2 * COPIED_BYTES
