# SPDX-License-Identifier: Apache-2.0 OR MIT
"""iperf3."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from .program import MIB, Payload, Program, Vms

BYTES = 256 * MIB
# The server stops reading when the client has sent all. Bytes on their way then
# count as sent only: some 2 MiB on TCP, and those in the rings.
UNREAD = 16 * MIB


@contextlib.contextmanager
def _server(vms: Vms) -> Iterator[None]:
    with vms.serving("exec iperf3 -s", 5201):
        yield


def _iperf3(vms: Vms) -> Payload:
    """Send each way, in two streams; iperf3 counts the bytes."""
    for way in ("", "-R"):
        report = json.loads(vms.call(f"iperf3 -c {vms.server.ip4} -n {BYTES} -P 2 -J {way}"))
        sent, received = (report["end"][f"sum_{what}"]["bytes"] for what in ("sent", "received"))
        if sent < BYTES or not sent - UNREAD <= received <= sent:
            raise AssertionError(f"iperf3 {way}: {sent} bytes sent, {received} received")
    return Payload(BYTES, BYTES)


PROGRAMS = (
    Program("iperf3", "iperf3", f"{BYTES // MIB} MiB each way, two streams", _iperf3, _server, "NETPERF"),
)
