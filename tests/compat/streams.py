"""iperf3."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from .stage import MIB, Payload, Program, Stage

BYTES = 256 * MIB
# Its server stops reading when the client says that all is sent: what is on its
# way then counts as sent alone, some 2 MiB on TCP, and what the rings hold as well.
UNREAD = 16 * MIB


@contextlib.contextmanager
def _server(stage: Stage) -> Iterator[None]:
    with stage.serving("exec iperf3 -s", 5201):
        yield


def _iperf3(stage: Stage) -> Payload:
    """Each way, in two streams; its own check is the count of the bytes."""
    for way in ("", "-R"):
        report = json.loads(stage.call(f"iperf3 -c {stage.server.ip4} -n {BYTES} -P 2 -J {way}"))
        sent, received = (report["end"][f"sum_{what}"]["bytes"] for what in ("sent", "received"))
        if sent < BYTES or not sent - UNREAD <= received <= sent:
            raise AssertionError(f"iperf3 {way}: {sent} bytes sent, {received} received")
    return Payload(BYTES, BYTES)


PROGRAMS = (
    Program("iperf3", "iperf3", f"{BYTES // MIB} MiB each way, two streams", _iperf3, _server, "NETPERF"),
)
