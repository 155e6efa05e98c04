# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Instructions of guests for each call, counted by a plugin of QEMU's.

Times depend on what else the machine does; counts do not. One guest with one CPU runs
`calls` over loopback: on TCP with Hallway off, on rings, and on sockets that Hallway
leaves alone. Then two such guests run `both`, on TCP and on rings, and what both ends
take is added up; receivers do not spin. One guest runs it with its other end outside, by
its NIC and outsourced: only the guest counts. A count is that of the third shortest of 24
rounds: ticks of the timer, and the guest's agent, only add to a round, and do so in more
rounds on a busy machine. `baseline.json` holds the counts of the last revision that
changed them, and for sockets on TCP their ratio to TCP without Hallway: a check fails
where one has become more than 3 % larger.
"""

from __future__ import annotations

import bisect
import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hallway_lab import accel, isolate, measure, outsourcing, paths, topology
from hallway_lab.outsourcing import HOST, NETNS, OUTSIDE
from hallway_lab.programs import serve
from hallway_lab.sh import LabError, run, say, step
from hallway_lab.vm import VM

from .compiling import GCC, compile_program

KEY = "instructions"
KERNEL = "6.1"  # its QEMU has the interface that the plugin is written for
BASELINE = paths.REPO / "bench/baseline.json"
WORSE = 1.03
SHORTEST = 2  # rounds that are left out, as too short to be true
ADDRESS = "127.0.0.1"
AT_ONCE = "promote_bytes=0 promote_ms=0"
NEVER = f"promote_bytes={(1 << 32) - 1} promote_ms={(1 << 32) - 1}"
TEXTS = {
    "write-64": "write(64)",
    "send-64": "send(64)",
    "read-64": "read(64)",
    "read-eagain": "read(), EAGAIN",
    "poll-empty": "poll(), nothing to read",
    "poll-space": "poll(), space to write",
    "write-read-1k": "write(1 KiB) and its read",
    "write-64-read-all": "write(64), one read for 256",
    "write-read-16k": "write(16 KiB) and its read",
    "trip-1": "round trip of 1 B in one process",
    "trip-1-asleep": "round trip of 1 B, two processes asleep",
    "stream-64-asleep": "write(64), a process reads all there is",
    "connect": "connect, accept, close",
    "both-trip-1": "two VMs: round trip of 1 B, asleep",
    "both-write-1k": "two VMs: stream, per write(1 KiB)",
    "both-write-64": "two VMs: stream, per write(64)",
    "both-connect": "two VMs: connect, accept, close",
    "out-trip-1": "VM → outside: round trip of 1 B, asleep",
    "out-write-1k": "VM → outside: stream, per write(1 KiB)",
    "out-write-64": "VM → outside: stream, per write(64)",
    "out-connect": "VM → outside: connect, close",
    "in-trip-1": "outside → VM: round trip of 1 B, asleep",
    "in-write-1k": "outside → VM: stream, per write(1 KiB)",
    "in-write-64": "outside → VM: stream, per write(64)",
    "in-connect": "outside → VM: accept, close",
}
# Rows that repeat on sockets that stay on TCP, which gathers small writes as timers come, and
# acknowledges either each larger one or each second one.
STEADY_ON_TCP = ("send-64", "read-64", "read-eagain", "poll-empty", "trip-1")
# As schedulers of guest and host have it: how often a reader sleeps.
UNSTEADY = ("stream-64-asleep", "both-trip-1", "both-write-1k", "both-write-64", "both-connect")
CARRIERS = ("tcp", "ring", "outsourced", "attached", "unserved")
PORT = 7010


@dataclass(frozen=True)
class Call:
    """What a call costs: instructions, and of them those of each function."""

    instructions: float
    functions: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Call) -> Call:
        """Return what both cost."""
        return Call(self.instructions + other.instructions, self.functions + other.functions)


class Symbols:
    """The functions of a guest's kernel and modules."""

    def __init__(self, vm: VM) -> None:
        found = {}
        for line in vm.get("/proc/kallsyms").splitlines():
            address, kind, name, *module = line.split()
            if kind in "tTwW" and not name.startswith("__pfx_"):
                found.setdefault(int(address, 16), " ".join([name, *module]))
        self._names = sorted(found.items())
        self._addresses = [address for address, _ in self._names]

    def name(self, address: int) -> str:
        """Return the function at an address, and its module in brackets."""
        if not address >> 63:
            return "user"
        return self._names[bisect.bisect_right(self._addresses, address) - 1][1]


class Guest:
    """A guest that counts."""

    def __init__(self, vm: VM, folder: Path) -> None:
        self.vm = vm
        self._rounds = folder / str(vm.pid)
        self._blocks = folder / f"{vm.pid}.blocks"
        self._read = 0

    def calls(self, part: str) -> dict[str, Call]:
        """Run the calls of a part."""
        return self.counted(self.vm.run(f"/hallway/calls {ADDRESS} {part}", timeout=300).out)

    def counted(self, said: str) -> dict[str, Call]:
        """Return what was counted of a program that has ended and said which slots these are."""
        lines = self._rounds.read_text().splitlines()[self._read :]
        self._read += len(lines)
        rounds = defaultdict(list)
        for slot, count in map(str.split, lines):
            rounds[slot].append(int(count))
        functions = self._functions()
        found = {}
        for slot, name, operations in map(str.split, said.splitlines()):
            mean = len(rounds[slot]) * int(operations)
            found[name] = Call(
                sorted(rounds[slot][1:])[SHORTEST] / int(operations),
                Counter({key: n / mean for key, n in functions[slot].items()}),
            )
        return found

    def _functions(self) -> dict[str, Counter[str]]:
        symbols = Symbols(self.vm)
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for slot, address, count in map(str.split, self._blocks.read_text().splitlines()):
            found[slot][symbols.name(int(address, 16))] += int(count)
        return found

    @contextlib.contextmanager
    def module(self, params: str) -> Iterator[None]:
        """Have the module loaded in the block."""
        self.vm.run(f"insmod /hallway/hallway.ko {params}")
        yield
        self.vm.run("rmmod hallway")

    def ring_share(self) -> float:
        """Return the share of sent bytes that went through rings."""
        said = json.loads(self.vm.run("hallway counters --json").out)
        return said["tx_bytes_ring"] / (said["tx_bytes_ring"] + said["tx_bytes_tcp"])


def build() -> tuple[Path, list[Path]]:
    """Build the plugin, and the programs for guests."""
    plugin = paths.out("bench", "instructions.so")
    with step("building the plugin that counts instructions"):
        run([*GCC, "-shared", "-fPIC", "-o", plugin, paths.REPO / "bench/plugin/instructions.c"])
        built = [compile_program(name) for name in ("calls", "both")]
    return plugin, built


def count(plugin: Path) -> dict[str, Call]:
    """Boot guests and count; keys are CARRIER/NAME. The module and the programs are in their share."""
    if accel.name() != "tcg":
        raise LabError("instructions are counted under TCG alone: set HALLWAY_ACCEL=tcg")
    return count_one(plugin) | count_both(plugin) | count_outsourced(plugin)


def count_both(plugin: Path) -> dict[str, Call]:
    """Count in two guests at once, and add up."""
    folder = paths.out("bench", "counts", "x").parent
    found: dict[str, Call] = {}
    with (
        topology.pair(KERNEL, load=False, extra=["-plugin", f"{plugin},folder={folder}"]) as site,
        step("counting instructions of two guests"),
    ):
        for vm in site.vms:
            vm.run(f"cp /hallway/both /tmp; insmod /hallway/hallway.ko spin_us=0 {AT_ONCE}")
        stand = measure.Stand(site)
        stand.await_members()
        client, server = (Guest(vm, folder) for vm in (stand.client, stand.server))
        for carrier in ("tcp", "ring"):
            stand.switch(carrier == "ring")
            if carrier == "ring":
                stand.await_members()
            serving = serve(server.vm, f"/tmp/both -s {PORT}", PORT)
            mine = client.counted(client.vm.run(f"/tmp/both -c {server.vm.ip4} {PORT}", timeout=300).out)
            theirs = server.counted(serving.wait().out)
            found.update({f"{carrier}/{name}": mine[name] + theirs[name] for name in mine})
            say(f"{carrier}: counted")
        if client.ring_share() < 0.9:
            raise LabError("too few of the bytes went through rings")
        site.judge()
    return found


def count_outsourced(plugin: Path) -> dict[str, Call]:
    """Count in a guest whose other end is outside of it."""
    folder = paths.out("bench", "counts", "x").parent
    both = str(paths.out("bench", "both"))
    found: dict[str, Call] = {}
    with (
        outsourcing.standing(
            KERNEL, f'publish = ["tcp/{PORT}"]', extra=["-plugin", f"{plugin},folder={folder}"]
        ) as stand,
        step("counting instructions of a guest with its other end outside"),
    ):
        vm = stand.client
        vm.run("cp /hallway/both /tmp")
        stand.spin(0)
        guest = Guest(vm, folder)
        for carrier, port in (("tcp", PORT + 1), ("outsourced", PORT + 2)):
            stand.switch(carrier == "outsourced")
            stand.serve([both, "-s", str(port)], port)
            with stand.meter() as traffic:
                out = guest.counted(vm.run(f"/tmp/both -c {OUTSIDE} {port}", timeout=300).out)
                serving = serve(vm, f"/tmp/both -s {PORT}", PORT)
                address = HOST if stand.on else vm.ip4
                run([*isolate.on_host(NETNS), both, "-c", address, str(PORT)], timeout=300)
                into = guest.counted(serving.wait().out)
            for way, calls in (("out", out), ("in", into)):
                names = {name: name.replace("both", way) for name in calls}
                found.update({f"{carrier}/{names[name]}": call for name, call in calls.items()})
            for direction in (traffic.up, traffic.down):
                share = direction.sent_ring / (direction.sent_ring + direction.sent_tcp)
                if (share > 0.5) != stand.on:
                    raise LabError(f"{carrier}: {share:.0%} of the bytes were outsourced")
            say(f"{carrier}: counted")
        _judge(vm)
    return found


def count_one(plugin: Path) -> dict[str, Call]:
    """Boot one guest and count."""
    folder = paths.out("bench", "counts", "x").parent
    vm = VM(
        number=1,
        kernel=KERNEL,
        share=paths.out("share", KERNEL),
        network=False,
        extra=["-plugin", f"{plugin},folder={folder}"],
    )
    found: dict[str, Call] = {}
    with vm, step("counting instructions"):
        vm.run("ip link set lo up; cp /hallway/calls /tmp")
        guest = Guest(vm, folder)

        def take(carrier: str, *parts: str) -> None:
            for part in parts:
                found.update({f"{carrier}/{name}": call for name, call in guest.calls(part).items()})
                say(f"{carrier}, {part}: counted")

        take("tcp", "stream", "connect")
        with guest.module(f"loopback=1 {AT_ONCE}"):
            take("ring", "stream")
            share = guest.ring_share()
            if share < 0.9:
                raise LabError(f"only {share:.0%} of the bytes went through rings")
        with guest.module(f"loopback=1 {NEVER}"):
            take("attached", "stream", "connect")
        with guest.module(""):
            take("unserved", "stream", "connect")
        _judge(vm)
    return found


def _judge(vm: VM) -> None:
    health = vm.verdict()
    if not health.ok:
        raise LabError(f"the guest's kernel complained ({vm.log}): {health}")


def show(found: dict[str, Call]) -> Iterator[str]:
    """Yield a table of what was counted."""
    yield f"{'instructions of guests':44}" + "".join(f"{name:>11}" for name in CARRIERS)
    for name, text in TEXTS.items():
        cells = []
        tcp = found[f"tcp/{name}"].instructions
        for carrier in CARRIERS:
            call = found.get(f"{carrier}/{name}")
            if not call:
                cells.append("")
            elif carrier in ("attached", "unserved"):
                cells.append(f"{call.instructions / tcp:.3f} ×")
            else:
                cells.append(f"{call.instructions:.0f}")
        yield f"{text:44}" + "".join(f"{cell:>11}" for cell in cells)


def write_functions(found: dict[str, Call]) -> Path:
    """Write which functions the instructions are of."""
    target = paths.out("bench", "instructions.txt")
    with open(target, "w") as file:
        for key, call in found.items():
            file.write(f"{key}: {call.instructions:.1f}\n")
            for name, instructions in call.functions.most_common():
                file.write(f"  {instructions:10.1f} {name}\n")
    return target


def figures(found: dict[str, Call]) -> dict[str, float]:
    """Return what is compared: counts on rings, and ratios to TCP of sockets that stay there."""
    kept: dict[str, float] = {}
    for key, call in found.items():
        carrier, name = key.split("/")
        if carrier == "ring" and name not in UNSTEADY:
            kept[key] = round(call.instructions)
        elif carrier in ("attached", "unserved") and name in STEADY_ON_TCP:
            kept[key] = round(call.instructions / found[f"tcp/{name}"].instructions, 3)
    return kept


def compare(found: dict[str, float]) -> list[str]:
    """Return what is more than 3 % worse than in the baseline."""
    before = json.loads(BASELINE.read_text())
    if before.keys() != found.keys():
        return ["other calls than in the baseline: bench/run --accept"]
    return [
        f"{key}: {value:g}, in the baseline {before[key]:g}"
        for key, value in found.items()
        if value > before[key] * WORSE
    ]


def measured(*, check: bool, accept: bool) -> int:
    """Count, print, and compare with the baseline or replace it; return the exit code."""
    plugin, programs = build()
    measure.make_ready(KERNEL, *programs)
    found = count(plugin)
    print("\n".join(["", *show(found), "", f"functions: {write_functions(found)}"]))
    if accept:
        BASELINE.write_text(json.dumps(figures(found), indent="\t") + "\n")
    worse = compare(figures(found)) if check else []
    for line in worse:
        print(f"worse: {line}")
    return 1 if worse else 0
