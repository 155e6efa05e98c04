# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Two VMs and the host as ends of tunnels: their modules, and programs of the host by Unix sockets."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hallway_lab import hostend, topology
from hallway_lab.hostend import FOLDER, PATH, TUNNELS
from hallway_lab.topology import Daemon, Site, describe_vm
from hallway_lab.vm import VM

from . import tunnels
from .config import GROUP
from .guest import tunnel
from .guests import healthy, insmod, loaded, rmmod, wait_members
from .pair import running, sweep
from .suite import wait_for

NUMBER, OTHER = 12, 13
TYPES = tunnel.TYPES


@dataclass
class HostEnd:
    """A VM, the process that is the host's end of its tunnels, and another VM, which has none."""

    site: topology.Site
    vm: VM
    other: VM
    slow: float  # factor on all timeouts

    @property
    def vms(self) -> list[VM]:
        """Every VM."""
        return self.site.vms

    def healthy(self) -> None:
        """Fail if a guest complained."""
        healthy(*self.vms)

    def sweep(self) -> None:
        """End what a failed test has left running in the guests."""
        sweep(*self.vms)

    def report(self) -> dict:
        """Return what the host says of the process; nothing if there is none."""
        return self.site.daemon.machine(self.vm).get("host_end", {})

    def is_plugged(self) -> bool:
        """Tell whether QEMU has memory of the VM and the host, or is about to let it go."""
        return any(plug["region"].startswith("tun.") for plug in self.site.daemon.machine(self.vm)["plugs"])

    def pid(self) -> int | None:
        """Return the process."""
        return self.report().get("pid")

    def knows_host(self) -> bool:
        """Tell whether the guest reaches the host."""
        return hostend.knows_host(self.vm)

    def wait_host(self) -> None:
        """Wait until the guest reaches the host."""
        wait_for(self.knows_host, "the host arrives", 60 * self.slow)

    def kill_process(self) -> None:
        """Kill the process, and wait for the next one."""
        pid = wait_for(self.pid, "there is one", 30)
        assert isinstance(pid, int)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: self.pid() not in (None, pid), "there is another", 30)

    def configure(self, tunnels: str = TUNNELS, group: str = "") -> None:
        """Have hallwayd killed, and started with another [vm.tunnels], and more words about the group."""
        self.site.daemon.kill()
        self.write(tunnels, group)
        self.site.daemon.start()

    def write(self, tunnels: str = TUNNELS, group: str = "") -> None:
        """Write the configuration."""
        config = self.site.daemon.config
        assert config
        words = (GROUP, group, describe_vm(self.vm, "both", more=tunnels), describe_vm(self.other, "both"))
        config.write_text("".join(words))

    @contextlib.contextmanager
    def loaded(self) -> Iterator[None]:
        """Have both modules in the guests for the length of the block."""
        for vm in (self.vm, self.other):
            if loaded(vm):
                rmmod(vm)
            insmod(vm)
            tunnels.load(vm)
        self.wait_host()
        wait_members(self.vm, self.other)
        try:
            yield
        finally:
            for vm in (self.vm, self.other):
                words = "pkill -KILL -f '[/]hallway/guest/run.py'; pkill -KILL -x 'socat|hallway'"
                vm.run(words, check=False)
            tunnels.unload(self.vm, self.other)


@contextlib.contextmanager
def booted(
    kernel: str, share: Path, logs: Path, slow: float, *, qemu: str | None = None
) -> Iterator[HostEnd]:
    """Boot the VMs, with a daemon of their own, for the length of the block."""
    site = Site(Daemon(host="hostend", config=logs / "hallwayd.toml"))
    options = {"share": share, "qemu": qemu, "boot_timeout": 120 * slow}
    vms = [
        site.vm(number, kernel, monitor=Path(f"/run/vm{number}.qmp"), **options) for number in (NUMBER, OTHER)
    ]
    stand = HostEnd(site, *vms, slow)
    stand.write()
    FOLDER.mkdir(exist_ok=True)
    with running(site, vms, logs):
        yield stand


def reach(port: int, kind: str = "stream") -> socket.socket:
    """Connect from the host to a port of the guest, as Firecracker and Cloud Hypervisor have it."""
    path = PATH if kind == "stream" else hostend.packets()
    sock = socket.socket(socket.AF_UNIX, TYPES[kind])
    sock.settimeout(60)
    sock.connect(str(path))
    sock.sendall(f"CONNECT {port}\n".encode())
    said = b""
    while not said.endswith(b"\n"):
        piece = sock.recv(1 if kind == "stream" else 100)
        if not piece:
            sock.close()
            raise ConnectionRefusedError(port)
        said += piece
    word, number = said.split()
    assert word == b"OK", said
    assert int(number) >= 1024, said
    return sock


@contextlib.contextmanager
def served(port: int, serve: Callable[[socket.socket], None], kind: str = "stream") -> Iterator[None]:
    """Have a program of the host listen for guests that connect to a port of the host."""
    path = hostend.listened(port)
    listener = socket.socket(socket.AF_UNIX, TYPES[kind])
    listener.bind(str(path))
    # The process is of another user.
    path.chmod(0o777)
    listener.listen(64)

    def answer(sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            serve(sock)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock = listener.accept()[0]
                threading.Thread(target=answer, args=(sock,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        path.unlink()


def serve(sock: socket.socket) -> None:
    """Do what a client of the guest's program asks for, as that program does as a server."""
    name = tunnel.take(sock, tunnel.NAME).decode().strip()
    tunnel.SERVICES[name](sock)


class Caller:
    """A client on the host of the guest's program; that one's own clients are alike."""

    def __init__(self, kind: str, port: int) -> None:
        self.kind, self.port = kind, port + list(TYPES).index(kind)

    def call(self, service: str) -> socket.socket:
        """Return a connection to a service."""
        sock = reach(self.port, self.kind)
        sock.sendall(service.ljust(tunnel.NAME).encode())
        return sock
