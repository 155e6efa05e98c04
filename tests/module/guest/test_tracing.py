# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Tracepoints say which direction of which connection is promoted or demoted, and why."""

from __future__ import annotations

import contextlib
import ipaddress
import re

import pytest
from pairs import hallway, pair, recorded, take, wait_for

OFF = 10  # of abi/hallway/reason.h
LINE = re.compile(
    r"hallway_(\w+): (send|receive) local=\[(\S+)\]:(\d+) remote=\[(\S+)\]:(\d+) (.*)",
    re.M,
)


@contextlib.contextmanager
def traced():
    """The module's events are recorded in the block; call what this yields for them."""
    with recorded("hallway") as text:
        yield lambda: LINE.findall(text())


@pytest.mark.parametrize("kind", ["v4", "v6"])
def test_promote_and_demote(kind):
    """Each direction has one event at each end when it comes onto a ring, and one when it leaves."""
    with traced() as events, pair(kind) as (a, b):
        a.sendall(b"x" * 1000)
        take(b, 1000)
        ends = [(end.getsockname()[1], end.getpeername()[1]) for end in (a, b)]
        sides = {(way, *map(str, ports)) for way in ("send", "receive") for ports in ends}
        promoted = [event for event in events() if event[0] == "promote"]
        assert {(way, local, remote) for _, way, _, local, _, remote, _ in promoted} == sides, promoted
        assert len(promoted) == 4, promoted
        for _, _, local, _, remote, _, words in promoted:
            for address in local, remote:
                shown = ipaddress.IPv6Address(address)
                assert (shown.ipv4_mapped or shown).is_loopback, promoted
            assert re.fullmatch(r"ring_bytes=\d{5,}", words), promoted
        try:
            hallway("off")
            wait_for(lambda: sum(event[0] == "demote" for event in events()) >= 4, "all are demoted")
            demoted = [event for event in events() if event[0] == "demote"]
        finally:
            hallway("on")
        assert {(way, local, remote) for _, way, _, local, _, remote, _ in demoted} == sides, demoted
        assert len(demoted) == 4, demoted
        assert f"reason={OFF} " in "".join(words for *_, words in demoted), demoted
        moved = {(way, local): int(words.split("bytes=")[1]) for _, way, _, local, _, _, words in demoted}
        here, far = map(str, ends[0])
        assert moved["send", here] == moved["receive", far] >= 1000, demoted
