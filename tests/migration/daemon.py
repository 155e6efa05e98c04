"""hallwayd is killed, and started again."""

from __future__ import annotations

import random
import time

from hallway_tests.guests import Stream, counters, rmmod, wait_members
from hallway_tests.suite import check, wait_for

from .scenario import Outcome, Scenario
from .stage import AT_ONCE, Stage, pair

ENOUGH = 500_000  # bytes through rings that show that they are at work


def killed(stage: Stage, outcome: Outcome) -> None:
    """The daemon is killed at any moment; rings go on, and the next daemon finds all as it was."""
    site, a = stage.pair.site, stage.pair.a
    with stage.bystander(outcome) as stream:
        before = _members(stage)
        for _ in outcome.rounds():
            time.sleep(random.random())  # the moment is the point
            site.daemon.kill(9)
            moved = counters(a)["tx_bytes_ring"]
            wait_for(lambda: counters(a)["tx_bytes_ring"] > moved + ENOUGH, "rings go on without it")  # noqa: B023
            with outcome.timed("back after"):
                site.daemon.start()
            stream.check_running("with the daemon")
            check(_members(stage) == before, f"members are {_members(stage)}, not {before}")
        # Joining works as it did, for who was there and for who comes.
        with stage.victim() as third:
            Stream(third, a, conns=2, seconds=1).finish()
            check(counters(third)["tx_promoted"] >= 2, "a VM that came later is not promoted")


def killed_while_joining(stage: Stage, outcome: Outcome) -> None:
    """The daemon is killed while a guest leaves or joins; the next one answers, and streams are promoted."""
    site, (a, b) = stage.pair.site, stage.pair.both
    with stage.bystander(outcome), stage.victim() as third:
        for number in outcome.rounds():
            rmmod(third)
            load = third.spawn(f"insmod /hallway/hallway.ko {_words()}")
            time.sleep(random.random() / 10)  # the moment is the point
            site.daemon.kill(9)
            site.daemon.start()
            load.wait()
            with outcome.timed("joined after"):
                wait_members(a, b, third)
            Stream(third, a, conns=2, seconds=0.5).finish()
            check(counters(third)["tx_promoted"] >= 2, f"nothing is promoted in round {number}")


def _words() -> str:
    return " ".join(f"{name}={value}" for name, value in AT_ONCE.items())


def _members(stage: Stage) -> list[tuple[str, int, str]]:
    shown = stage.pair.site.daemon.status()["regions"][0]["members"]
    return [(m["uuid"], m["generation"], m["liveness"]) for m in shown if not m["host"]]


SCENARIOS = (
    Scenario("daemon-killed", "kill -9 of hallwayd, and its restart", 20, pair, killed),
    Scenario(
        "daemon-killed-joining",
        "kill -9 of hallwayd while a guest joins",
        20,
        pair,
        killed_while_joining,
    ),
)
