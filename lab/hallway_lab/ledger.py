"""Does a row hold: did its bytes go through rings, and do both VMs agree?

A direction is judged by its share of ring bytes only from 64 KiB on: a
request of wget, or TCP's first bytes before the promotion, say nothing about
where the payload went. That both VMs counted the same is asked of every one.
"""

from __future__ import annotations

from dataclasses import dataclass

from .measure import Direction, Traffic

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


def judge(traffic: Traffic, up: int | None, down: int | None, needed: float = SHARE) -> Ledger:
    """Hold what a program is known to have moved, each way, against what the module counted."""
    return Ledger(
        _judge("to the server", up, traffic.up, needed),
        _judge("to the client", down, traffic.down, needed),
    )


def unwanted(traffic: Traffic) -> list[str]:
    """What is wrong with the traffic of a run with Hallway off."""
    ring = traffic.up.sent_ring + traffic.down.sent_ring
    return [f"{ring} bytes went through rings while Hallway was off"] if ring else []


def _judge(way: str, told: int | None, counted: Direction, needed: float) -> Entry:
    # Bytes of a connection that was never attached are missing in `counted`,
    # what a program adds to its payload (headers, ciphers) is missing in `told`.
    payload = max(told or 0, counted.sent)
    faults = []
    if payload >= TRIFLE and counted.sent_ring < needed * payload:
        share = counted.sent_ring / payload
        faults.append(f"{way}: {share:.1%} of {payload} bytes went through rings, {needed:.0%} are needed")
    # At its end a program may close a connection with bytes unread in the ring.
    if counted.sent_ring != counted.received_ring + counted.unread:
        faults.append(
            f"{way}: one VM counted {counted.sent_ring} bytes into rings, the other "
            f"{counted.received_ring} out of them, and {counted.unread} were left unread"
        )
    return Entry(counted.sent_ring, payload, tuple(faults))
