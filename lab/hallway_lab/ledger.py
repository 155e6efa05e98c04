# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Did the bytes of a row go through rings, and did both VMs count the same?

The share of ring bytes is judged from 64 KiB on: fewer bytes may all be a
request of wget, or sent before the promotion. The two counts of a direction
must agree in any case.
"""

from __future__ import annotations

from dataclasses import dataclass

from .measure import Direction, Traffic
from .results import Figure, figure

SHARE = 0.95
TRIFLE = 64 << 10


@dataclass(frozen=True)
class Entry:
    """One direction of one row."""

    ring: int
    payload: int
    faults: tuple[str, ...]

    @property
    def share(self) -> float | None:
        """The part of the payload that rings carried; None for a trifle."""
        return self.ring / self.payload if self.payload >= TRIFLE else None


@dataclass(frozen=True)
class Ledger:
    """Both directions of one row."""

    up: Entry
    down: Entry

    @property
    def faults(self) -> list[str]:
        """All that keeps the row from passing, in words."""
        return [*self.up.faults, *self.down.faults]

    def figures(self) -> dict[str, Figure | str]:
        """Return what a record holds of it; the arrows point from client to server, and back."""
        found: dict[str, Figure | str] = {}
        for arrow, way in (("→", self.up), ("←", self.down)):
            found[f"in rings {arrow}"] = figure("B", way.ring)
            if way.share is not None:
                found[f"of payload {arrow}"] = figure("%", way.share)
        return found


def judge(traffic: Traffic, up: int | None, down: int | None, needed: float = SHARE) -> Ledger:
    """Judge what the module counted by what a program is known to have moved, each way."""
    return Ledger(
        _judge("to the server", up, traffic.up, needed),
        _judge("to the client", down, traffic.down, needed),
    )


def unwanted(traffic: Traffic) -> list[str]:
    """Return what is wrong with the traffic of a run with Hallway off."""
    ring = traffic.up.sent_ring + traffic.down.sent_ring
    return [f"{ring} bytes went through rings while Hallway was off"] if ring else []


def _judge(way: str, known: int | None, counted: Direction, needed: float) -> Entry:
    # `counted` lacks the bytes of connections that were never attached; `known`
    # lacks what a program adds to its payload, such as headers.
    payload = max(known or 0, counted.sent)
    faults = []
    if payload >= TRIFLE and counted.sent_ring < needed * payload:
        share = counted.sent_ring / payload
        faults.append(f"{way}: {share:.1%} of {payload} bytes went through rings, {needed:.0%} are needed")
    # A program may close a connection with bytes unread in the ring.
    if counted.sent_ring != counted.received_ring + counted.unread:
        faults.append(
            f"{way}: one VM counted {counted.sent_ring} bytes into rings, the other "
            f"{counted.received_ring} out of them, and {counted.unread} were left unread"
        )
    return Entry(counted.sent_ring, payload, tuple(faults))
