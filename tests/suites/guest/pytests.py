# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs modules of pytest: trio's tests.

pytests.py MODULE...
"""

from __future__ import annotations

import os
import tempfile

import pytest
import record

FINE = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


class Plugin:
    """Writes down each test; the first of its parts that went wrong counts."""

    def __init__(self, book: record.Book) -> None:
        self._book = book
        self._outcome, self._why = record.PASS, ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out tests that are not wanted, or done."""
        items[:] = [item for item in items if self._book.wants(item.nodeid)]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self._outcome, self._why = record.PASS, ""
        self._book.begin(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A part of it ended: set-up, call or tear-down."""
        if self._outcome != record.PASS or report.passed:
            return
        if hasattr(report, "wasxfail"):
            self._outcome = "expected failure"
        elif report.skipped:
            self._outcome = record.SKIP
        else:
            self._outcome = record.FAIL if report.when == "call" else record.ERROR
        self._why = report.longreprtext

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """It is over."""
        self._book.end(nodeid, self._outcome, self._why)


def worker(book: record.Book, modules: list[str]) -> int:
    """Run each module's tests; failed tests are no failure of this program."""
    os.chdir(tempfile.mkdtemp())
    words = ["-p", "no:faulthandler", "-p", "no:cacheprovider", "-p", "trio._tests.pytest_plugin"]
    words += [f"--rootdir={os.environ['PYTHONPATH']}"]  # with another root, names would lack their modules
    code = pytest.main([*words, "--run-slow", "--pyargs", *modules], plugins=[Plugin(book)])
    return 0 if code in FINE else code


if __name__ == "__main__":
    record.main(worker)
