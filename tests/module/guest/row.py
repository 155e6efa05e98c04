# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a row of docs/compatibility.md is: a test, and what it declares of itself.

A row's test makes its calls on a link and returns what a program saw of them:
bytes, counts, flags, errors. That must be the same on every carrier. What
becomes of the ring is declared here, and held against what the module says.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A test, the calls or options that it settles, and what becomes of the ring."""

    test: Callable
    calls: str
    demotes: str  # the reason's name; "": all its bytes go by ring
    crosses: bool  # the carrier can change in the middle of it
    carried: bool  # Hallway takes such connections at all

    @property
    def name(self):
        """Return what the test is called."""
        return self.test.__name__

    @property
    def group(self):
        """Return the name of the file with the test."""
        return self.test.__module__.rpartition(".")[2]


@dataclass(frozen=True)
class Difference:
    """A test of what is not the same: it says in words what it finds."""

    test: Callable
    what: str
    tcp: str  # what it has to find on TCP
    ring: str  # and what on a ring

    @property
    def name(self):
        """Return what the test is called."""
        return self.test.__name__


ROWS: list[Row] = []
DIFFERENCES: list[Difference] = []


def row(calls, demotes="", crosses=True, carried=True):
    """Make a test a row."""

    def add(test):
        ROWS.append(Row(test, calls, demotes, crosses, carried))
        return test

    return add


def difference(what, tcp, ring):
    """Make a test a difference."""

    def add(test):
        DIFFERENCES.append(Difference(test, what, tcp, ring))
        return test

    return add


def outcome(call, *words):
    """Return what a call returns, or its error's name."""
    try:
        return call(*words)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
