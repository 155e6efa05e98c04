# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a guest's serial log says about its kernel's health.

A test does not pass if the kernel complained during it. The patterns are those
of the kernel's own reports: ordinary messages with the same words do not match.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

TROUBLE = re.compile(
    r"\bWARNING: |\bBUG: |\bBUG at |\bOops\b|Call Trace:|KASAN: |UBSAN: |KCSAN: "
    r"|possible circular locking|possible recursive locking|inconsistent lock state"
    r"|possible irq lock inversion|suspicious RCU usage|bad unlock balance|held lock freed"
    r"|Invalid wait context|unreferenced object|blocked for more than \d+ seconds"
    r"|rcu: INFO: |rcu_\w+ (?:self-)?detected (?:stall|expedited)|refcount_t: "
    r"|general protection|unable to handle|Kernel panic|soft lockup|hard LOCKUP"
    r"|ODEBUG: |sleeping function called from invalid|scheduling while atomic"
    r"|list_(?:add|del) corruption|page allocation failure|Out of memory: Killed"
    r"|kmemleak: \d+ new suspected"
)
# Messages of each boot in the lab.
HARMLESS = re.compile(r"TSC|clocksource|tsc: |Spectre|MDS|unprivileged eBPF|lab: ")
# Faults of stock kernels, whatever modules are there: from "cut here" to "end trace". The iSCSI
# initiator of 6.12 may remove a target while the power management of that has work to do.
STOCK = re.compile(
    r".*\[ cut here \].*\n.*workqueue: WQ_MEM_RECLAIM iscsi_ctrl_\S+ \[scsi_transport_iscsi\] is flushing"
    r" !WQ_MEM_RECLAIM pm:pm_runtime_work.*\n"
    r"(?:(?!.*\[ (?:cut here|end trace) ).*\n){0,60}"
    r".*\[ end trace .*\n?"
)
OF_STOCK = re.compile(r"WARNING: CPU: \d+ PID: \d+ at kernel/workqueue\.c:|Call Trace:")
CONTEXT = 30


@dataclass(frozen=True)
class Verdict:
    """The judgement of one log."""

    ok: bool
    lines: tuple[str, ...]
    excerpt: str

    def __str__(self) -> str:
        return "clean" if self.ok else f"{len(self.lines)} bad lines\n{self.excerpt}"


def scan(log: str) -> Verdict:
    """Judge the text of a serial log."""
    lines = STOCK.sub(_excuse, log.replace("\r", "")).splitlines()
    bad = [n for n, line in enumerate(lines) if TROUBLE.search(line) and not HARMLESS.search(line)]
    if not bad:
        return Verdict(True, (), "")
    first = max(0, bad[0] - 3)
    excerpt = "\n".join(lines[first : bad[0] + CONTEXT])
    return Verdict(False, tuple(lines[n] for n in bad), excerpt)


def _excuse(fault: re.Match[str]) -> str:
    """Return what is left of a stock kernel's fault: all of it where another one is between its lines."""
    text = fault.group()
    other = any(TROUBLE.search(line) and not OF_STOCK.search(line) for line in text.splitlines())
    return text if other else ""


def scan_file(path: Path) -> Verdict:
    """Judge a serial log; one that is missing or empty is bad."""
    text = path.read_text(errors="replace") if path.exists() else ""
    if not text.strip():
        return Verdict(False, (f"{path}: the guest never wrote to its console",), str(path))
    return scan(text)
