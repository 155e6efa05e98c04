# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A connection as the rows of docs/compatibility.md get it, and how it changes its carrier under them.

A row makes the same calls on each of four connections:

  tcp      Hallway is off: the native calls, TCP alone
  ring     on rings both ways from before the row's first call
  to_ring  on TCP; `cross()` moves it onto rings
  to_tcp   on rings; `cross()` switches Hallway off, which moves it to TCP

What `cross()` does moves no byte and returns when both directions have moved.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections import Counter

from native import libc
from pairs import connect, ports_of, take, wait_for

TCP, RING, TO_RING, TO_TCP = CARRIERS = ("tcp", "ring", "to_ring", "to_tcp")
NEVER = 2**31 - 1  # bytes, and milliseconds, that no connection here reaches
BAD_ADDRESS = ctypes.c_void_p(8)
DONTWAIT_NOSIGNAL = 0x4040


def earn_after(amount):
    """Let connections be promoted once they have moved these bytes or lived these milliseconds."""
    for name in ("promote_bytes", "promote_ms"):
        with open(f"/sys/module/hallway/parameters/{name}", "w") as file:
            file.write(str(amount))


@contextlib.contextmanager
def carrier(name, module):
    """Within the block connections start as rows on this carrier want them."""
    if name == TCP:
        module.switch(False)
    earn_after(NEVER if name == TO_RING else 0)
    try:
        yield
    finally:
        earn_after(0)
        if name in (TCP, TO_TCP):
            module.switch(True)


def _ask(*socks):
    """Ask for rings by sends that fail, since their bytes can't be read."""
    for sock in socks:
        libc.send(sock.fileno(), BAD_ADDRESS, 1, DONTWAIT_NOSIGNAL)


class Link:
    """What a row gets: connections on its carrier, and the moment when they cross."""

    def __init__(self, name, stack, module):
        self.carrier, self._stack, self._module = name, stack, module
        self._pairs, self._ports = [], set()
        self.crossed = False
        self.reasons: set[str] = set()
        self._start, self._ended, self._setup = None, None, Counter()

    def own(self, thing):
        """Close this at the end of the row."""
        return self._stack.enter_context(thing)

    def pair(self, kind="v4"):
        """Return both ends of a connection."""
        return self.adopt(*connect(kind))

    def adopt(self, a, b):
        """Bring a row's own connection to where it starts, whatever has moved on it before."""
        self.own(a)
        self.own(b)
        before = self._module.counters()
        # The first calls tell the module that no other call is inside.
        for source, sink in ((a, b), (b, a)):
            source.sendall(b"knock")
            assert take(sink, 5) == b"knock", "other bytes came than were sent"
        self._pairs.append((a, b))
        self._ports |= ports_of(a, b)
        if {TCP: False, RING: True, TO_RING: self.crossed, TO_TCP: not self.crossed}[self.carrier]:
            self._promote(a, b)
        after = self._module.counters()
        if self._start:
            self._setup.update({name: after[name] - before[name] for name in after})
        self._start = self._start or after
        return a, b

    def cross(self):
        """Move all connections to the other carrier, where the row's carrier says so."""
        first, self.crossed = not self.crossed, True
        assert self._pairs, "there is nothing to cross with"
        if self.carrier == TO_RING:
            for a, b in self._pairs:
                self._promote(a, b)
            if first:  # what went over TCP till here had to
                self._start, self._setup = self._module.counters(), Counter()
        if self.carrier == TO_TCP:
            self._module.switch(False)
            # On a busy machine detaching may outlast the patience of that call.
            wait_for(lambda: not self._module.connections(), "no connection is attached")

    def demoted(self, reason):
        """On the ring: wait until this reason has demoted a direction of the row's."""
        if self.carrier != RING:
            return
        wait_for(lambda: reason in {c["reason"] for c in self.shown()}, f"the reason is {reason}")
        assert self.ringing() < 2 * len(self._pairs), "every direction is still on a ring"
        self.reasons.add(reason)

    def refused(self, reason):
        """On the ring: wait until this reason keeps all directions of the row's on TCP."""
        if self.carrier != RING:
            return

        def kept():
            for a, b in self._pairs:
                _ask(a, b)
            return not self.ringing() and {c["reason"] for c in self.shown()} == {reason}

        wait_for(kept, f"all directions are on TCP, for {reason}")
        self.reasons.add(reason)

    def _promote(self, a, b):
        """Wait until both directions are on rings."""
        there, back = ports = a.getsockname()[1], b.getsockname()[1]

        def promoted():
            _ask(a, b)
            ends = [c for c in self.shown() if (c["port"], c["peer_port"]) in (ports, (back, there))]
            return len(ends) == len({there, back}) and all(c["sends"] % 2 for c in ends)

        earn_after(0)
        wait_for(promoted, "both directions are on rings")
        if self.carrier == TO_RING:
            earn_after(NEVER)

    def shown(self):
        """Return what the module says of the row's ends that are attached."""
        return [c for c in self._module.connections() if c["port"] in self._ports]

    def ringing(self):
        """Return how many of the row's directions go by ring."""
        return sum(c["sends"] % 2 for c in self.shown())

    def ends(self):
        """The row ends its connections from here on: what goes by which carrier is counted till now."""
        self._ended = self._module.counters()

    def moved(self):
        """Return what the counters moved by since the row's connections were there, or on rings."""
        now = self._ended or self._module.counters()
        return {name: now[name] - self._start[name] - self._setup[name] for name in now}
