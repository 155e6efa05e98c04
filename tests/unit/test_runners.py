# SPDX-License-Identifier: Apache-2.0 OR MIT
"""C, Rust and Spin: what has a runner of its own is one test here, with what it counted."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hallway_tests.tell import COUNTS

from .builds import CARGO

REPO = Path(__file__).resolve().parents[2]
SUMMARY = re.compile(r"^(\d+) passed, (\d+) failed$", re.M)
PROGRAMS = ("unit", "model", "threads", "discovery", "channel", "candidates", "transport", "xen", "tsan")
FUZZERS = ("fuzz_ring", "fuzz_record", "fuzz_frame", "fuzz_message", "fuzz_transport", "fuzz_xen")
Run = Callable[..., str]


@pytest.fixture
def run(record_property: Callable[[str, object], None], pytestconfig: pytest.Config) -> Run:
    """Return a function that runs a command aside (guests go first) and returns what it printed."""

    def aside(*words: object) -> str:
        seed = str(pytestconfig.option.seed % 2**31)
        done = subprocess.run(
            ["nice", "-n", "10", *map(str, words)],
            env={**os.environ, "SEED": seed},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        print(done.stdout)
        found = SUMMARY.findall(done.stdout)
        record_property(COUNTS, f"{found[-1][0]} passed, {found[-1][1]} failed" if found else "no summary")
        assert done.returncode == 0, f"{' '.join(map(str, words))}: exit code {done.returncode}"
        return done.stdout

    return aside


@pytest.mark.xdist_group("ring")
@pytest.mark.parametrize("program", PROGRAMS + FUZZERS)
def test_ring(run: Run, program: str) -> None:
    """Ring, messages and members in user space: a program of tests/ring."""
    said = run(REPO / "tests/ring/run", program)
    assert SUMMARY.search(said), "ended before its summary"


@pytest.mark.slow
@pytest.mark.parametrize("program", FUZZERS)
def test_fuzz(run: Run, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fuzzers again, for two minutes each."""
    monkeypatch.setenv("FUZZ_SECONDS", "120")
    said = run(REPO / "tests/ring/run", program)
    assert SUMMARY.search(said), "ended before its summary"


@pytest.mark.needs("host", "unit.builds:rust")
def test_rust(run: Run, record_property: Callable[[str, object], None]) -> None:
    """The host's Rust code: cargo test."""
    said = run(*CARGO)
    counted = re.findall(r"^test result: \w+\. (\d+) passed; (\d+) failed", said, re.M)
    assert counted, "cargo counted nothing"
    passed, failed = (sum(map(int, column)) for column in zip(*counted, strict=True))
    record_property(COUNTS, f"{passed} passed, {failed} failed")


@pytest.mark.slow  # five minutes of one CPU, which guests have first
@pytest.mark.timeout(1800)
def test_model(run: Run) -> None:
    """The protocol, verified by Spin; every broken variant is caught."""
    said = run(REPO / "spec/model/run")
    assert SUMMARY.search(said), "ended before its summary"
