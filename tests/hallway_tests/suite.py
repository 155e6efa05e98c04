"""Tests and how they are run: one line for each, and a reckoning at the end.

A test is a function that raises if something is wrong. Whatever it raises is a
failure, told with where it happened; the next test runs all the same, unless
the failure says that the guests are of no more use.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


class GuestLost(Exception):
    """A guest crashed, hangs, or complained: no more tests with it."""


@dataclass
class Report:
    """What became of a run's tests."""

    label: str
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    only: str = ""

    def wanted(self, name: str) -> bool:
        """Tell whether the person asked for this test."""
        return self.only in name

    def tell(self, ok: bool, name: str, seconds: float, why: str = "") -> None:
        """Count one test and print its line."""
        if ok:
            self.passed += 1
        else:
            self.failed.append(name)
        print(f"{self.label}: {'pass' if ok else 'FAIL'}  {name}  ({seconds:.1f} s)", flush=True)
        if why:
            print("\n".join(f"    {line}" for line in why.splitlines()), flush=True)

    def run(self, name: str, test: Callable[[], None]) -> bool:
        """Run one test on its own."""
        begin = time.monotonic()
        try:
            test()
        except Exception as error:
            self.tell(False, name, time.monotonic() - begin, describe(error))
            if isinstance(error, GuestLost):
                raise
            return False
        self.tell(True, name, time.monotonic() - begin)
        return True

    def summary(self) -> str:
        """Return the last line of a run."""
        return f"{self.passed} passed, {len(self.failed)} failed"


def describe(error: BaseException) -> str:
    """Say what went wrong, and where in the tests."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "/tests/" in f.filename] or frames
    where = " <- ".join(f"{f.name}:{f.lineno}" for f in reversed(ours[-3:]))
    return f"{type(error).__name__}: {error}\n[{where}]"


def check(truth: object, what: str) -> None:
    """Fail the test unless `truth` holds."""
    if not truth:
        raise AssertionError(what)


def wait_for(condition: Callable[[], object], what: str, timeout: float = 20, longest: float = 0.5) -> object:
    """Wait until `condition` holds, and return what it returned; `longest`: between two looks at it."""
    deadline = time.monotonic() + timeout
    pause = min(0.02, longest)
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:.0f} s: {what}")
        time.sleep(pause)
        # whom is asked has something else to do, often with a single CPU
        pause = min(pause * 1.3, longest)
    return value


@contextmanager
def step(text: str) -> Iterator[None]:
    """Tell what goes on where nothing else would be printed for a while."""
    print(f"tests: {text} ...", file=sys.stderr, flush=True)
    yield
