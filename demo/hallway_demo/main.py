# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs every row several times, with Hallway off and on by turns, and prints the table.

Every other round begins with on: a machine that becomes slower or faster
meanwhile weighs on both alike. All of it happens inside the lab's private
namespaces: the end of this program, for any reason, also ends the VMs, the
daemon and their network.
"""

from __future__ import annotations

import argparse
import dataclasses
import time

from hallway_lab import accel, isolate, measure, programs, results, summary, topology, xen
from hallway_lab.ledger import SHARE, TRIFLE
from hallway_lab.measure import describe
from hallway_lab.results import Store, share
from hallway_lab.sample import NOISE, Row, Samples, sample
from hallway_lab.sh import guarded, say

from .domains import Domains
from .outside import Outside
from .rows import Programs
from .tunnels import Tunnels
from .watch import Watch

KERNEL = "6.1"
ROUNDS = 3
# From this share of the CPU's time on, a row says more of its program than of carriers.
PROGRAM = 0.5
OK, EVEN, SLOWER, BOUND = "ok", "even", "slower", "program"


def main(words: list[str] | None = None) -> int:
    """Run the demo; return the exit code."""
    parser = argparse.ArgumentParser(prog="demo/run", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"samples of each (default: {ROUNDS})")
    parser.add_argument("--xen", action="store_true", help="between two domains of Xen")
    measure.add_selection(parser)
    options = parser.parse_args(words)
    if options.rounds < 1:
        parser.error("rounds are at least 1")
    return guarded("demo", lambda: _demo(options))


def _demo(options: argparse.Namespace) -> int:
    begin = time.monotonic()
    isolate.enter()
    results.prepare()
    programs.unpack_ncat(topology.share_folder(KERNEL))
    if options.xen:
        xen.prepare(KERNEL)
    measure.make_ready(KERNEL, programs.build_rawstream())
    store = Store("demo-xen" if options.xen else "demo", KERNEL)
    complaints: list[str] = []
    between = (Domains(),) if options.xen else (Programs(), Tunnels(), Outside())
    groups = [(group, group.rows()) for group in between]
    wanted = measure.chosen(options, [row for _, rows in groups for row in rows])
    for group, rows in groups:
        mine = [row for row in rows if row in wanted]
        if mine:
            facts = _run(group, mine, options.rounds, store, complaints)
    _print(store, facts, options.rounds)
    for complaint in complaints:
        print(f"FAILED {complaint}")
    count = {one: sum(record.verdict == one for record in store.records) for one in (OK, EVEN, BOUND, SLOWER)}
    print(
        f"\n{count[OK]} of {len(store.records)} rows ok, {count[EVEN]} even, {count[BOUND]} bounded by the"
        f" program, {count[SLOWER]} slower, {time.monotonic() - begin:.0f} s"
    )
    return 1 if count[OK] + count[EVEN] + count[BOUND] < len(store.records) or complaints else 0


def _run(
    group: Programs | Tunnels | Outside, rows: list[Row], rounds: int, store: Store, complaints: list[str]
) -> dict[str, object]:
    """Run these rows of a group, keep their records, and return what they were measured on."""
    with group.standing(KERNEL) as stand:
        everything = [(Samples(row), Watch(*stand.site.vms)) for row in rows]
        for number in range(rounds):
            begin = time.monotonic()
            for samples, watch in everything:
                group.watch = watch
                sample(stand, samples, on_first=number % 2 == 1)
            say(f"round {number + 1} of {rounds} took {time.monotonic() - begin:.0f} s")
        complaints += [
            f"{vm.name}'s kernel complained ({vm.log}): {health}"
            for vm in stand.site.vms
            if not (health := vm.verdict()).ok
        ]
        facts = measure.facts(stand.client)
    for samples, watch in everything:
        _record(store, samples, watch, facts)
    return facts


def _record(store: Store, samples: Samples, watch: Watch, facts: dict[str, object]) -> None:
    own, ratio = watch.own(on_rings=False) or 0, samples.ratio or 0
    notes = []
    if own >= PROGRAM:
        notes.append(f"{share(own)} of the CPU's time on TCP is the program's own, which no carrier shortens")
    if ratio < 1 and not samples.is_even:
        verdict = SLOWER
    elif own >= PROGRAM:
        verdict = BOUND
    else:
        verdict = OK if ratio >= 1 else EVEN
    store.add(
        samples.row.key,
        samples.row.title,
        verdict,
        figures=samples.figures() | watch.figures(),
        faults=tuple(samples.faults),
        notes=tuple(notes),
        details={"runs": [dataclasses.asdict(run) for run in watch.runs], **facts},
    )


def _print(store: Store, facts: dict[str, object], rounds: int) -> None:
    print(f"\n{describe(facts)}\nMedians of {rounds} rounds.")
    print("Arrows: → client to server, ← back; with peers outside, → from the VM.")
    if accel.name() == "tcg":
        print("Emulated CPU (TCG): compare the two carriers with each other, not with real hardware.")
    else:
        print("Real CPU (KVM).")
    print(f"\n{summary.show(store.kind, store.records)}\n")
    for one in store.records:
        for note in one.notes:
            print(f"{one.name}: {note}")
    print(
        f"ok: rings carried {SHARE:.0%} of the payload or more, each way that has {TRIFLE >> 10} KiB or more;"
        " all VMs counted the same\nbytes; files arrived unchanged; and it was not slower than TCP. even: the"
        f"\nmedian is, by {NOISE:.0%} at most, and the samples of both overlap. program:"
        f" {PROGRAM:.0%} of the CPU's time or more is the program's\nown, whatever carries its bytes: such"
        " a row is never ok; if it is slower, it is called so. busy: the part of the time in which the CPU"
        " ran; own: the\npart of that in which it ran programs, not the kernel. ring full, doorbells, sleeps:"
        " how often, in both guests, on rings."
    )
