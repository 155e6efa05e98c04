# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A kernel as the lab uses it: what to boot, and what to build modules against."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Kernel:
    """A kernel ready to boot and to build modules against.

    `vmlinuz` and `modules_dir` are None where only headers are offered.
    `unpacked` is what QEMU loads in place of `vmlinuz`, if it boots sooner.
    `build_args` are extra words for every `make` against `build_dir`; `machine`
    is the QEMU machine that it boots on unless a VM asks for another.
    """

    name: str
    version: str
    vmlinuz: Path | None
    modules_dir: Path | None
    build_dir: Path
    build_args: tuple[str, ...] = ()
    machine: str = "pc"
    unpacked: Path | None = None

    @property
    def boot(self) -> Path:
        """Return the file that QEMU loads."""
        found = self.unpacked or self.vmlinuz
        assert found, f"kernel {self.name} has only headers: it cannot boot"
        return found
