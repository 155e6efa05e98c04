# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Rules of the module's C code that keep its rooms apart and its memory sound."""

from __future__ import annotations

import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

from hallway_lab.paths import REPO

from . import source

KMOD = REPO / "kmod"

# The rooms below each room: what its files may include besides their own.
# compat/, obs/counters.h and obs/trace.h may be included by every room but the
# ring, which is compiled in user space too.
BELOW = {
    "ring": set(),
    "transport": set(),
    "discovery": {"transport"},
    "channel": {"transport", "discovery", "ring"},
    "sock": {"transport", "discovery", "ring", "channel"},
    "switch": {"transport", "discovery", "ring", "channel", "sock"},
    "compat": set(),
    "outsource": {"transport", "discovery", "ring", "channel", "sock", "switch"},
    # A module of its own: nobody includes it.
    "tunnel": {"transport", "discovery", "ring", "channel", "sock"},
    "obs": {"transport", "discovery", "ring", "channel", "sock", "switch", "outsource"},
    "main": {"transport", "discovery", "ring", "channel", "sock", "switch", "outsource", "obs"},
}
# The half of obs/ that everyone may use stands on nothing itself.
COUNTERS = (
    *("obs/counters.h", "obs/counter_list.h", "obs/counters.c", "obs/names.c"),
    *("obs/trace.h", "obs/trace.c"),
)
FOR_ALL = ("obs/counters.h", "obs/trace.h", "compat/")
RING_OUTSIDE = "ring/env.h"
# What any members over shared pages need knows no device and no region: other
# transports bring slices to their members in other ways.
SHARED_PAGES = "transport/shared/"
DEVICES = re.compile(r"linux/(?:pci|io|interrupt)\b|xen/")
REGION = re.compile(
    r"\b(?:struct\s+hallway_(?:region|member|page|request|reply)|HALLWAY_(?:REGION|PAGE|HEADER)_\w+)\b"
)


PLAIN_LOG = re.compile(r"\bpr_(?:emerg|alert|crit|err|warn|notice|info)\(")
# Lines of the log that the guest's own machine, or hallwayd, causes.
OWN_LINES = {
    "transport/ivshmem/cpus.c": 1,
    "transport/ivshmem/ivshmem.c": 2,
    "transport/ivshmem/region.c": 3,
    "transport/uuid.c": 2,
    "transport/xen/xen.c": 1,
}


def _includes(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line, kind (quote or angle) and name of each #include."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if hit := re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line):
            yield number, hit[1], hit[2]


def _room(place: str) -> str:
    return place.split("/")[0] if "/" in place else "main"


def includes() -> list[str]:
    """abi <- ring, transport <- discovery <- channel <- sock <- switch <- main."""
    found = []
    for path in source.c_files("kmod"):
        place = str(path.relative_to(KMOD))
        for line, kind, included in _includes(path):
            if why := _forbidden(path, place, kind, included):
                found.append(f"{source.name(path)}:{line}: {included}: {why}")
    for path in source.c_files("abi"):
        for line, kind, included in _includes(path):
            inside = kind == '"' and (path.parent / included).exists() and "/" not in included
            if not inside and path.name != "types.h":
                found.append(f"{source.name(path)}:{line}: {included}: abi/ stands on its types.h alone")
    return found


def _forbidden(path: Path, place: str, kind: str, included: str) -> str | None:
    room = _room(place)
    if room not in BELOW:
        return f"room {room}/ is unknown: give it its place in tests/lint/rules.py"
    if kind == "<":
        if room == "ring" and place != RING_OUTSIDE and not included.startswith("hallway/"):
            return f"ring/ knows its surroundings by {RING_OUTSIDE} alone"
        if place.startswith(SHARED_PAGES) and DEVICES.match(included):
            return f"{SHARED_PAGES} knows no device"
        return None
    target = (path.parent / included).resolve()
    if not target.is_relative_to(KMOD):
        return "outside of kmod/: the ABI is included as <hallway/...>"
    if not target.exists():
        return "no such file: includes in quotes are relative to the file"
    goal = str(target.relative_to(KMOD))
    below = (SHARED_PAGES, "transport/transport.h", *FOR_ALL)
    if place.startswith(SHARED_PAGES) and not goal.startswith(below):
        return f"{SHARED_PAGES} stands on transport/transport.h alone"
    if _room(goal) == room and room != "obs":
        return None
    if room != "ring" and place not in COUNTERS and goal.startswith(FOR_ALL):
        return None
    if room == "obs" and goal.startswith("obs/"):
        return None if place not in COUNTERS or goal in COUNTERS else f"{place} stands on nothing"
    if place in COUNTERS or _room(goal) not in BELOW[room]:
        return f"{room}/ lies below {_room(goal)}/, or beside it"
    return None


# The first line of the definition of a function with external linkage, or the only one.
DEFINED = re.compile(r"^(?!static\b)[\w *]*?\b(\w+)\([^;{]*\)\n\{", re.M)


def circles() -> list[str]:
    """Within a room, files call one another in one direction only."""
    texts = {path: source.code(path) for path in source.c_files("kmod") if path.suffix == ".c"}
    homes = {name: path for path, text in texts.items() for name in DEFINED.findall(text)}
    graph = {path: {homes[name] for name in _called(text) & homes.keys()} for path, text in texts.items()}
    found = []
    for room in BELOW:
        inside = {path for path in texts if _room(str(path.relative_to(KMOD))) == room}
        try:
            graphlib.TopologicalSorter({path: graph[path] & inside - {path} for path in inside}).prepare()
        except graphlib.CycleError as error:
            # the sorter names each node after one that calls it
            places = [str(path.relative_to(KMOD)) for path in reversed(error.args[1])]
            found.append(f"kmod/{room}: files call one another in a circle: {' -> '.join(places)}")
    return found


def _called(text: str) -> set[str]:
    return set(re.findall(r"\b(\w+)\(", text))


def regions() -> list[str]:
    """Members over shared pages do without regions: those are one transport's."""
    found = []
    for path in source.c_files(f"kmod/{SHARED_PAGES}"):
        text = source.code(path)
        for hit in REGION.finditer(text):
            place = f"{source.name(path)}:{source.line_of(text, hit.start())}"
            found.append(f"{place}: {' '.join(hit[0].split())}: a region's, and {SHARED_PAGES} knows none")
    return found


def netlink() -> list[str]:
    """Nobody depends on obs's half that people look through."""
    return [
        f"{source.name(path)}:{line}: {included}"
        for path in source.c_files("kmod")
        for line, kind, included in _includes(path)
        if kind == '"' and Path(included).name == "netlink.h" and path != KMOD / "main.c"
        if path != KMOD / "obs/netlink.c"
    ]


# A store to sk_prot: an assignment, or the name as the place of a store.
STORE = re.compile(
    r"\bsk_prot\s*=(?!=)"
    r"|\b(?:WRITE_ONCE|smp_store_release|smp_store_mb|rcu_assign_pointer|xchg\w*|(?:try_)?cmpxchg\w*|swap)"
    r"\s*\([^;,]*\bsk_prot\s*,"
)


# It gives sockets that are being made the native functions back.
MAKING = KMOD / "outsource/hook.c"


def sk_prot() -> list[str]:
    """A socket's functions change hands in one room."""
    found = []
    for path in source.c_files("kmod"):
        if path.parent == KMOD / "switch" or path == MAKING:
            continue
        text = source.code(path)
        for hit in STORE.finditer(text):
            place = f"{source.name(path)}:{source.line_of(text, hit.start())}"
            found.append(f"{place}: {' '.join(hit[0].split())}")
    return found


# A kernel booted with one CPU patches LOCK prefixes away, from modules too:
# these are then not atomic in memory that two VMs share. What has no LOCK
# prefix to patch is sync_*() (always there) and xchg() (locked by itself).
PATCHED = re.compile(
    r"(?<!\w)(?:(?:try_)?cmpxchg\w*|arch_\w+"
    r"|(?:atomic(?:64|_long)?|refcount)_(?!set\b|read\b)\w+"
    r"|(?:test_and_)?(?:set|clear|change)_bit\w*|(?:clear|test_and_set)_bit_(?:un)?lock)\s*\("
)
SHARED_FILES = ("kmod/ring", "kmod/transport/shared", "kmod/transport/ivshmem", "kmod/transport/xen")
# Words of this guest alone, by what the call is given.
PRIVATE = (
    (r"refcount_(?:inc|dec_and_test)\(&region->refs\)", "struct region is on our heap"),
    (r"refcount_(?:inc|dec_and_test)\(&pair->refs\)", "struct pair is on our heap"),
)


def logs() -> list[str]:
    """In transport/ a line of the log has a limit, unless no peer can cause it."""
    found = []
    for path in source.c_files("kmod/transport"):
        text = source.code(path)
        plain = [source.line_of(text, hit.start()) for hit in PLAIN_LOG.finditer(text)]
        name = str(path.relative_to(KMOD))
        if len(plain) > OWN_LINES.get(name, 0):
            found.append(f"{source.name(path)}:{plain[-1]}: use pr_*_ratelimited, or count it in OWN_LINES")
    return found


def atomics() -> list[str]:
    """Words that two VMs write are written by instructions that nobody patches."""
    found, used = [], set()
    for path in source.c_files(*SHARED_FILES):
        text = source.code(path)
        for hit in PATCHED.finditer(text):
            call = re.sub(r"\s+", " ", text[hit.start() : hit.start() + 120])
            allowed = next((pattern for pattern, _ in PRIVATE if re.match(pattern, call)), None)
            used.add(allowed)
            if not allowed:
                line = source.line_of(text, hit.start())
                shown = call.split(";")[0].strip()
                found.append(f"{source.name(path)}:{line}: {shown}: patched on one CPU")
    stale = [pattern for pattern, _ in PRIVATE if pattern not in used]
    return found + [f"tests/lint/rules.py: {pattern} is allowed, and not there any more" for pattern in stale]
