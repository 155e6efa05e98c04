# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The kinds of results, their tables, and the pages of docs/ that hold them.

A page of docs/ holds records of one revision of the module, which is in a commit: a
row about sources that nobody can fetch is worth nothing. Benchmarks have a page of
their own, which bench/ writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import modbuild, paths
from .ledger import SHARE, TRIFLE
from .results import DIRTY, MARKDOWN, REST, Record, read, rest, table
from .sh import LabError

PAGE = paths.REPO / "docs/results.md"


@dataclass(frozen=True)
class Kind:
    """Results of one kind, which `make TARGET` makes."""

    name: str
    target: str
    title: str
    columns: tuple[str, ...]
    about: str

    @property
    def is_benchmark(self) -> bool:
        """Tell whether `make bench` makes them."""
        return self.target.startswith("bench")


DEMO_COLUMNS = (
    *("name", "kernel", "TCP", "Hallway", "ratio", "of payload →", "of payload ←"),
    *("CPU: own / busy", "ring full", "doorbells", "sleeps", "verdict"),
)
KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "bench",
            "bench",
            "Between two VMs, and with outside",
            (
                *("name", "kernel", "TCP", "Hallway", "ratio", "target", "paper", "passt", "native"),
                *("bound", "doorbells", "verdict"),
            ),
            "Medians (lowest to highest sample) between two VMs of one CPU each, with Hallway off and on."
            " Where a VM talks to outside, beside it the same by passt, and by a program of the host"
            " itself (*native*), and in words what the paper on socket outsourcing found (Eiraku et al.,"
            " SAC 2009). *bound*: what no carrier can beat here. For streams, a program of the VM"
            " copies each byte into a ring and out of it, without a system call; for round trips, two"
            " threads of the host wake each other, or spin on one word. *doorbells*: both VMs answer"
            " interrupts of ivshmem by such interrupts, and no thread wakes. *met*: the ratio to TCP is the"
            " target or more; where passt stands beside it, the ratio to passt is also 2 or more. The .csv"
            " has the slowest 1 % of round trips, too.",
        ),
        Kind(
            "growth",
            "bench FIG=growth",
            "Growth",
            (
                *("name", "kernel", "TCP", "Hallway", "ratio", "p99, ms, TCP", "p99, ms, Hallway"),
                *("fairness, TCP", "fairness, Hallway", "of payload →", "verdict"),
            ),
            "Connections with one request in flight each, of 16 KiB, which one byte answers. One thread at"
            " each end serves all, and a pair of programs has 10 of them where the name does not say how"
            " many. *star*: all VMs but one call that one. *ring*: each VM calls the next. The sum of all"
            " is shown. *p99*: of the time to the answer, of the slowest client. *fairness*: Jain's index"
            " of what each connection moved, 1 if all moved the same. *met*: 0.95 of it on rings;"
            " several VMs or CPUs move no less than over TCP; 1,000 connections move 0.8 of what 10 do."
            " *idle*: the CPU time of the busier guest, with Hallway 0.5 % of a CPU more at most. Programs"
            " that connect have a server each, and keep 0.9 of their connections a second.",
        ),
        Kind(
            "tunnels",
            "bench FIG=tunnel",
            "Tunnels",
            (
                *("name", "kernel", "TCP", "Hallway", "ratio", "target", "paper", "stream", "AF_UNIX"),
                *("TCP on rings", "of offered, Hallway", "of payload →", "of payload ←", "verdict"),
            ),
            "Messages over AF_VSOCK (SOCK_SEQPACKET) between two VMs, and writes of TCP with TCP_NODELAY"
            " through virtio-net. *stream*: the same over SOCK_STREAM of AF_VSOCK. *AF_UNIX*: messages"
            " between two programs of one VM. *TCP on rings*: TCP with Hallway on. Connections are those"
            " of SOCK_STREAM. With the host a VM exchanges messages by `hallway-host`. *paper*: what IDTS"
            " reports against TCP. *of offered*: the first receiver's part of all bytes, in terms of its"
            " part of what two programs offer. *met*: the target, 0.7 of *stream*, 1,000 connections a"
            " second, and 0.95 of one receiver's bytes for two.",
        ),
        Kind(
            "papers",
            "bench FIG=papers",
            "Figures of two papers",
            (
                *("name", "kernel", "TCP", "Hallway", "ratio", "target", "paper", "AF_UNIX", "loopback"),
                *("bound", "of payload →", "verdict"),
            ),
            "Between two VMs of one CPU each; TCP goes through virtio-net. *paper*: the ratio to TCP that a"
            " paper reports, between domains of Xen: XWAY is Kim et al., VEE 2008; XenVMC is Ren et al.,"
            " 2012. *AF_UNIX*, *loopback*: the same between two programs of one VM. *bound*: one program"
            " that copies each byte as often as a ring does.",
        ),
        Kind(
            "xen",
            "bench FIG=xen",
            "Xen",
            (
                *("name", "kernel", "TCP", "Hallway", "ratio", "target", "paper", "AF_UNIX", "loopback"),
                *("libxenvchan", "bound", "of payload →", "verdict"),
            ),
            "Between two domains of Xen that share their CPUs with dom0: TCP goes through xen-netfront and"
            " dom0's bridge. *paper*: the ratio to TCP that a paper reports: XWAY is Kim et al., VEE 2008;"
            " XenVMC is Ren et al., 2012. *AF_UNIX*, *loopback*: the same between two programs of one"
            " domain. *libxenvchan*: a library for programs that share memory between domains by"
            " themselves. *bound*: one program that copies each byte as often as a ring does.",
        ),
        Kind(
            "within",
            "bench FIG=within",
            "Within one VM",
            (
                *("name", "kernel", "TCP", "Hallway", "ratio", "target", "AF_UNIX", "pipe", "sockmap"),
                *("bound", "of payload →", "verdict"),
            ),
            "Connections to 127.0.0.1 within one VM of one CPU, over TCP and through rings of the loopback"
            " transport, with a process at each end. *sockmap*: TCP of which two BPF programs put what one"
            " socket sends into the queue of the other. *bound*: what no carrier can beat: a program copies"
            " each byte into a ring and out of it, or two threads wake each other.",
        ),
        Kind(
            "native",
            "bench FIG=native",
            "Native speed",
            (
                *("name", "kernel", "TCP", "Hallway", "ratio", "target", "AF_UNIX", "pipe"),
                *("of payload →", "verdict"),
            ),
            "Within one kernel of User Mode Linux, which is a process of the machine and runs at its speed:"
            " connections to 127.0.0.1, over TCP and through rings of the loopback transport. *in the"
            " kernel*: by kernel_sendmsg() and kernel_recvmsg(), or kernel_write() and kernel_read() for a"
            " pipe. *user space*: by write() and read(), without what as many writes to /dev/null take: a"
            " system call takes User Mode Linux several microseconds. *one thread*: both ends are in it."
            " *asleep*: a process at each end. One CPU, no preemption: what several CPUs cost is not in"
            " these times. Barriers are full fences there, which rings have more of than TCP. TCP does a"
            " reader's work as it sends, so reads have no target.",
        ),
        Kind(
            "demo",
            "demo",
            "Demo",
            DEMO_COLUMNS,
            "Unmodified programs between two VMs. Medians (lowest to highest sample). Arrows: → client to"
            " server, ← back. *CPU*, of the guest with the busier programs: *busy*, the part of the time in"
            " which it ran; *own*, the part of that in which it ran programs, not the kernel. *program*:"
            " half of the CPU's time or more is the program's own, whatever carries its bytes, and it is"
            " not slower.",
        ),
        Kind(
            "demo-xen",
            "demo-xen",
            "Demo on Xen",
            DEMO_COLUMNS,
            "The same programs between two domains of Xen that share their CPUs with dom0: TCP goes through"
            " xen-netfront and dom0's bridge.",
        ),
        Kind(
            "programs",
            "test-programs",
            "Programs",
            (
                *("name", "kernel", "carrier", "what is done", "in rings →", "in rings ←"),
                *("of payload →", "of payload ←", "switches", "XWAY", "verdict"),
            ),
            "Stock Debian packages between two VMs. Each connection moves to rings as soon as the program"
            " has accepted it or has called it. *steady*: it stays there, and rings carry"
            f" {SHARE:.0%} or more of each direction of {TRIFLE >> 10} KiB or more. *switching*: all"
            " connections move to TCP and back at random moments. Content is right, and both VMs count"
            " the same bytes. Arrows: → client to server, ← back.\n\n"
            "*XWAY* is Table 1 of Kim et al., VEE 2008. Of its eleven programs, netperf is not free"
            " software: iperf3 stands in its place. MySQL is MariaDB in Debian. Samba failed there:"
            " XWAY did not serve sockets of the kernel.",
        ),
        Kind(
            "suites",
            "test-suites",
            "Suites",
            (
                *("name", "kernel", "carrier", "tests", "skipped", "unsteady", "changed"),
                *("failing on both", "sockets", "promoted", "switches", "in rings", "over TCP", "verdict"),
            ),
            "Test suites of other projects, in one guest: with Hallway off, and with all connections"
            " within the guest on rings. *steady*: from the first byte. *switching*: they move to TCP"
            " and back at random moments. A test with another outcome than over TCP is run again alone,"
            " several times on each carrier. It has *changed* if rings gave an outcome that TCP never"
            " gave. It is *unsteady* if TCP gave it too. *Sockets* are attached ends of connections;"
            " *promoted* are directions that moved to a ring.",
        ),
        Kind(
            "faults",
            "test-faults",
            "Faults",
            ("name", "kernel", "what is done", "rounds", "in rings", REST, "verdict"),
            "VMs that join, leave, stop, crash and migrate under load. The receiver checks every byte of"
            " every stream. Connections of VMs that are not involved stay on rings. Connections of the VM"
            " in question go on, or end with an error that TCP gives. Afterwards no memory, channel or"
            " descriptor is held. No kernel complained. Times are medians (shortest to longest).",
        ),
    )
}


def show(kind: str, records: Sequence[Record]) -> str:
    """Return a run's table for a terminal, and below it what failed."""
    lines = [table(records, KINDS[kind].columns)]
    lines += [
        f"FAILED {one.name}, {one.kernel}: {_first_line(fault)}" for one in records for fault in one.faults
    ]
    return "\n".join(lines)


Chapters = Sequence[tuple[Kind, Sequence[Record]]]

BENCHMARKS = tuple(kind for kind in KINDS.values() if kind.is_benchmark)


def write(revision: str = "") -> None:
    """Write the page of tests and demos: all records of this revision, or of that of the sources."""
    revision = revision or modbuild.revision()
    chapters = collect(revision, [kind for kind in KINDS.values() if not kind.is_benchmark])
    PAGE.write_text(page("Results", revision, chapters, "Written by `make results`."))


def collect(revision: str, kinds: Sequence[Kind]) -> Chapters:
    """Return what a page of docs/ holds: all records of these kinds and this revision."""
    if revision.endswith(DIRTY):
        raise LabError(
            f"the module's sources are {revision}: they have changes that are in no commit, and no row"
            " of docs/ may be of such a module. Commit them, and run again what the page is to show."
        )
    chapters = find_chapters(revision, kinds)
    if not chapters:
        found = sorted({one.revision for kind in kinds for one in read(kind.name)})
        raise LabError(f"no record is of {revision}; there are records of: {', '.join(found) or 'nothing'}")
    return chapters


def find_chapters(revision: str, kinds: Sequence[Kind]) -> Chapters:
    """Return the kinds that have records of this revision, and those."""
    return [(kind, records) for kind in kinds if (records := read(kind.name, revision))]


def page(title: str, revision: str, chapters: Chapters, about: str) -> str:
    """Return a page of records of one revision."""
    everything = [one for _, records in chapters for one in records]
    wrong = sorted({one.revision for one in everything} - {revision})
    if wrong:
        raise LabError(f"a page of {revision} has no place for records of {', '.join(wrong)}")
    dates = sorted({one.date for one in everything})
    releases = sorted({one.release for one in everything})
    lines = [
        f"# {title}",
        "",
        f"Module of revision {revision}; {' to '.join(dict.fromkeys((dates[0], dates[-1])))}; kernels"
        f" {', '.join(releases)}. VMs ran with {'; '.join(sorted({one.machine for one in everything}))}."
        " With TCG the CPUs of the VMs are emulated: times are upper bounds.",
        "",
        f"{about} What is not here was not run with this revision.",
    ]
    for kind, records in chapters:
        lines += ["", f"## {kind.title}", "", f"{kind.about} Written by `make {kind.target}`.", ""]
        lines += [table(records, [one for one in kind.columns if one != REST], MARKDOWN)]
        said = [(one, f"failed: {_first_line(fault)}") for one in records for fault in one.faults]
        if REST in kind.columns:  # too long for a cell of a page
            said += [(one, words) for one in records if (words := rest(one, kind.columns))]
        said += [(one, note) for one in records for note in one.notes]
        lines += ["", *(f"- {one.name}, {one.kernel}: {words}" for one, words in said)] if said else []
    return "\n".join(lines) + "\n"


def _first_line(fault: str) -> str:
    """Return what fits a table; the rest, such as the end of a guest's log, is in the record."""
    return fault.partition("\n")[0]
