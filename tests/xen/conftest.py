# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The domains that the tests of this folder share: Xen, dom0 with hallwayd, and two of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from hallway_tests import domains
from hallway_tests.domains import Domains

Boot = Callable[[Callable[[Path], AbstractContextManager[Any]]], Any]


@pytest.fixture
def pair(request: pytest.FixtureRequest, site: Boot, kernel: str, share: Path, slow: float) -> Domains:
    """Return the two domains."""
    kind = request.config.option.xen or "pv"
    return site(lambda logs: domains.booted(kernel, share, logs, slow, kind=kind))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have the tests of this folder run between domains, whatever the command line says."""
    if not config.option.xen:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                domains.move_onto_xen(item, float(config.getini("timeout")))
