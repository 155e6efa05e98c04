"""What the module says to users that are no administrators."""

from __future__ import annotations

import os

from genl import Family
from pairs import pair


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
