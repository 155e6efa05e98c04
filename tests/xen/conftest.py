# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The domains that the tests of this folder share: Xen, dom0 with hallwayd, and two of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hallway_lab import emulator, xen
from hallway_lab.topology import Site
from hallway_tests.guests import settle_in
from hallway_tests.pair import Pair

Boot = Callable[[Callable[[Path], AbstractContextManager[Any]]], Any]
# One emulated machine runs Xen, dom0 and both domains.
TIMEOUT = 1500


@dataclass
class Domains(Pair):
    """Two domains, with what tests do to them and ask of them."""

    xen: xen.Xen

    @property
    def domains(self) -> list[xen.Domain]:
        """Both of them, with what can be done to a domain alone."""
        return self.xen.domains


@pytest.fixture
def pair(site: Boot, kernel: str, share: Path, slow: float) -> Domains:
    """Return the two domains."""
    return site(lambda logs: _booted(kernel, share, logs, slow))


@contextlib.contextmanager
def _booted(kernel: str, share: Path, logs: Path, slow: float) -> Iterator[Domains]:
    with xen.running(kernel, share, logs) as machine:
        a, b = machine.domains
        for domain in (a, b):
            settle_in(domain)
        # dom0 shares the CPUs of the emulated machine with both.
        yield Domains(Site(None, [machine, a, b]), a, b, kernel, 2 * slow, logs, share, machine)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say what tests of this folder need."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("xen"))
            item.add_marker(pytest.mark.timeout(TIMEOUT))
            item.add_marker(pytest.mark.needs("host", f"qemu {emulator.FAST}", "hallway_lab.xen:prepare"))
