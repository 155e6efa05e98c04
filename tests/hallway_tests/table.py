# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A region's member table, as each of its members can write it: `abi/hallway/region.h`."""

from __future__ import annotations

import contextlib
import mmap
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path

from hallway_lab.vm import VM

from .suite import repeated

KEY, SLOTS, CHANGE = 40, 56, 60  # in the header
MEMBERS, MEMBER = 128, 128  # where the table begins, bytes of an entry
GENERATION, STATE = 16, 20  # in an entry, behind the UUID


@contextlib.contextmanager
def mapped(region: Path) -> Iterator[mmap.mmap]:
    """Map a region's memory."""
    with open(region, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        yield memory


def find_place(memory: mmap.mmap, vm: VM) -> int:
    """Return where the entry of a VM is."""
    (slots,) = struct.unpack_from("<I", memory, SLOTS)
    places = [MEMBERS + MEMBER * slot for slot in range(slots)]
    return next(at for at in places if memory[at : at + 16] == uuid.UUID(vm.uuid).bytes)


def overwrite_place(region: Path, vm: VM) -> None:
    """Say that a VM is not there, which makes it leave and join again; hallwayd writes the entry again."""
    with mapped(region) as memory:
        struct.pack_into("<I", memory, find_place(memory, vm) + STATE, 0)
        count_change(memory)


def count_change(memory: mmap.mmap) -> None:
    """Count a change of the table, so that its readers look."""
    (change,) = struct.unpack_from("<I", memory, CHANGE)
    struct.pack_into("<I", memory, CHANGE, (change + 1) % (1 << 32))


@contextlib.contextmanager
def claiming(region: Path, claimant: VM, claimed: VM) -> Iterator[None]:
    """Have a member's entry say, over and over, that it is another VM."""
    with mapped(region) as memory:
        place = find_place(memory, claimant)

        def write() -> None:
            memory[place : place + 16] = uuid.UUID(claimed.uuid).bytes

        with repeated(write):
            yield


@contextlib.contextmanager
def overwriting_key(region: Path) -> Iterator[None]:
    """Have the region say, over and over, that it has a key of this member's choice."""
    with mapped(region) as memory:

        def write() -> None:
            memory[KEY : KEY + 16] = b"chosen by a peer"

        with repeated(write):
            yield


@contextlib.contextmanager
def overwriting_generations(region: Path) -> Iterator[None]:
    """Have the table say, over and over, that all places have another generation.

    A VM that has joined before it was overwritten loses its place, and joins again.
    """
    with mapped(region) as memory:
        (slots,) = struct.unpack_from("<I", memory, SLOTS)

        def write() -> None:
            for slot in range(1, slots):
                struct.pack_into("<I", memory, MEMBERS + MEMBER * slot + GENERATION, 4711)
            count_change(memory)

        with repeated(write):
            yield
