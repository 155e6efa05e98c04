# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The rows of the demo's table between two domains of Xen."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from hallway_lab import domains
from hallway_lab.measure import Stand

from .rows import Programs


class Domains(Programs):
    """The same programs between two domains of Xen: xen-netfront beside Hallway."""

    @contextlib.contextmanager
    def standing(self, kernel: str) -> Iterator[Stand]:
        """Boot Xen, dom0 and the domains."""
        with domains.standing(kernel) as self.stand:
            yield self.stand
