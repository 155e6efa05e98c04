# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A pair of domains of Xen: dom0 with hallwayd, and two domains with the module."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hallway_lab import emulator, xen
from hallway_lab.topology import Site

from .guests import connections, settle_in
from .pair import Pair

SLOWER = 2  # dom0 shares the CPUs of that machine with both domains
BOOT = 900  # seconds that the first test may take longer


@dataclass
class Domains(Pair):
    """Two domains, with what tests do to them and ask of them."""

    xen: xen.Xen

    @property
    def domains(self) -> list[xen.Domain]:
        """Both of them, with what can be done to a domain alone."""
        return self.xen.domains

    def channels(self) -> list[int]:
        """Return how many connections of each domain have a ring: dom0 has no count of channels."""
        return [sum(_has_ring(c) for c in connections(vm)) for vm in self.both]


def _has_ring(connection: dict[str, Any]) -> bool:
    return bool(connection["tx"]["carrier"] % 2 or connection["rx"]["carrier"] % 2)


@contextlib.contextmanager
def booted(kernel: str, share: Path, logs: Path, slow: float, **options: Any) -> Iterator[Domains]:
    """Run Xen, dom0 and two domains for the length of the block; the options are those of xen.Xen."""
    with xen.running(kernel, share, logs, **options) as machine:
        a, b = machine.domains
        for domain in (a, b):
            settle_in(domain)
        yield Domains(Site(None, [machine, a, b]), a, b, kernel, SLOWER * slow, logs, share, machine)


def move_onto_xen(item: pytest.Item, least: float) -> None:
    """Have a test run between domains, with what these need, and with more time, `least` seconds at least.

    All with domains of one image, which the test's mark names, share an emulated machine.
    """
    mark = item.get_closest_marker("xen")
    image = mark.kwargs.get("image") if mark else None
    item.add_marker(pytest.mark.xdist_group(f"xen-{image}" if image else "xen"), append=False)
    limit = item.get_closest_marker("timeout")
    seconds = max(least, limit.args[0]) if limit else least
    item.add_marker(pytest.mark.timeout(BOOT + SLOWER * seconds), append=False)
    item.add_marker(pytest.mark.needs("host", f"qemu {emulator.FAST}", "hallway_lab.xen:prepare"))
