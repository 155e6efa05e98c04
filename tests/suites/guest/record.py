# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The outcome of each test, written down at once: one line of JSON each.

A test is written down when it begins and when it ends. So a test that hangs, or
kills its whole process, is known by name: its outcome is "died", and a new
process goes on with the tests that are left.
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
WORDS = 4000  # characters of a failure's explanation are kept
WORKER = "CONFORMANCE_WORKER"


class Book:
    """The file of results, and the tests that are wanted."""

    def __init__(self, path: str, only: str, limit: float) -> None:
        self._path = path
        self._limit = limit
        self._only = set(_lines(only)) if only else None
        self._known = {line["test"] for line in read(path)}

    def wants(self, test: str) -> bool:
        """Tell whether to run a test: it is wanted, and not done yet."""
        return test not in self._known and (self._only is None or test in self._only)

    def wants_part(self, beginning: str) -> bool:
        """Tell whether a test is wanted whose name begins so."""
        return any(test.startswith(beginning) for test in self._only or ())

    def begin(self, test: str) -> None:
        """Write down that a test begins; if it takes too long, the process ends."""
        self._write(test=test)
        faulthandler.dump_traceback_later(self._limit, exit=True)

    def end(self, test: str, outcome: str, why: str = "") -> None:
        """Write down how a test ended."""
        faulthandler.cancel_dump_traceback_later()
        self._write(test=test, outcome=outcome, why=why[-WORDS:])

    def _write(self, **line: str) -> None:
        self._known.add(line["test"])
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
        # Processes that a test left behind must not disturb the next one.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        test = unfinished(read(results))
        if test is None:
            return code
        with open(log, "rb") as said:
            said.seek(begin)
            why = said.read().decode(errors="replace")
        Book(results, "", 0).end(test, DIED, f"code {code}\n{why}")
