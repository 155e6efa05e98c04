# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Servers and clients in Java, Go and JavaScript, whose runtimes have network code of their own."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from .program import LARGE, MIB, Payload, Program, Vms

PORT = 7000
CONNECTIONS = 3


def _serving(command: str, before: str = "true") -> Callable[[Vms], AbstractContextManager[None]]:
    @contextlib.contextmanager
    def serve(vms: Vms) -> Iterator[None]:
        jobs = [vm.spawn(before) for vm in (vms.client, vms.server)]
        for job in jobs:
            done = job.wait(240)
            if done.code:
                raise AssertionError(f"`{before}`: {done.err}")
        with vms.serving(command, PORT):
            yield

    return serve


def _echo(command: str) -> Callable[[Vms], Payload]:
    """Return a function that sends random bytes to an echo over several connections, and compares."""

    def use(vms: Vms) -> Payload:
        said = vms.call(f"{command} {vms.server.ip4} {PORT} {CONNECTIONS} {LARGE}", timeout=240)
        if said.split() != ["same"] * CONNECTIONS:
            raise AssertionError(f"`{command}` says: {said}")
        return Payload(CONNECTIONS * LARGE, CONNECTIONS * LARGE)

    return use


def _go(vms: Vms) -> Payload:
    command = f"/hallway/rawstream -connect {vms.server.ip4}:{PORT} -bytes {LARGE}"
    report = json.loads(vms.call(command))
    for way in ("up", "down"):
        if report[way]["sent_sha256"] != report[way]["received_sha256"]:
            raise AssertionError(f"rawstream, {way}: {report[way]}")
    return Payload(LARGE, LARGE)


JAVAC = "javac -d /tmp/java /hallway/programs/Echo.java /hallway/programs/Caller.java"
ECHO = f"{CONNECTIONS} connections, {LARGE // MIB} MiB each to an echo and back"
PROGRAMS = (
    Program(
        "java",
        "Java: NIO selector ↔ threads",
        ECHO,
        _echo("java -cp /tmp/java Caller"),
        _serving(f"exec java -cp /tmp/java Echo {PORT}", JAVAC),
    ),
    Program(
        "go",
        "static Go program ↔ itself",
        f"{LARGE // MIB} MiB each way",
        _go,
        _serving(f"exec /hallway/rawstream -listen :{PORT}"),
    ),
    Program(
        "node",
        "Node.js: pipe ↔ streams",
        ECHO,
        _echo("node /hallway/programs/caller.js"),
        _serving(f"exec node /hallway/programs/echo.js {PORT}"),
    ),
)
