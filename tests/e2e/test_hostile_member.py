# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A member writes where it must not: the host does it in the member's place, in the region's file.

All members share the region's memory. The worst that one of them can do is to write
anything into mailboxes and rings of others, at any moment. Streams may break by
that, or bring other bytes, for these are in that memory, too; the kernels may not.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
from hallway_tests.guests import AT_ONCE, Delta, Stream, connections, rmmod, wait_listening
from hallway_tests.pair import Pair
from hallway_tests.streams import CALM
from hallway_tests.suite import repeated, wait_for

pytestmark = [
    pytest.mark.xdist_group("e2e-peers"),
    pytest.mark.not_on("6.12", "the rings' own code hardly depends on the kernel"),
]

HEADER = 12288  # HALLWAY_HEADER_SIZE in abi/hallway/region.h; it is the daemon's
TABLE = 128  # bytes before the member table in the header, and of each of its entries
SLICE_OFFSET = 24  # in an entry
MAILBOX = 12288  # bytes of a mailbox; the first one is behind a slice's first page
PENDING = 512  # in a mailbox
TRIPS = 5  # round trips
PAGE = 4096
HEAD = 256  # bytes at the beginning of a page, where indexes of rings are
ENOUGH = 10  # rings that must be found corrupt
ROUNDS = 10  # at most, until they are


class _Region:
    """The region's file: its memory, and those of its pages that were ever used."""

    def __init__(self, file: BinaryIO, memory: mmap.mmap) -> None:
        self.memory = memory
        self._file = file

    def heads(self) -> dict[int, bytes]:
        """Return the first bytes of each used page behind the header, by the page's position."""
        return {page: self.memory[page : page + HEAD] for page in self._pages()}

    def _pages(self) -> Iterator[int]:
        """Yield the positions of all pages that are no hole of the file."""
        begin = HEADER
        with contextlib.suppress(OSError):  # ENXIO: only a hole is left
            while True:
                begin = os.lseek(self._file.fileno(), begin, os.SEEK_DATA)
                end = os.lseek(self._file.fileno(), begin, os.SEEK_HOLE)
                yield from range(begin, end, PAGE)
                begin = end


@contextlib.contextmanager
def _mapped(path: Path) -> Iterator[_Region]:
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        yield _Region(file, memory)


def _word(memory: mmap.mmap, place: int, rng: random.Random) -> int:
    """Return a plausible value in place of the word that is there, or an implausible one."""
    there: int = struct.unpack_from("<Q", memory, place)[0]
    near = there + rng.choice((-1, 1)) * (1 << rng.randrange(20))
    return rng.choice((near, near, rng.getrandbits(64), rng.getrandbits(3))) % (1 << 64)


@contextlib.contextmanager
def _scribbled(region: _Region, before: dict[int, bytes], seed: int) -> Iterator[None]:
    """In the block, write words into pages whose heads have changed since `before`."""
    rng, memory = random.Random(seed), region.memory
    count, pages = itertools.count(), []

    def write() -> None:
        if next(count) % 100 == 0:
            pages[:] = [page for page, head in region.heads().items() if head != before.get(page)]
        if pages:
            place = rng.choice(pages) + 8 * rng.randrange(rng.choice((HEAD, PAGE)) // 8)
            struct.pack_into("<Q", memory, place, _word(memory, place, rng))

    with repeated(write, 0.0005):
        yield


def test_scribbled_region(pair: Pair, rng: random.Random) -> None:
    """Words of rings and mailboxes are overwritten: impossible values are found, and no kernel is harmed."""
    found = 0
    for _ in range(ROUNDS):
        found += _scribble_once(pair, rng)
        if found >= ENOUGH:
            break
    assert found >= ENOUGH, "too few rings were found corrupt"
    pair.load(**AT_ONCE)
    delta = Delta(*pair.both)
    stream = Stream(pair.b, pair.a, conns=6)
    pair.wait_on_rings(6)
    stream.stop()
    stream.finish(60 * pair.slow)
    pair.check_counters(delta)


def _scribble_once(pair: Pair, rng: random.Random) -> int:
    """Overwrite words until no stream is on rings; return how many rings were found corrupt."""
    pair.load(**AT_ONCE, ring_bytes=16384, ring_bytes_max=16384)
    delta = Delta(*pair.both)
    with _mapped(pair.site.daemon.region.path) as region:
        before = region.heads()
        stream = Stream(pair.b, pair.a, conns=6, both=CALM)
        pair.wait_on_rings(6)
        with _scribbled(region, before, rng.getrandbits(32)):
            wait_for(
                lambda: not (stream.running() and any(c["tx"]["carrier"] % 2 for c in connections(pair.a))),
                "nothing is on rings any more",
                60 * pair.slow,
            )
    for vm in pair.both:
        vm.run("pkill -KILL -x stream", check=False)
    moved = [delta.of(vm) for vm in pair.both]
    found: int = sum(one["corrupt_rings"] for one in moved)
    assert not found or any(one["resets"] for one in moved), "no connection of a corrupt ring was reset"
    # With ring memory, a context or a sleeper left behind this would not return.
    for vm in pair.both:
        rmmod(vm, 60 * pair.slow)
    return found


def test_marks_of_others(pair: Pair) -> None:
    """Another member marks an endpoint again and again, so no mark rings: doorbells come late, and come."""
    pair.load(**AT_ONCE, spin_us=0)
    a, b = pair.both
    delta = Delta(a, b)
    hearer = b.spawn("python3 -B /hallway/guest/fault.py hear 4905")
    wait_listening(b, 4905, 60 * pair.slow)
    with _mapped(pair.site.daemon.region.path) as region, _marked(region.memory, *_slots(pair)):
        a.run(f"python3 -B /hallway/guest/rtt.py 4905 {b.ip4} {TRIPS}", timeout=60 * pair.slow)
    hearer.kill(9)
    assert delta.of(a)["doorbells_repeated"] > 0


def _slots(pair: Pair) -> tuple[int, int]:
    return pair.member(pair.a)["slot"], pair.member(pair.b)["slot"]


@contextlib.contextmanager
def _marked(memory: mmap.mmap, sender: int, receiver: int) -> Iterator[None]:
    """In the block, write a mark into the mailbox of two members that nobody rings for."""
    (offset,) = struct.unpack_from("<Q", memory, TABLE + sender * TABLE + SLICE_OFFSET)
    place = offset + PAGE + receiver * MAILBOX + PENDING + 7

    def write() -> None:
        memory[place] = 0x80  # one byte: the marks of others stay

    with repeated(write, 0.0005):
        yield
