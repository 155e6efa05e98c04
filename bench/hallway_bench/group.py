# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Scenarios that share VMs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from hallway_lab import measure, programs
from hallway_lab.sample import Row, Samples


class Group(ABC):
    """Scenarios that share VMs; `kind` names the table that their rows stand in."""

    kind = "bench"
    kernel: str | None = None  # if there is but one
    runner: str | None = None  # if it is not QEMU

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds
        self._servers = programs.Servers()

    def prepare(self, kernel: str) -> None:  # noqa: B027 (most need nothing)
        """Get ready what these need and others do not, while there is a network."""

    @abstractmethod
    def standing(self, kernel: str) -> AbstractContextManager[Any]:
        """Boot the VMs, and give the stand that switches them."""

    @abstractmethod
    def rows(self) -> list[Row]:
        """All scenarios, in the report's order."""

    def facts(self, stand: Any) -> dict[str, Any]:
        """Return what figures of such a stand were measured on."""
        return measure.facts(stand.client)

    def is_met(self, samples: Samples, everything: Sequence[Samples]) -> bool:
        """Tell whether a row has what is promised, by its samples and those of the others."""
        return samples.ratio is not None and samples.ratio >= samples.row.target
