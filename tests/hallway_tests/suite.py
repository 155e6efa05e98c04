# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What each test may use: failures, and waiting without sleeping for long."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

# Other guests keep the machine busy. Only a test that fails waits that much longer.
PATIENCE = 3


class GuestLost(Exception):
    """A guest crashed, hangs, or complained: the next test gets another."""


def check(truth: object, what: str) -> None:
    """Fail the test unless `truth` holds."""
    if not truth:
        raise AssertionError(what)


def wait_for(condition: Callable[[], object], what: str, timeout: float = 20, longest: float = 0.5) -> object:
    """Wait until `condition` holds, and return what it returned; `longest`: between two looks at it.

    `timeout`: seconds on a machine that is not busy.
    """
    timeout *= PATIENCE
    deadline = time.monotonic() + timeout
    pause = min(0.02, longest)
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:.0f} s: {what}")
        time.sleep(pause)
        # The guest that is asked has other work, often for a single CPU.
        pause = min(pause * 1.3, longest)
    return value


@contextlib.contextmanager
def repeated(step: Callable[[], object], pause: float = 0) -> Iterator[None]:
    """In the block, call `step` over and over in a thread, `pause` seconds apart."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(pause):
            step()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
