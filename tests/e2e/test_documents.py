# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Command lines of the documents, run as they are written, on the host and in a guest."""

from __future__ import annotations

import os

import pytest
from hallway_lab.sh import run
from hallway_tests import documents, tunnels
from hallway_tests.guests import AT_ONCE, Stream, wait_members
from hallway_tests.pair import Pair
from hallway_tests.suite import wait_for

HERE = "e2e/test_documents.py::test_lines"
# What the host alone has, and a guest alone; the others are for both.
OF_HOST = ("hallway cpus",)
OF_GUEST = ("hallway connections", "hallway counters", "hallway tunnels", "hallway off")


@pytest.mark.xdist_group("e2e-streams")
@pytest.mark.slow_on("6.12")
def test_lines(pair: Pair) -> None:
    """Each line says something and finds nothing wrong, while a stream is on rings."""
    pair.load(**AT_ONCE)
    wait_members(*pair.both)
    stream = Stream(pair.b, pair.a)
    pair.wait_on_rings()
    path = f"{pair.site.daemon.binaries}:{os.environ['PATH']}"
    for line in documents.run_by(HERE):
        if line not in OF_HOST:
            assert pair.a.run(line).out, f"{line} says nothing"
        if line not in OF_GUEST:
            assert run(["sh", "-c", line], env={"PATH": path}), f"{line} says nothing"
        stream.check_running(f"after {line}")
    pair.a.run("hallway on")
    stream.stop()
    stream.finish(60 * pair.slow)


@pytest.mark.xdist_group("e2e-tunnels")
@pytest.mark.slow
def test_tunnels(pair: Pair) -> None:
    """The lines of docs/tunnels.md, in vm2 and in vm1, which are the names of these VMs."""
    a, b = pair.both
    pair.load()

    def wait_listening(port: int) -> None:
        wait_for(lambda: f":{port} " in b.run("ss -Hl --vsock").out, f"port {port} is listened at")

    listen, cat, serve, perf = documents.run_by("e2e/test_documents.py::test_tunnels")
    with tunnels.tunnels(pair):
        listener = b.spawn(f"exec {listen} >/tmp/got </dev/null")
        wait_listening(5000)
        a.run(f"echo hello | {cat}", timeout=60 * pair.slow)
        assert not listener.wait(60 * pair.slow).code
        assert b.run("cat /tmp/got").out == "hello\n"
        b.spawn(f"exec {serve}")
        wait_listening(5001)
        assert "messages/s" in a.run(perf, timeout=60 * pair.slow).out
        b.run("pkill -KILL -x hallway")
