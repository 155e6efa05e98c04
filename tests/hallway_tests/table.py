"""A region's member table, as each of its members can write it: `abi/hallway/region.h`."""

from __future__ import annotations

import contextlib
import mmap
import struct
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

from hallway_lab.vm import VM

SLOTS, CHANGE = 56, 60  # in the header
MEMBERS, MEMBER = 128, 128  # where the table begins, bytes of an entry
STATE = 20  # in an entry, whose UUID comes first


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
        (change,) = struct.unpack_from("<I", memory, CHANGE)
        struct.pack_into("<I", memory, CHANGE, (change + 1) % (1 << 32))


@contextlib.contextmanager
def claiming(region: Path, claimant: VM, claimed: VM) -> Iterator[None]:
    """Have a member's entry say, over and over, that it is another VM."""
    done = threading.Event()
    with mapped(region) as memory:
        place = find_place(memory, claimant)

        def write() -> None:
            while not done.is_set():
                memory[place : place + 16] = uuid.UUID(claimed.uuid).bytes

        writer = threading.Thread(target=write)
        writer.start()
        try:
            yield
        finally:
            done.set()
            writer.join()
