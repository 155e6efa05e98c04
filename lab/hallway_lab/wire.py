# SPDX-License-Identifier: Apache-2.0 OR MIT
"""JSON over a Unix socket: QEMU's monitor (QMP) and the guest agent (QGA).

Both speak one JSON object per line. The agent's side of the socket survives
guest reboots, so it may hold answers to old questions: a sync with a number
throws those away.
"""

from __future__ import annotations

import itertools
import json
import random
import socket
import threading
import time
from pathlib import Path
from typing import Any

from .sh import LabError


class WireError(LabError):
    """The other side refused a command, or the connection broke."""


class Wire:
    """One line-wise JSON connection; commands from several threads take turns.

    It goes to a socket's path, or to an address and a port.
    """

    def __init__(self, place: Path | tuple[str, int], timeout: float) -> None:
        self._sock = _connected(place, timeout)
        self._lock = threading.RLock()
        self._buffer = b""
        self._numbers = itertools.count()
        self.events: list[dict[str, Any]] = []

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._sock.settimeout(left)
            chunk = self._sock.recv(1 << 16)
            if not chunk:
                raise WireError("the connection to QEMU was closed")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line.strip(b"\xff") or b"{}")

    def _send(self, message: dict[str, Any], prefix: bytes = b"") -> None:
        try:
            self._sock.settimeout(30)
            self._sock.sendall(prefix + json.dumps(message).encode() + b"\n")
        except OSError as broken:
            raise WireError(f"the connection to QEMU broke: {broken}") from None

    def command(self, name: str, timeout: float = 30, **arguments: Any) -> Any:
        """Run one command and return its result."""
        # An answer that comes too late is none to the next command.
        number = next(self._numbers)
        message: dict[str, Any] = {"execute": name, "id": number}
        if arguments:
            message["arguments"] = {k.replace("_", "-"): v for k, v in arguments.items()}
        with self._lock:
            self._send(message)
            deadline = time.monotonic() + timeout
            try:
                while True:
                    reply = self._receive(deadline)
                    if reply.get("id", number) != number:
                        continue
                    if "return" in reply:
                        return reply["return"]
                    if "error" in reply:
                        raise WireError(f"{name}: {reply['error'].get('desc', reply['error'])}")
                    if "event" in reply:
                        self.events.append(reply)
            except TimeoutError:
                raise WireError(f"{name}: no answer within {timeout:.0f} s") from None

    def wait_event(self, name: str, timeout: float = 30, **data: Any) -> dict[str, Any]:
        """Wait for an event whose data has the given items; it is then forgotten."""
        deadline = time.monotonic() + timeout
        with self._lock:
            while True:
                for event in self.events:
                    if event["event"] == name and data.items() <= event.get("data", {}).items():
                        self.events.remove(event)
                        return event
                try:
                    reply = self._receive(deadline)
                except TimeoutError:
                    raise WireError(f"no event {name} within {timeout:.0f} s") from None
                if "event" in reply:
                    self.events.append(reply)


def _connected(place: Path | tuple[str, int], timeout: float) -> socket.socket:
    deadline = time.monotonic() + timeout
    while True:
        local = isinstance(place, Path)
        sock = socket.socket(socket.AF_UNIX if local else socket.AF_INET)
        sock.settimeout(1)
        try:
            sock.connect(str(place) if local else place)
            return sock
        except OSError as error:
            sock.close()
            # A machine that boots is not in the network yet.
            if local and not isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
                raise
            if time.monotonic() > deadline:
                raise WireError(f"nobody listens on {place}") from None
            time.sleep(0.02 if local else 0.2)


def monitor(path: Path, timeout: float = 20) -> Wire:
    """Connect to a QMP socket and leave its greeting behind."""
    wire = Wire(path, timeout)
    wire.command("qmp_capabilities")
    return wire


def agent_sync(wire: Wire, timeout: float) -> bool:
    """Tell whether the guest agent answers; drop whatever it said before."""
    number = random.getrandbits(31)
    message = {"execute": "guest-sync", "arguments": {"id": number}}
    with wire._lock:
        wire._buffer = b""
        wire._send(message, prefix=b"\xff\n")
        deadline = time.monotonic() + timeout
        while True:
            try:
                if wire._receive(deadline).get("return") == number:
                    return True
            except TimeoutError:
                return False
            except ValueError:
                continue  # half a line from before
