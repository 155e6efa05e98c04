# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A VM migrates between two hosts while it streams with one that stays."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hallway_lab import hosts
from hallway_tests.guests import Delta, Stream, call
from hallway_tests.two_hosts import Hosts, booted, check_stays

from .conftest import Site

pytestmark = [
    pytest.mark.xdist_group("e2e-hosts"),
    pytest.mark.two_hosts,
    pytest.mark.needs("qemu backports"),
    pytest.mark.not_on("6.12", "migration concerns QEMU and the transport, not the guests' kernel"),
    pytest.mark.not_on("debug", "migration takes too long there"),
]

STREAMS = 4


@pytest.fixture
def two_hosts(site: Site, kernel: str, share: Path, slow: float) -> Hosts:
    """Return two hosts, with both VMs on the first of them."""
    return site(lambda logs: booted(kernel, share, logs, slow))


def test_migrates(two_hosts: Hosts) -> None:
    """`hallway migrate` moves a VM to another host and back: its streams continue."""
    with _streaming(two_hosts) as stream:
        for to in (two_hosts.there, two_hosts.here):
            move = two_hosts.migrate(to)
            stream.check_running(f"when its VM moved to {to.name} ({move})")
            two_hosts.wait_carried(to, STREAMS)


@pytest.mark.slow
def test_migrates_by_hand(two_hosts: Hosts) -> None:
    """A VM moves to another QEMU on its host, by QMP: its streams continue, on rings again."""
    two_hosts = two_hosts.by_hand()
    with _streaming(two_hosts) as stream:
        move = hosts.migrate(two_hosts.moves, two_hosts.here)
        stream.check_running(f"when its VM moved ({move})")
        two_hosts.wait_carried(two_hosts.here, STREAMS)


@pytest.mark.slow
def test_migration_fails(two_hosts: Hosts) -> None:
    """A migration that is cancelled, or whose destination is missing or dies, leaves all on rings."""
    with _streaming(two_hosts) as stream:
        nowhere = call(*two_hosts.hallway("migrate", two_hosts.moves.name, "unix:/run/nowhere"))
        check_stays(nowhere, "QEMU failed to migrate")
        for why in ("cancelled", "QEMU failed to migrate"):
            stream.check_running(f"before it was {why}")
            two_hosts.wait_on_rings(STREAMS)
            two_hosts.interrupt_migration(why)
        two_hosts.wait_on_rings(STREAMS)


@contextlib.contextmanager
def _streaming(two_hosts: Hosts) -> Iterator[Stream]:
    """Run a stream throughout the block, on rings when it begins, and to its end."""
    delta = Delta(*two_hosts.both)
    stream = Stream(two_hosts.stays, two_hosts.moves, conns=STREAMS, stall=60)
    two_hosts.wait_on_rings(STREAMS)
    yield stream
    stream.stop()
    stream.finish(60 * two_hosts.slow)
    two_hosts.check_counters(delta)
