"""What a person and a program are told: a table, out/compat.json, docs/compat-programs.md."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hallway_lab import modbuild, paths, table
from hallway_lab.ledger import SHARE, TRIFLE
from hallway_lab.sh import say
from hallway_tests import kept

from .stage import Program
from .verdict import MODES, STEADY, SWITCHES, SWITCHING, Outcome

DOCUMENT = paths.REPO / "docs/compat-programs.md"
# Kim et al., "Inter-domain Socket Communications Supporting High Performance and
# Full Binary Compatibility on Xen", VEE 2008, Table 1.
XWAY = {
    **dict.fromkeys(("SCP", "SSH", "VSFTPD", "TELNET", "FIREFOX", "WGET", "APACHE", "PROFTPD"), "pass"),
    **{"NETPERF": "pass (netperf)", "MYSQL": "pass (MySQL)", "SAMBA": "failed"},
}
PREFACE = f"""# Other people's programs

Stock Debian packages between two VMs, each connection on rings as soon as each of
its ends was accepted, or has been called: *steady*, and *switching*, with all
connections moved from rings to TCP and back at random moments meanwhile, {SWITCHES}
times or more.

A row is ok if the content was right and both VMs counted the same bytes; steady,
also if rings carried {SHARE:.0%} of what was moved or more, each way that has
{TRIFLE >> 10} KiB or more. Arrows: → from client to server, ← back.

*XWAY* is Table 1 of Kim et al., VEE 2008. Of its eleven programs, netperf is not among
Debian's free packages, and iperf3 stands in its place; MySQL is MariaDB in Debian.
Samba failed there because XWAY did not serve sockets that the kernel itself uses.

Written by `make compat`; each row by the last run of its program.
"""


@dataclass
class Line:
    """A program that was run."""

    program: Program
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)  # before or after the modes

    @property
    def all_faults(self) -> list[str]:
        """What is wrong, each with its mode."""
        told = [f"{mode}: {fault}" for mode, outcome in self.outcomes.items() for fault in outcome.faults]
        return [*self.faults, *told]


def tell(line: Line, place: str) -> None:
    """Say how a program fared."""
    modes = ", ".join(
        f"{mode} {'FAILED' if o.faults else 'ok'} ({o.seconds:.0f} s, {o.switches} switches)"
        for mode, o in line.outcomes.items()
    )
    say(f"{place} {line.program.title}: {modes or 'FAILED'}")
    for fault in line.all_faults:
        say(f"    FAILED: {_first_line(fault)}")


def record(line: Line, kernel: str, release: str) -> dict[str, Any]:
    """Return all that is kept of a program."""
    return {
        "key": line.program.key,
        "program": line.program.title,
        "done": line.program.done,
        "xway": XWAY.get(line.program.xway),
        "kernel": kernel,
        "release": release,
        "module": modbuild.revision(),
        "date": datetime.date.today().isoformat(),
        "modes": {mode: asdict(outcome) for mode, outcome in line.outcomes.items()},
        "faults": line.faults,
    }


HEAD = (
    *(("program", table.LEFT), ("kernel", table.LEFT), ("what is done", table.LEFT), ("steady", table.LEFT)),
    *(("in rings →", table.RIGHT), ("←", table.RIGHT), ("of payload →", table.RIGHT), ("←", table.RIGHT)),
    *(("switching", table.LEFT), ("switches", table.RIGHT), ("XWAY", table.LEFT)),
)


def render(records: list[dict[str, Any]]) -> str:
    """Return the table for a terminal."""
    return table.render(HEAD, [_cells(one) for one in records])


def _cells(one: dict[str, Any]) -> list[str]:
    steady, switching = (one["modes"].get(mode) for mode in (STEADY, SWITCHING))
    ledger = steady and steady["ledger"]
    ways = [ledger["up"], ledger["down"]] if ledger else []
    shares = [way["ring"] / way["payload"] if way["payload"] >= TRIFLE else None for way in ways]
    return [
        *(one["program"], one["kernel"], one["done"], _word(one, steady)),
        *([table.bytes_(way["ring"]) for way in ways] or ["-", "-"]),
        *([table.share(share) for share in shares] or ["-", "-"]),
        *(_word(one, switching), str(switching["switches"]) if switching else "-", one["xway"] or ""),
    ]


def _word(one: dict[str, Any], outcome: dict[str, Any] | None) -> str:
    if one["faults"] or (outcome and outcome["faults"]):
        return "FAILED"
    return "ok" if outcome else "-"


def keep(records: list[dict[str, Any]], order: Sequence[str]) -> None:
    """Write the rows to out/ and docs/, with those that other runs left for other programs and modes."""
    rows = kept.keep(paths.out("compat.json"), records, order, _merged)
    DOCUMENT.write_text(_document(rows))


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return new | {"modes": old["modes"] | new["modes"]}


def _document(all_rows: list[dict[str, Any]]) -> str:
    rows = [[*_cells(one), f"{one['module']}, {one['date']}"] for one in all_rows]
    lines = table.markdown([*HEAD, ("module, day", table.LEFT)], rows)
    releases = sorted({f"{one['kernel']}: {one['release']}" for one in all_rows})
    faults = [
        f"- {one['program']}, {one['kernel']}, {mode}: {_first_line(fault)}"
        for one in all_rows
        for mode in MODES
        for fault in one["modes"].get(mode, {"faults": []})["faults"]
    ]
    failed = "## Failed\n\n" + ("\n".join(faults) or "None.")
    return "\n".join([PREFACE, lines, "", f"Kernels: {', '.join(releases)}.", "", failed]) + "\n"


def _first_line(fault: str) -> str:
    """The rest, such as the end of a guest's log, is in the JSON."""
    return fault.partition("\n")[0]
