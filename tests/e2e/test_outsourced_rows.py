# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The rows of docs/compatibility.md, outsourced: a program sees what it sees natively."""

from __future__ import annotations

import ast
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hallway_lab.outsourcing import HOST, HOST6
from hallway_tests.outsourced import Outsourced
from hallway_tests.suite import wait_for

pytestmark = pytest.mark.xdist_group("e2e-outsourcing")

GUEST = Path(__file__).parent.parent / "module/guest"
PORT = 8080
# What the outsourced row shows in place of the native one: an option that is refused, or a bound.
DIFFERENT = {
    "addrform": "Protocol not available",
    "ktls": "Protocol not available",
    "md5": "['ENOPROTOOPT', 'ENOPROTOOPT', b'there', b'back', b'there', b'back']",
    "names": f"'{HOST}', '::ffff:{HOST}'",  # the row is on loopback natively
    "notsent_lowat": "[[4], False,",  # it acts on nothing
    "proc_net_tcp": "not enough values to unpack",  # `hallway connections` shows it
    "repair": "Protocol not available",
    "sockmap": "Operation not supported",
    "ss": "[], False",  # the same
    "urgent": "Operation not supported",
    "zerocopy": "No buffer space available",
}
# Options of TCP and of sockets that differ.
OPTIONS: dict[str, set] = {
    "every_option": {f"{socket.IPPROTO_TCP}.{socket.TCP_WINDOW_CLAMP}"},
    # TCP_CONGESTION, _QUEUE_SEQ, _FASTOPEN, _FASTOPEN_CONNECT, _FASTOPEN_NO_COOKIE, _TX_DELAY
    "set_every_option": {13, 21, 23, 30, 34, 37},
}
# Rows about packets of the guest: rules for them, their times, or that none pass.
PACKETS = {"filtered", "keepalive", "linger_wait", "timestamps", "user_timeout"}
# Rows that fill what lies between the ends: the host's socket and two rings hold more.
FULL = {"interrupted_send", "sendfile"}
# splice() is recvmsg() here, which waits for as many bytes. It takes them as they come: SIOCINQ shows that.
LOWAT = {"rcvlowat", "splice_lowat"}
# Rows that stay native: with connections of their own within the guest, or BPF programs that see them.
NATIVE = {
    *("defer_accept", "fastopen", "fastopen_late", "mptcp", "namespaces", "self_connected"),
    *("simultaneous_open", "sockops", "unaccepted"),
}
UNPLAYED = PACKETS | FULL | LOWAT | NATIVE


def names() -> list[str]:
    """Return the names of all rows."""
    ask = "import json, rows; print(json.dumps([row.name for row in rows.ROWS]))"
    done = subprocess.run([sys.executable, "-B", "-c", ask], cwd=GUEST, capture_output=True, check=True)
    return [name for name in json.loads(done.stdout) if name not in UNPLAYED]


def parse(seen: str) -> Any:
    """Return what a row saw, so that pytest can say where it differs."""
    try:
        return ast.literal_eval(seen)
    except (SyntaxError, ValueError):
        return seen


@pytest.mark.slow_on("6.1")
@pytest.mark.parametrize("row", names())
def test_row(outsourced: Outsourced, row: str) -> None:
    """Make a row's calls natively and outsourced, and compare."""
    vm = outsourced.vm
    if vm.run("pgrep -f '[o]utsourced.py'", check=False).code:
        outsourced.load()
        vm.run("ip link set lo up; rm -rf /tmp/rows; cp -r /hallway/tests /tmp/rows")
        vm.spawn(f"cd /tmp/rows && exec python3 -B outsourced.py {HOST} {HOST6} {PORT}")
        wait_for(lambda: not vm.run("test -p /tmp/rows/seen", check=False).code, "rows can be asked for")
    seen = vm.run(f"cd /tmp/rows && echo {row} >asked && cat seen", timeout=300 * outsourced.slow).out
    assert seen.startswith('{"native": '), seen[-4000:]
    said = json.loads(seen)
    if row in DIFFERENT:
        assert DIFFERENT[row] in said["outsourced"]
    elif row in OPTIONS:
        (native, _), (outsourced_too, _) = (parse(said["native"]), parse(said["outsourced"]))
        differing = {name: (native[name], outsourced_too[name]) for name in native}
        differing = {name: seen for name, seen in differing.items() if seen[0] != seen[1]}
        assert set(differing) == OPTIONS[row], differing
    else:
        assert parse(said["outsourced"]) == parse(said["native"])
    assert said["bytes"], "no byte went by the host"
