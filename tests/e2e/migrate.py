"""A VM migrates between two hosts while streams go on with one that stays."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from hallway_lab import hosts
from hallway_tests.guests import Delta, Stream, call
from hallway_tests.two_hosts import Hosts, check_stays

STREAMS = 4


def migrates(stage: Hosts) -> None:
    """`hallway migrate` has a VM leave its host and come back: streams go on, on rings if they can."""
    with _streaming(stage) as stream:
        for to in (stage.there, stage.here):
            move = stage.migrate(to)
            stream.check_running(f"when its VM moved to {to.name} ({move})")
            stage.wait_carried(to, STREAMS)


def migrates_by_hand(stage: Hosts) -> None:
    """A VM changes its QEMU on its host, by QMP: streams go on, on rings again."""
    stage = stage.by_hand()
    with _streaming(stage) as stream:
        move = hosts.migrate(stage.moves, stage.here)
        stream.check_running(f"when its VM moved ({move})")
        stage.wait_carried(stage.here, STREAMS)


def migration_fails(stage: Hosts) -> None:
    """One that is cancelled, or whose destination is not there or dies, leaves all as it was, on rings."""
    with _streaming(stage) as stream:
        nowhere = call(*stage.hallway("migrate", stage.moves.name, "unix:/run/nowhere"))
        check_stays(nowhere, "QEMU failed to migrate")
        for why in ("cancelled", "QEMU failed to migrate"):
            stream.check_running(f"before it was {why}")
            stage.wait_on_rings(STREAMS)
            stage.interrupt_migration(why)
        stage.wait_on_rings(STREAMS)


@contextlib.contextmanager
def _streaming(stage: Hosts) -> Iterator[Stream]:
    """Run a stream throughout the block, on rings as it begins, and to its end."""
    delta = Delta(*stage.both)
    stream = Stream(stage.stays, stage.moves, conns=STREAMS, stall=60)
    stage.wait_on_rings(STREAMS)
    yield stream
    stream.stop()
    stream.finish(60 * stage.slow)
    stage.check_counters(delta)


TESTS = (migrates, migrates_by_hand, migration_fails)
