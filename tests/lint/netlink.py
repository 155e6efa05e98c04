"""spec/netlink.yaml beside abi/hallway/netlink.h and reason.h.

The specification is for tools of the kernel's tree, the headers are what is
compiled: two hands that write one thing.
"""

from __future__ import annotations

import re

from hallway_lab.paths import REPO

YAML = REPO / "spec/netlink.yaml"
HEADER = REPO / "abi/hallway/netlink.h"
REASONS = REPO / "abi/hallway/reason.h"

# How the header's comment begins, and what the specification says then.
TYPES = {
    "string": ("string", None),
    "u8": ("u8", None),
    "u16": ("u16", None),
    "u32": ("u32", None),
    "u64": ("u64", None),
    "nest": ("nest", None),
    "flag": ("flag", None),
    "16 bytes": ("binary", 16),
    "alignment": ("pad", None),
}


def _upper(name: str) -> str:
    return name.upper().replace("-", "_")


def _section(text: str, name: str) -> str:
    hit = re.search(rf"^{name}:\n(.*?)(?=^\S|\Z)", text, re.M | re.S)
    return hit[1] if hit else ""


def _entries(section: str) -> list[str]:
    """Split a list of mappings, each of which begins with a dash of its own."""
    return re.split(r"^ +-\n(?= +name: )", section, flags=re.M)[1:]


def _field(entry: str, name: str) -> str | None:
    hit = re.search(rf'^ +{name}: "?([^"\n]*)"?$', entry, re.M)
    return hit[1] if hit else None


def _numbered(entries: list[str]) -> dict[str, tuple[int, str]]:
    """Name, number and text of each: a number is one more than the last, where none is given."""
    found, number = {}, 0
    for entry in entries:
        number = int(_field(entry, "value") or number + 1)
        found[_upper(_field(entry, "name") or "")] = number, entry
    return found


def _differ(what: str, spec: dict[str, int], header: dict[str, int]) -> list[str]:
    if not spec or not header:
        return [f"{what}: none found in the {'headers' if spec else 'specification'}"]
    names = sorted(spec.keys() | header.keys())
    return [
        f"{what} {name}: {spec.get(name)} in spec/netlink.yaml, {header.get(name)} in abi/hallway/"
        for name in names
        if spec.get(name) != header.get(name)
    ]


def agree() -> list[str]:
    """Names, numbers and types are the same."""
    text, header = YAML.read_text(), HEADER.read_text()
    # the first entry of the list is the set itself
    attributes = _numbered(_entries(_section(text, "attribute-sets"))[1:])
    commands = _numbered(_entries(_section(text, "operations")))
    defined = re.findall(r"^#define HALLWAY_(A|CMD)_(\w+)\s+(\d+)(?:\s*/\* ([^,:*]+))?", header, re.M)
    numbers = {
        kind: {name: int(number) for of, name, number, _ in defined if of == kind} for kind in ("A", "CMD")
    }
    most = numbers["A"].pop("MAX", None)
    found = _differ("attribute", {name: number for name, (number, _) in attributes.items()}, numbers["A"])
    found += _differ("command", {name: number for name, (number, _) in commands.items()}, numbers["CMD"])
    if most != max(numbers["A"].values(), default=None):
        found.append(f"HALLWAY_A_MAX is {most}")
    for of, name, _, comment in defined:
        if of != "A" or name not in attributes:
            continue
        entry = attributes[name][1]
        length = _field(entry, "exact-len")
        said = _field(entry, "type"), int(length) if length else None
        if TYPES.get(comment.strip()) != said:
            found.append(f"attribute {name}: {said} in spec/netlink.yaml, '{comment.strip()}' in the header")
    spec = dict(re.findall(r'^      - \{name: "?([\w-]+)"?, value: (\d+)\}', text, re.M))
    words = re.findall(r"^\s+R\((\d+), (\w+),", REASONS.read_text(), re.M)
    return found + _differ(
        "reason",
        {_upper(name): int(number) for name, number in spec.items()},
        {name: int(number) for number, name in words},
    )
