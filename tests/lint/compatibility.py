# SPDX-License-Identifier: Apache-2.0 OR MIT
"""docs/compatibility.md, made from what the tests of tests/module/guest/rows declare.

`make generate` writes it. That the rows tell the
truth is what `tests/run module` finds out.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from hallway_lab.sh import LabError

REPO = Path(__file__).resolve().parents[2]
GUEST = REPO / "tests/module/guest"
DOCUMENT = REPO / "docs/compatibility.md"
DEMOTING_MOST = 11

HEAD = """\
# Every socket call on a ring

What a program sees of a connection on rings is what it sees on TCP. Each row is
a test: it makes the same calls on TCP with Hallway off, on rings, and across a
switch in both directions while a call is blocked or the bytes are half read, and
compares what came back: bytes, counts, flags, errors. Counters show that all
bytes of a row marked *ring* went through rings, as did all that it sent after a
switch to them. A row marked *demotes* is met by demoting the connection first, with no
byte lost, for the reason that it names ([reasons.md](reasons.md)); one marked
*never there*, by not being taken at all. Where *across* is empty, the carrier
does not change within the row.

Made by `make generate` from the tests, which
`tests/run module` runs on both kernels; `-k` takes a test's name.
"""
TABLE = "| call or option | on a ring | across | what holds | test |\n| --- | --- | --- | --- | --- |\n"
DIFFERENCES = """
## What differs

Not what a connection's program gets, but what others see of it. Each is a test,
which finds on each carrier what is said here.

| what | on TCP | on a ring | why | test |
| --- | --- | --- | --- | --- |
"""
ASK = """
import json, rows
print(json.dumps({"groups": rows.GROUPS, "rows": [
    [row.group, row.calls, row.demotes, row.crosses, row.carried, row.test.__doc__, row.name]
    for row in rows.ROWS],
    "differences": [[one.what, one.tcp, one.ring, one.test.__doc__, one.name] for one in rows.DIFFERENCES]}))
"""

PARSERS = """
The kernel's stream parser reads a socket for KCM, kTLS and sockmaps, which have rows, and for
espintcp, which Debian's kernels do not have. It comes by `TCP_ULP`, as kTLS does.
"""

# What has no row, and the tests that hold it.
ELSEWHERE = (
    ("NFS, client and server in the kernel", "ring", "e2e/test_kernel_users.py", "test_nfs"),
    ("NBD, client in the kernel", "ring", "e2e/test_unloading.py", "test_asleep_in_calls"),
    ("9p over a program's connection", "ring", "e2e/test_kernel_users.py", "test_9p"),
    (
        "iSCSI, client in the kernel: it reads TCP's queue itself",
        "TCP",
        "e2e/test_kernel_users.py",
        "test_iscsi",
    ),
    ("AF_SMC, which falls back to TCP", "ring", "e2e/test_kernel_users.py", "test_family"),
    ("AF_RDS: it reads TCP's queue itself", "TCP", "e2e/test_kernel_users.py", "test_family"),
    ("NVMe over TCP, host and target in the kernel", "ring", "e2e/test_kernel_users.py", "test_nvme"),
    ("AF_KCM", "ring", "module/guest/test_moves.py", "test_kcm"),
    (
        "TCP_USER_TIMEOUT, when a peer is unresponsive",
        "ring",
        "e2e/test_peer_death.py",
        "test_peer_never_responds",
    ),
    ("a peer that is killed: ETIMEDOUT", "ring", "e2e/test_peer_death.py", "test_peer_killed"),
)


def _declared() -> dict:
    done = subprocess.run([sys.executable, "-B", "-c", ASK], cwd=GUEST, capture_output=True, text=True)
    if done.returncode:
        raise LabError(f"the rows do not load: {done.stderr}")
    return json.loads(done.stdout)


def text() -> str:
    """Return the document as it has to be."""
    declared = _declared()
    document = HEAD
    for group, title in declared["groups"].items():
        document += f"\n## {title}\n\n{TABLE}"
        for where, calls, demotes, crosses, carried, words, name in declared["rows"]:
            if where == group:
                ring = f"demotes: {demotes}" if demotes else "ring" if carried else "never there"
                across = "yes" if crosses else ""
                document += f"| {calls} | {ring} | {across} | {words.splitlines()[0]} | `{name}` |\n"
    document += DIFFERENCES
    for what, tcp, ring, words, name in declared["differences"]:
        document += f"| {what} | {tcp} | {ring} | {words.splitlines()[0]} | `{name}` |\n"
    document += "\n## Kernel users, and peers that die\n\n| what | carrier | test |\n| --- | --- | --- |\n"
    for what, ring, path, name in ELSEWHERE:
        document += f"| {what} | {ring} | `tests/{path}`: `{name}` |\n"
    return document + PARSERS


def sound() -> list[str]:
    """Rows name reasons that exist, and few are met by demoting; tests elsewhere exist."""
    declared = _declared()
    header = (REPO / "abi/hallway/reason.h").read_text()
    known = set(re.findall(r"^#define HALLWAY_REASON_(\w+)", header, re.M)) - {"COUNT"}
    demoting = [row for row in declared["rows"] if row[2] or not row[4]]
    found = [f"{row[6]}: there is no reason {row[2]}" for row in demoting if row[2] and row[2] not in known]
    found += [
        f"{row[6]}: group {row[0]} has no title"
        for row in declared["rows"]
        if row[0] not in declared["groups"]
    ]
    if len(demoting) > DEMOTING_MOST:
        found.append(f"{len(demoting)} rows are not met by a ring, not {DEMOTING_MOST} at most")
    for _, _, path, name in ELSEWHERE:
        if not re.search(rf"^def {name}\(", (REPO / "tests" / path).read_text(), re.M):
            found.append(f"tests/{path} has no test {name}")
    return found


def current() -> list[str]:
    """The document says what the tests declare."""
    if DOCUMENT.exists() and DOCUMENT.read_text() == text():
        return []
    words = "is not what the tests declare: make generate"
    return [f"{DOCUMENT.relative_to(REPO)} {words}"]


if __name__ == "__main__":
    DOCUMENT.write_text(text())
    sys.exit(0)
