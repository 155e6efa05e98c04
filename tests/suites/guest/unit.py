# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs modules of unittest: CPython's own tests, and Twisted's.

    unit.py cpython|plain MODULE...

CPython's tests need what its own runner sets up: resources and time limits,
which are long here: an emulated machine is slow.
"""

from __future__ import annotations

import os
import tempfile
import traceback
import unittest
from collections.abc import Iterator

import record

RESOURCES = ["cpu", "network", "subprocess"]  # of CPython's test.support
SLOWER = 6


class Result(unittest.TestResult):
    """Writes down each test; the first thing that went wrong in it counts."""

    def __init__(self, book: record.Book) -> None:
        super().__init__()
        self._book = book
        self._outcome, self._why = record.PASS, ""

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: D102
        super().startTest(test)
        self._outcome, self._why = record.PASS, ""
        self._book.begin(test.id())

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: D102
        super().stopTest(test)
        self._book.end(test.id(), self._outcome, self._why)

    def _note(self, test: unittest.TestCase, outcome: str, why: str) -> None:
        if not isinstance(test, unittest.TestCase):  # a module or a class as a whole
            self._book.end(str(test), outcome, why)
        elif self._outcome == record.PASS or outcome != record.SKIP:
            self._outcome, self._why = outcome, why

    def addError(self, test, error):  # noqa: D102
        self._note(test, record.ERROR, _explain(error))

    def addFailure(self, test, error):  # noqa: D102
        self._note(test, record.FAIL, _explain(error))

    def addSubTest(self, test, subtest, error):  # noqa: D102
        if error:
            outcome = record.FAIL if issubclass(error[0], test.failureException) else record.ERROR
            self._note(test, outcome, f"{subtest}\n{_explain(error)}")

    def addSkip(self, test, reason):  # noqa: D102
        self._note(test, record.SKIP, str(reason))

    def addExpectedFailure(self, test, error):  # noqa: D102
        self._note(test, "expected failure", "")

    def addUnexpectedSuccess(self, test):  # noqa: D102
        self._note(test, "unexpected success", "")


def _explain(error: tuple) -> str:
    return "".join(traceback.format_exception(*error))


def _each(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            yield from _each(one)
        else:
            yield one


def _cpython() -> None:
    from test import support

    support.use_resources = RESOURCES
    for name in ("LOOPBACK_TIMEOUT", "SHORT_TIMEOUT"):
        setattr(support, name, getattr(support, name) * SLOWER)


def worker(book: record.Book, words: list[str]) -> int:
    """Run each module's tests."""
    kind, *names = words
    if kind == "cpython":
        _cpython()
    os.chdir(tempfile.mkdtemp())
    for name in names:
        try:
            found = unittest.defaultTestLoader.loadTestsFromName(name)
        except unittest.SkipTest as reason:
            book.end(name, record.SKIP, str(reason))
            continue
        wanted = [test for test in _each(found) if book.wants(test.id())]
        unittest.TestSuite(wanted).run(Result(book))
    return 0


if __name__ == "__main__":
    record.main(worker)
