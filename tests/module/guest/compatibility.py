"""Every row of docs/compatibility.md on every carrier: a program must see the same.

Each row is made on TCP with Hallway off, on rings, and across a switch in both
directions. What the program saw is compared with TCP, and what the row declares
of the ring with what the module says. What the document names as different is
looked at in the same way, and has to be just so.
"""

from __future__ import annotations

import contextlib
import functools

from genl import Family
from link import RING, TCP, TO_RING, TO_TCP, Link, carrier
from pairs import Delta, check, main
from rows import DIFFERENCES, ROWS


def on(row, name, module):
    """Make a row's calls on one carrier; return what its program saw."""
    with carrier(name, module), contextlib.ExitStack() as stack:
        link = Link(name, stack, module)
        try:
            seen = row.test(link)
        except Exception as error:
            raise AssertionError(f"on carrier {name}: {type(error).__name__}: {error}") from error
        check(seen is not None, "the row saw nothing")
        check(link.crossed == row.crosses, "the row crosses, or does not, other than it declares")
        if name in (RING, TO_RING) and row.carried:
            as_declared(row, link)
    return seen


def as_declared(row, link):
    """Fail unless the ring carried all of the row, or all after it came, or was demoted as declared."""
    check(link.reasons == {row.demotes} - {""}, f"demoted for {link.reasons}")
    if row.demotes:
        return
    moved = link.moved()
    check(moved["tx_bytes_ring"] or link.carrier == TO_RING, "no byte went by ring")
    check(not moved["tx_bytes_tcp"], f"{moved['tx_bytes_tcp']} bytes went over TCP")
    reasons = {c["reason"] for c in link.shown()}
    check(reasons <= {"NONE", "STATE"}, f"reasons {reasons}")


def compare(row, module):
    """Make a row's calls on each carrier and compare."""
    before = module.counters()
    expected = on(row, TCP, module)
    for name in (RING, TO_RING, TO_TCP) if row.crosses else (RING,):
        seen = on(row, name, module)
        check(seen == expected, f"carrier {name} shows\n{seen!r}, not TCP's\n{expected!r}")
    if not row.carried:
        attached = module.counters()["attached"] - before["attached"]
        check(not attached, f"{attached} sockets were attached")


def told_apart(difference, module):
    """Find on both carriers what the difference declares of them."""
    for name, declared in ((TCP, difference.tcp), (RING, difference.ring)):
        with carrier(name, module), contextlib.ExitStack() as stack:
            found = difference.test(Link(name, stack, module))
        check(found == declared, f"on carrier {name}: {found!r}, not {declared!r}")


def nothing_odd(delta):
    """No row made the module find anything corrupt, or lost, or asleep for ever."""
    delta.expect(resets=RESETS)


RESETS = 2 * len(ROWS)  # rows that close on unread bytes reset on purpose

if __name__ == "__main__":
    before, module = Delta(), Family()
    main([(row.name, functools.partial(compare, row, module)) for row in ROWS])
    main([(one.name, functools.partial(told_apart, one, module)) for one in DIFFERENCES])
    module.close()
    main([("rows_leave_nothing_odd", functools.partial(nothing_odd, before))])
