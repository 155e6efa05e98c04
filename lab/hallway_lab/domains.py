# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Measuring between two domains of Xen."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from . import paths, topology, xen
from .measure import Stand


@contextlib.contextmanager
def standing(kernel: str, **options: Any) -> Iterator[Stand]:
    """Boot Xen, dom0 and two domains that serve each other; TCP between them has xen-netfront.

    The options are those of xen.Xen.
    """
    logs = paths.out("vm", "x").parent
    with xen.running(kernel, topology.share_folder(kernel), logs, **options) as machine:
        for domain in machine.domains:
            domain.run("insmod /hallway/hallway.ko")
        stand = Stand(topology.Site(None, list(machine.domains)))
        stand.await_members(120)
        yield stand
