# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The command lines of the documents: each has a test or a reason, and is one that its program takes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterable

from hallway_lab.paths import REPO
from hallway_lab.prepare import build_host
from hallway_tests import documents
from hallway_tests.documents import LIST, Line
from hallway_tests.entry import SEARCH, TESTS, interpreter

from . import docs, source

OURS = ("hallway", "hallwayd", "make", "tests/run", "lab/run", "demo/run", "bench/run")
CODE = re.compile(rf"`((?:{'|'.join(OURS)}) [^`\n]+)`")
# The first line of `hallway status` is none.
OWN = re.compile(rf"(?:{'|'.join(OURS)}) (?![\d.]+ \()")
# What it runs has options of its own.
HANDS_OVER = ("hallway", "exec")
END = "--"  # of a program's own words
WORD = re.compile(r"[^\s()]+")
OPERATORS = ("and", "or", "not")
# These are compiled to be collected; they have no parameters that a word could mean.
COMPILED = "unit"


def listed() -> list[str]:
    """Each command line is named in documents.toml, with its test or a reason; all else there is stale."""
    found = []
    for line in documents.lines():
        place = f"{line.document}:{line.number}"
        if not line.block:
            found.append(f"{place}: mark the block: ```sh for command lines, ```text, ```toml, ...")
        elif line.block == "text" and OWN.match(line.text):
            found.append(f"{place}: a command line has a block of its own, marked sh: {line.text}")
    known = documents.listed()
    named = [command for kind in known.values() for command in kind]
    there = {line.text: line for line in documents.commands()}
    found += [
        f"{line.document}:{line.number}: no test is named in {source.name(LIST)}, and no reason: {text}"
        for text, line in there.items()
        if text not in named
    ]
    found += [f"{source.name(LIST)}: in no document: {text}" for text in named if text not in there]
    found += [f"{source.name(LIST)}: twice: {text}" for text in set(named) if named.count(text) > 1]
    for text, test in (known["run"] | known["alike"]).items():
        file, _, name = test.partition("::")
        code = (TESTS / file).read_text() if (TESTS / file).exists() else ""
        if not re.search(rf"^def {name}\(", code, re.M):
            found.append(f"{source.name(LIST)}: there is no test {test}, which runs: {text}")
        elif text in known["run"] and "documents.run_by(" not in code:
            found.append(f"{source.name(LIST)}: {test} does not take its lines from here: {text}")
    return found


def taken() -> list[str]:
    """Programs take the words: commands, options, targets of make, tests."""
    lines = [line for line in documents.commands() if OWN.match(line.text)]
    for path, number, text in docs.lines():
        lines += [Line(source.name(path), number, "", code) for code in CODE.findall(text)]
    places: dict[str, Line] = {}
    for line in lines:
        places.setdefault(line.text, line)
    tests = {text: shlex.split(text)[1:] for text in places if text.startswith("tests/run ")}
    wrong = _of_tests(tests) | _of_programs(text for text in places if text not in tests)
    bad = [line for text, line in places.items() if text in wrong]
    return [f"{line.document}:{line.number}: {line.text}: {wrong[line.text]}" for line in bad]


def _of_programs(commands: Iterable[str]) -> dict[str, str]:
    """Ask programs for help, with all words before: they complain of those that they do not know."""
    folder = build_host()
    wrong = {}
    for text in commands:
        program, *words = shlex.split(text)
        if program == "make":
            words.append("-n")
        else:
            own = words.index(END) if END in words else len(words)
            words.insert(1 if (program, words[0]) == HANDS_OVER else own, "--help")
        path = f"{folder}:{os.environ['PATH']}" if "/" not in program else os.environ["PATH"]
        done = subprocess.run(
            [program if "/" not in program else REPO / program, *words],
            cwd=REPO,
            env={**os.environ, "PATH": path, "MAKEFLAGS": ""},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            wrong[text] = " ".join(done.stderr.split())[:160] or f"exit code {done.returncode}"
    return wrong


def _of_tests(commands: dict[str, list[str]]) -> dict[str, str]:
    """Compare words for `tests/run` with its help, and with a list of all tests."""
    folders = sorted(path.parent.name for path in TESTS.glob("*/__init__.py"))
    folders = [name for name in folders if name not in ("lint", "hallway_tests", COMPILED)]
    options = set(re.findall(r"(?<!\S)--?[\w-]+", _pytest("--help", *folders)))
    names = [name.lower() for name in _pytest("--collect-only", "-q", *folders).splitlines() if "::" in name]
    for path in (TESTS / COMPILED).glob("test_*.py"):
        functions = re.findall(r"^def (test_\w+)", path.read_text(), re.M)
        names += [f"{COMPILED}/{path.name}::{name}" for name in functions]
    wrong = {}
    for text, words in commands.items():
        chosen, places, before = names, list[str](), ""
        for word in words:
            if word.startswith("-") and word not in options:
                wrong[text] = f"tests/run has no option {word}"
            elif before == "-k":
                chosen = [name for name in chosen if _is_meant(word, name)]
            elif not before and not word.startswith("-"):
                places.append(word.rstrip("/").lower())
            before = word if word.startswith("-") and word not in ("-x", "--lf") else ""
        if not [name for name in chosen if not places or name.startswith(tuple(places))]:
            wrong[text] = "no test is chosen"
    return wrong


def _is_meant(expression: str, name: str) -> bool:
    """Whether an expression of `-k` chooses a test."""

    def value(word: re.Match[str]) -> str:
        return word[0] if word[0] in OPERATORS else str(word[0].lower() in name)

    return bool(eval(WORD.sub(value, expression), {"__builtins__": {}}))  # of words True, False, and, or, not


def _pytest(*words: str) -> str:
    """Return what pytest says of the tests."""
    command = [interpreter(), "-B", "-m", "pytest", "-n0", "-o", "cache_dir=/dev/null/none", *words]
    done = subprocess.run(
        command,
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": SEARCH},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout
