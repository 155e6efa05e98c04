"""What a scenario is, and what becomes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KERNELS = FIRST, LATER = "6.1", "6.12"
PAUSE = "longest pause of a stream"  # a figure that is compared between scenarios


@dataclass(frozen=True)
class Setting:
    """Where scenarios run: what a stage needs to boot its VMs."""

    kernel: str
    share: Path
    logs: Path
    seed: int


@dataclass
class Outcome:
    """How a scenario fared."""

    wanted: int  # rounds
    done: int = 0
    seconds: float = 0
    ring_bytes: int = 0  # that the VMs sent through rings meanwhile
    figures: dict[str, list[float]] = field(default_factory=dict)  # seconds
    faults: list[str] = field(default_factory=list)

    def rounds(self) -> Iterator[int]:
        """Count the rounds; one that fails is not done."""
        for number in range(self.wanted):
            yield number
            self.done += 1

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Measure the block."""
        begin = time.monotonic()
        yield
        self.note(what, time.monotonic() - begin)

    def note(self, what: str, seconds: float) -> None:
        """Keep a figure of this round."""
        self.figures.setdefault(what, []).append(seconds)


@dataclass(frozen=True)
class Scenario:
    """One row: what is done to VMs under load, so many times.

    `stage` boots what it is played on; scenarios that follow each other on the
    same stage share its VMs. `play` raises if anything is not as it should be.
    The later kernel plays what depends on it.
    """

    key: str
    done: str  # what is done, in the table's words
    rounds: int
    stage: Callable[[Setting], AbstractContextManager[Any]]
    play: Callable[[Any, Outcome], None]
    kernels: tuple[str, ...] = (FIRST,)
