# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A kernel of User Mode Linux, as the benchmarks at native speed have it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hallway_lab import paths
from hallway_lab.sh import LabError
from hallway_lab.uml import Uml
from hallway_lab.vm import Result

pytestmark = [
    pytest.mark.slow,
    pytest.mark.needs("hallway_tests.native:prepare"),
    pytest.mark.xdist_group("uml"),
]
HALLWAY = paths.REPO / "host/target/release/hallway"
WRITES, SIZE = 4096, 4096
# Both ends are in one thread, so it is certain that no other call is in the socket.
STREAM = f"""
import socket
listener = socket.create_server(("127.0.0.1", 0))
a = socket.create_connection(listener.getsockname())
b = listener.accept()[0]
for _ in range({WRITES}):
    a.sendall(bytes({SIZE}))
    assert len(b.recv({SIZE}, socket.MSG_WAITALL)) == {SIZE}
"""


@pytest.fixture
def uml(tmp_path: Path) -> Iterator[Uml]:
    """Boot the kernel."""
    with Uml(tmp_path / "uml.log") as booted:
        yield booted


def test_commands(uml: Uml) -> None:
    """A command says what it says anywhere, and its exit code; files of the host can't be written."""
    assert uml.run("echo out; echo err >&2; exit 3", check=False) == Result(3, "out\n", "err\n")
    with pytest.raises(LabError, match="exit code 1"):
        uml.run("false")
    assert uml.run(f"touch {paths.OUT}/uml", check=False).code == 1
    assert uml.run("grep -c ^processor /proc/cpuinfo").out == "1\n"
    uml.judge()


def test_module(uml: Uml) -> None:
    """The module carries connections within the kernel through rings, and can be unloaded."""
    module = paths.out("build", "uml", "kmod/hallway.ko")
    uml.run(f"insmod {module} loopback=1 promote_bytes=0 promote_ms=0")
    uml.run(f"/usr/bin/python3 -c '{STREAM}'")
    counted = json.loads(uml.run(f"{HALLWAY} counters --json").out)
    assert counted["tx_bytes_ring"] == counted["rx_bytes_ring"] > WRITES * SIZE / 2, counted
    uml.run("rmmod hallway")
    uml.judge()


def test_complaint(uml: Uml) -> None:
    """What the kernel complains of is found, and a kernel that ends, too."""
    uml.run("echo 'BUG: a test' >/dev/kmsg")
    with pytest.raises(LabError, match="BUG: a test"):
        uml.judge()
    with pytest.raises(LabError, match="has ended"):
        uml.run("busybox poweroff -f")
