# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A VM with an outsourcer on each of two hosts migrates between them."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hallway_lab import isolate
from hallway_lab.hosts import Host
from hallway_lab.sh import run
from hallway_lab.vm import VM
from hallway_tests.guests import Delta, call
from hallway_tests.outsourced import ECHO
from hallway_tests.suite import wait_for
from hallway_tests.two_hosts import Hosts, booted

from .conftest import Site

pytestmark = [
    pytest.mark.xdist_group("e2e-outsourcing-hosts"),
    pytest.mark.two_hosts,
    pytest.mark.needs("qemu backports"),
    pytest.mark.not_on("6.12", "migration concerns QEMU and hallwayd, not the guests' kernel"),
    pytest.mark.not_on("debug", "migration takes too long there"),
]

PORT = 8080
POLICY = f"""
[vm.outsource]
netns = "/run/netns/{{host}}"
publish = ["tcp/{PORT}"]
"""
ADDRESSES = {"here": "10.77.0.201", "there": "10.77.0.202"}
# Talks until its connection ends, and says how.
CLIENT = """
import socket, sys
sock = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)
data = bytes(range(256)) * 40
try:
    for count in range(1 << 30):
        sock.sendall(data)
        got = b""
        while len(got) < len(data):
            piece = sock.recv(len(data) - len(got))
            if not piece:
                sys.exit("the end after %d bytes of an answer" % len(got))
            got += piece
        assert got == data, "other bytes came than were sent"
        if count == 10:
            print("talks", flush=True)
except OSError as error:
    print(type(error).__name__)
"""


@pytest.fixture
def two_hosts(site: Site, kernel: str, share: Path, slow: float) -> Hosts:
    """Return two hosts, with a VM on the first of them that has an outsourcer on each."""

    @contextlib.contextmanager
    def boot(logs: Path) -> Iterator[Hosts]:
        with booted(kernel, share, logs, slow, POLICY) as two:
            for name, address in ADDRESSES.items():
                run(["ip", "-n", name, "addr", "add", f"{address}/24", "dev", isolate.BRIDGE])
            yield two

    return site(boot)


def is_published(host: Host) -> bool:
    """Tell whether something on the host has the port."""
    return bool(run([*isolate.on_host(host.name), "ss", "-Hltn", f"sport = :{PORT}"]).strip())


def count_sockets(host: Host, vm: VM) -> int:
    """Return how many outsourced connections a VM has, as the host sees it."""
    found: int = host.daemon.machine(vm)["outsourcer"]["sockets"]
    return found


@contextlib.contextmanager
def client(host: Host) -> Iterator[subprocess.Popen[str]]:
    """Talk to the VM by the host's address, and stay connected in the block."""
    words = ["python3", "-B", "-c", CLIENT, ADDRESSES[host.name], str(PORT)]
    with subprocess.Popen(
        [*isolate.on_host(host.name), *words], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout and process.stdout.readline() == "talks\n"
            yield process
        finally:
            process.kill()


def count_descriptors(host: Host) -> int:
    """Return how many hallwayd has open."""
    return len(os.listdir(f"/proc/{host.daemon.status()['pid']}/fd"))


@pytest.mark.parametrize("times", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_listeners_follow(two_hosts: Hosts, times: int) -> None:
    """What is connected keeps the VM, or is reset if so asked; its port is published where it goes."""
    vm, places = two_hosts.moves, (two_hosts.here, two_hosts.there)
    vm.put(ECHO, "/root/echo.py")
    server = vm.spawn(f"exec python3 -B /root/echo.py 0.0.0.0 {PORT}")
    wait_for(lambda: is_published(two_hosts.here), "the port is published", 30 * two_hosts.slow)
    delta, descriptors = Delta(vm), [0, 0]
    for number in range(times):
        _migrate_connected(two_hosts, *(places if number % 2 == 0 else places[::-1]))
        if number == 1:
            descriptors = [count_descriptors(host) for host in places]
    with client(places[times % 2]):
        assert delta.of(vm)["outsource_arrivals"] == times + 1
    wait_for(
        lambda: all(count_descriptors(host) <= most for host, most in zip(places, descriptors, strict=True)),
        "hallwayd has no more descriptors than after the first return",
    )
    server.kill()
    two_hosts.healthy()


def _migrate_connected(two_hosts: Hosts, here: Host, there: Host) -> None:
    """Migrate the VM while a client talks to it: refused at first, then the client is reset."""
    vm = two_hosts.moves
    with client(here) as connected:
        wait_for(lambda: count_sockets(here, vm) == 1, "the host knows of it")
        stays = call(*two_hosts.hallway("migrate", vm.name, "unix:/run/nowhere"))
        assert stays.returncode == 1, stays
        assert "it has 1 outsourced connections" in stays.stderr, stays
        assert connected.poll() is None
        two_hosts.migrate(there, "--reset-outsourced=1")
        assert connected.communicate(timeout=60)[0] == "ConnectionResetError\n"
    wait_for(lambda: is_published(there), "the port is published there", 30 * two_hosts.slow)
    assert not is_published(here)
