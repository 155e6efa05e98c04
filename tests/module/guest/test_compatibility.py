# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Every row of docs/compatibility.md on every carrier: a program must see the same.

Each row is made on TCP with Hallway off, on rings, and across a switch in both
directions. What the program saw is compared with TCP, and what the row declares
of the ring with what the module says. What the document names as different is
looked at in the same way, and has to be just so.
"""

from __future__ import annotations

import contextlib

import pytest
from genl import Family
from link import RING, TCP, TO_RING, TO_TCP, Link, carrier
from pairs import Delta
from rows import DIFFERENCES, ROWS

RESETS = 2 * len(ROWS)  # rows that close on unread bytes reset on purpose


@pytest.fixture(scope="module")
def module(module_loaded):
    """Return the module's netlink family."""
    family = Family()
    yield family
    family.close()


@pytest.fixture(scope="module", autouse=True)
def delta(module_loaded):
    """Return how the counters moved since the first row."""
    return Delta()


def on(row, name, module):
    """Make a row's calls on one carrier; return what its program saw."""
    with carrier(name, module), contextlib.ExitStack() as stack:
        link = Link(name, stack, module)
        try:
            seen = row.test(link)
        except Exception as error:
            raise AssertionError(f"on carrier {name}: {type(error).__name__}: {error}") from error
        assert seen is not None, "the row saw nothing"
        assert link.crossed == row.crosses, "the row crosses, or does not, other than it declares"
        if name in (RING, TO_RING) and row.carried:
            as_declared(row, link)
    return seen


def as_declared(row, link):
    """Fail unless the ring carried all of the row, or all after it came, or was demoted as declared."""
    assert link.reasons == {row.demotes} - {""}, f"demoted for {link.reasons}"
    if row.demotes:
        return
    moved = link.moved()
    assert moved["tx_bytes_ring"] or link.carrier == TO_RING, "no byte went by ring"
    assert not moved["tx_bytes_tcp"], f"{moved['tx_bytes_tcp']} bytes went over TCP"
    reasons = {c["reason"] for c in link.shown()}
    assert reasons <= {"NONE", "STATE"}, f"reasons {reasons}"


def params():
    """Return the rows as parameters, with the kernels that lack what they need."""
    no_btf = pytest.mark.not_on("debug", "it has no type information (BTF)")
    return [pytest.param(row, id=row.name, marks=[no_btf] * (row.name == "lsm")) for row in ROWS]


@pytest.mark.parametrize("row", params())
def test_row(row, module):
    """Make a row's calls on each carrier and compare."""
    before = module.counters()
    expected = on(row, TCP, module)
    for name in (RING, TO_RING, TO_TCP) if row.crosses else (RING,):
        seen = on(row, name, module)
        assert seen == expected, f"carrier {name} shows\n{seen!r}, not TCP's\n{expected!r}"
    if not row.carried:
        attached = module.counters()["attached"] - before["attached"]
        assert not attached, f"{attached} sockets were attached"


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda difference: difference.name)
def test_difference(difference, module):
    """Find on both carriers what the difference declares of them."""
    for name, declared in ((TCP, difference.tcp), (RING, difference.ring)):
        with carrier(name, module), contextlib.ExitStack() as stack:
            found = difference.test(Link(name, stack, module))
        assert found == declared, f"on carrier {name}: {found!r}, not {declared!r}"


def test_nothing_odd(delta):
    """No row made the module find anything corrupt, or lost, or asleep for ever."""
    delta.expect(resets=RESETS)
