# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The CID of virtio-vsock as a VM's CID: a tunnel reaches a program that is bound to it."""

from __future__ import annotations

import contextlib
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hallway_lab import topology, vhostvsock
from hallway_tests import tunnels
from hallway_tests.config import GROUP
from hallway_tests.guests import AT_ONCE, Delta, insmod, rmmod, settle_in, wait_members
from hallway_tests.pair import Pair, name_logs
from hallway_tests.tunnels import PORT, Talk, cid

from .conftest import Site

pytestmark = [
    pytest.mark.xdist_group("e2e-virtio-cid"),
    pytest.mark.slow,
    pytest.mark.needs("hallway_lab.vhostvsock:prepare"),
    pytest.mark.not_on("debug", "the device needs its own memory, and the module does nothing new"),
]

CIDS = (11, 12)

# As Go's vsock.Listen() does, it listens at the CID that the core of AF_VSOCK says.
SERVER = f"""
import fcntl, socket, struct
with open("/dev/vsock", "rb") as device:
    cid, = struct.unpack("I", fcntl.ioctl(device, socket.IOCTL_VM_SOCKETS_GET_LOCAL_CID, bytes(4)))
with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as listener:
    listener.bind((cid, {PORT}))
    listener.listen()
    print(cid, flush=True)
    one, (peer, _) = listener.accept()
    print(peer, one.getsockname()[0], one.recv(100).decode(), flush=True)
"""
CLIENT = f"""
import socket
with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as one:
    one.connect(({CIDS[1]}, {PORT}))
    one.sendall(b"hello")
    print(one.getpeername()[0])
"""


@pytest.fixture
def pair(site: Site, kernel: str, share: Path, slow: float) -> Pair:
    """Return two VMs that have virtio-vsock, too."""
    return site(lambda logs: _booted(kernel, share, logs, slow))


@contextlib.contextmanager
def _booted(kernel: str, share: Path, logs: Path, slow: float) -> Iterator[Pair]:
    config = logs / "hallwayd.toml"
    daemon = topology.Daemon(host="virtio-cid", config=config)
    daemon.log = logs / "hallwayd.log"
    site = topology.Site(daemon)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(vhostvsock.serving(folder, logs / "vhost-device-vsock.log", *CIDS))
        vms = []
        for number, one in enumerate(CIDS, 1):
            extra, monitor = vhostvsock.plug(folder, one), Path(f"/run/virtio{number}.qmp")
            options = {"share": share, "boot_timeout": 120 * slow, "monitor": monitor, "extra": extra}
            vms.append(name_logs(site.vm(number, kernel, **options), logs))
        each = zip(vms, CIDS, strict=True)
        words = [topology.describe_vm(vm, "both", more=f"cid = {one}") for vm, one in each]
        config.write_text(GROUP + "".join(words))
        daemon.start()
        stack.callback(daemon.kill, 15)
        stack.enter_context(site.join(*vms))
        for vm in vms:
            settle_in(vm)
        a, b = vms
        yield Pair(site, a, b, kernel, slow, logs, share)


def test_virtio_cid(pair: Pair) -> None:
    """A program listens at its VM's own CID, that of virtio-vsock, and another VM reaches it by a tunnel."""
    a, b = pair.both
    for vm in pair.both:
        vm.run("modprobe vmw_vsock_virtio_transport")
        insmod(vm, **AT_ONCE)
    wait_members(a, b, timeout=60 * pair.slow)
    assert (cid(a), cid(b)) == CIDS
    with tunnels.tunnels(pair):
        delta = Delta(a, b)
        server = Talk(b, shlex.quote(SERVER), "python3 -c")
        assert server.hear() == str(CIDS[1])
        assert tunnels.run(a, shlex.quote(CLIENT), 60 * pair.slow, "python3 -c") == CIDS[1]
        assert server.hear().split() == [*map(str, CIDS), "hello"]
        server.end()
        assert delta.of(b)["tunnel_arrivals"] == 1, "it came by virtio-vsock"
    for vm in pair.both:
        rmmod(vm)
