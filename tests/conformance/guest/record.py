"""What became of each test, written down as it happens: one line of JSON each.

A test is written down when it begins and when it ends, so that one which hangs,
or kills its whole process, is known by name: it gets the outcome "died", and a
new process goes on with those that are left.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

PASS, FAIL, ERROR, SKIP, DIED = "pass", "fail", "error", "skip", "died"
WORDS = 4000  # of a failure's explanation are kept
WORKER = "CONFORMANCE_WORKER"


class Book:
    """The file of results, and which tests are wanted."""

    def __init__(self, path: str, only: str, limit: float) -> None:
        self._path = path
        self._limit = limit
        self._only = set(_lines(only)) if only else None
        self._told = {line["test"] for line in read(path)}

    def wants(self, test: str) -> bool:
        """Tell whether a test is to be run: asked for, and not done before."""
        return test not in self._told and (self._only is None or test in self._only)

    def wants_part(self, beginning: str) -> bool:
        """Tell whether a test whose name begins so is asked for by name."""
        return any(test.startswith(beginning) for test in self._only or ())

    def begin(self, test: str) -> None:
        """Note that a test begins; one that takes too long ends the process."""
        self._write(test=test)
        faulthandler.dump_traceback_later(self._limit, exit=True)

    def end(self, test: str, outcome: str, why: str = "") -> None:
        """Note how a test ended."""
        faulthandler.cancel_dump_traceback_later()
        self._write(test=test, outcome=outcome, why=why[-WORDS:])

    def _write(self, **line: str) -> None:
        self._told.add(line["test"])
        with open(self._path, "a") as file:
            file.write(json.dumps({**line, "at": round(time.monotonic(), 2)}) + "\n")


def read(path: str) -> list[dict[str, Any]]:
    """Return all lines of a file of results."""
    return [json.loads(line) for line in _lines(path)]


def _lines(path: str) -> list[str]:
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return file.read().splitlines()


def unfinished(lines: Iterable[dict[str, Any]]) -> str | None:
    """Return the test that began and did not end."""
    last = None
    for line in lines:
        last = None if "outcome" in line else line["test"]
    return last


def main(worker: Callable[[Book, list[str]], int]) -> None:
    """Run `worker` in processes of its own until each test has an outcome."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--results", required=True)
    parser.add_argument("--only", default="", help="file with the tests to run, one a line")
    parser.add_argument("--limit", type=float, default=60, help="seconds for one test")
    parser.add_argument("what", nargs="+")
    options = parser.parse_args()
    if WORKER in os.environ:
        sys.exit(worker(Book(options.results, options.only, options.limit), options.what))
    sys.exit(_supervise(options.results))


def _supervise(results: str) -> int:
    while True:
        log = f"{results}.log"
        with open(log, "ab") as out:
            begin = out.tell()
            child = subprocess.Popen(
                [sys.executable, "-B", *sys.argv],
                env={**os.environ, WORKER: "1"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
            code = child.wait()
        # What a test left behind must not meet the next one.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        test = unfinished(read(results))
        if test is None:
            return code
        with open(log, "rb") as said:
            said.seek(begin)
            why = said.read().decode(errors="replace")
        Book(results, "", 0).end(test, DIED, f"code {code}\n{why}")
