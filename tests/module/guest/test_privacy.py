# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What the module says to users that are no administrators."""

from __future__ import annotations

import contextlib
import os

from genl import Family
from pairs import connect, pair, shown, wait_for

ENOUGH = 200  # connections; a dump of them is longer than one answer
DUMPS, DUMPS_MAX = 40, 32  # that users begin, and may


def _as_nobody(ask):
    """Return what a process of another user gets."""
    here, there = os.pipe()
    child = os.fork()
    if not child:
        os.setgid(65534)
        os.setuid(65534)
        with os.fdopen(there, "w") as pipe:
            pipe.write(repr(ask(Family())))
        os._exit(0)
    os.close(there)
    with os.fdopen(here) as pipe:
        said = pipe.read()
    assert os.waitpid(child, 0)[1] == 0, "the other user's process failed"
    return said


def test_members_private():
    """UUIDs and names of members, and of peers, are for administrators; addresses are for all."""
    with pair():
        (own,) = Family().member_fields()
        assert {"A_UUID", "A_NAME", "A_ADDRESS"} <= own, own
        said = _as_nobody(lambda family: sorted(*family.member_fields()))
        assert "A_ADDRESS" in said, said
        assert "A_UUID" not in said and "A_NAME" not in said, said
        assert all(one["peer"] for one in Family().connections()), "a peer has no name"
        said = _as_nobody(lambda family: {one["peer"] for one in family.connections()})
        assert said == repr({b""}), said


def _begin_dumps(family):
    """Begin dumps, and read none to its end; return how many the module takes, and how many after that."""
    with contextlib.ExitStack() as stack:
        families = [stack.enter_context(contextlib.closing(Family())) for _ in range(DUMPS)]
        taken = sum(one.begin_connections() for one in families)
    return taken, family.begin_connections()


def test_unread_dumps():
    """Dumps that a user does not read keep some memory at most, and nothing from administrators."""
    with contextlib.ExitStack() as stack:
        for _ in range(ENOUGH):
            for end in (ends := connect()):
                stack.enter_context(end)
        wait_for(lambda: len(shown(*ends)) == 2, "both ends are attached")
        own = stack.enter_context(contextlib.closing(Family()))
        assert _as_nobody(_begin_dumps) == repr((DUMPS_MAX, True))
        assert all(Family().begin_connections() for _ in range(DUMPS)), "an administrator has to wait"
        assert len(own.connections()) >= 2 * ENOUGH
