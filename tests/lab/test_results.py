# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The store of results, its tables, and what may be on the page of docs/."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from hallway_lab import measure, modbuild, paths, results, summary
from hallway_lab.results import Figure, Record, figure
from hallway_lab.sh import LabError

SAMPLE = Record(
    key="wget-steady",
    name="nginx → wget",
    kernel="6.1",
    release="6.1.0-56-amd64",
    revision="abc1234",
    date="2026-11-23",
    machine="TCG, 2 CPUs",
    verdict="ok",
    figures={"carrier": "steady", "in rings →": figure("B", 33_600_000), "took": figure("s", 0.2, 0.1, 1.5)},
    notes=("a | b",),
    details={"counters": {"attached": 2}},
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the store and the page in a folder of the test's."""
    monkeypatch.setattr(paths, "OUT", tmp_path)
    monkeypatch.setattr(summary, "PAGE", tmp_path / "results.md")
    return tmp_path


def test_record_survives_the_store(folder: Path) -> None:
    """A record is read as it was kept."""
    results.keep("programs", SAMPLE)
    assert results.read("programs") == [SAMPLE]
    assert results.read("suites") == []


def test_last_record_counts(folder: Path) -> None:
    """The last record of a key on a kernel counts, each revision by itself."""
    later = replace(SAMPLE, verdict="FAILED", faults=("no",))
    other = replace(SAMPLE, kernel="6.12")
    newer = replace(SAMPLE, revision="def5678")
    for one in (SAMPLE, later, other, newer):
        results.keep("programs", one)
    assert results.read("programs") == [newer, other]
    assert results.read("programs", "abc1234") == [later, other]


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (figure("", 20), "20"),
        (figure("B", 999), "999 B"),
        (figure("B", 999_999_999_999), "1000.0 GB"),
        (figure("%", 0.99999), "99.9 %"),
        (figure("s", 0.182), "182 ms"),
        (figure("s", 3, 1, 0.25), "1.0 s (250 ms to 3.0 s)"),
        (figure("×", 4.256), "4.26×"),
        (figure("MB/s", 1234.5), "1 234 MB/s"),
        (figure("1/s", 300, 500, 200, 100), "250 (100 to 500) 1/s"),
    ],
)
def test_figures(made: Figure, text: str) -> None:
    """Figures are medians with their range, in the unit that people read best."""
    assert str(made) == text


@pytest.mark.parametrize(
    ("samples", "part", "value"),
    [((7,), 0.99, 7), ((3, 1), 0.5, 2), ((4, 1, 3, 2, 5), 0.1, 1.4), ((1, 2), 1, 2), ((2, 1), 0, 1)],
)
def test_quantiles(samples: tuple[float, ...], part: float, value: float) -> None:
    """A quantile lies between the two samples next to it; its ends are the lowest and the highest."""
    assert figure("s", *samples).quantile(part) == pytest.approx(value)


def test_samples_as_csv(tmp_path: Path) -> None:
    """Each figure is a line with its quantiles, all of its samples, and what a paper says."""
    figures = SAMPLE.figures | {"paper": "XWAY: 3.6×"}
    sample = replace(SAMPLE, figures=figures, details={"command": "wget, -q"})
    results.write_samples(tmp_path / "one.csv", [sample])
    with open(tmp_path / "one.csv", newline="") as file:
        carried, took = csv.DictReader(file)
    assert (carried["figure"], carried["unit"], carried["median"]) == ("in rings →", "B", "33600000")
    assert (took["figure"], took["lowest"], took["median"], took["highest"]) == ("took", "0.1", "0.2", "1.5")
    assert took["samples"] == "0.2 0.1 1.5"
    assert (took["command"], took["revision"]) == ("wget, -q", "abc1234")
    assert carried["paper"] == took["paper"] == "XWAY: 3.6×"


def test_page_leaves_benchmarks_out(folder: Path) -> None:
    """Benchmarks have a page of their own."""
    for kind in ("bench", "programs"):
        results.keep(kind, SAMPLE)
    summary.write("abc1234")
    assert summary.KINDS["bench"].title not in summary.PAGE.read_text()


def test_table() -> None:
    """Columns are fields, figures, or all other figures; what a record lacks is a dash."""
    shown = results.table([SAMPLE, replace(SAMPLE, figures={})], ("name", "in rings →", results.REST))
    rows = [line.split("  ") for line in shown.splitlines()[2:]]
    assert [cell.strip() for cell in rows[0] if cell] == [
        *("nginx → wget", "33.6 MB", "carrier steady; took 200 ms (100 ms to 1.5 s)")
    ]
    assert "-" in [cell.strip() for cell in rows[1]]


def test_page_of_one_revision(folder: Path) -> None:
    """The page holds records of one revision, with failures and notes below their table."""
    for one in (SAMPLE, replace(SAMPLE, key="b", faults=("first line\nrest",), revision="def5678")):
        results.keep("programs", one)
    summary.write("abc1234")
    page = summary.PAGE.read_text()
    assert "revision abc1234" in page
    assert "def5678" not in page
    assert "first line" not in page
    assert "- nginx → wget, 6.1: a | b" in page
    summary.write("def5678")
    assert "- nginx → wget, 6.1: failed: first line\n" in summary.PAGE.read_text()


def test_page_has_short_cells(folder: Path) -> None:
    """Figures without a column are in a list below the table of the page."""
    page = summary.page("Results", "abc1234", [(summary.KINDS["faults"], [SAMPLE])], "")
    assert results.REST not in page
    assert "- nginx → wget, 6.1: carrier steady; in rings → 33.6 MB; took 200 ms (100 ms to 1.5 s)\n" in page


def test_page_refuses_changed_sources(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No row of a module with uncommitted changes gets onto the page, whatever names it."""
    dirty = replace(SAMPLE, revision=f"abc1234{results.DIRTY}")
    results.keep("programs", dirty)
    monkeypatch.setattr(modbuild, "revision", lambda: dirty.revision)
    for revision in ("", dirty.revision):
        with pytest.raises(LabError, match="no commit"):
            summary.write(revision)
    with pytest.raises(LabError, match="no place for records of abc1234-dirty"):
        summary.page("Results", "abc1234", [(summary.KINDS["programs"], [dirty])], "")
    with pytest.raises(LabError, match="no record is of abc1234; there are records of: abc1234-dirty"):
        summary.write("abc1234")
    assert not summary.PAGE.exists()


@pytest.mark.parametrize(
    ("expression", "chosen"),
    [
        ("", True),
        ("STREAM", True),
        ("trip", False),
        ("stream and not 64", False),
        ("trip or (stream-64)", True),
    ],
)
def test_selection(expression: str, chosen: bool) -> None:
    """-k of bench and demo means what pytest's means."""
    assert measure.matches(expression, "stream-64") is chosen
