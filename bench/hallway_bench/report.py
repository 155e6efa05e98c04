# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What remains of benchmarks: a folder with a page, and a table of all samples and a plot for each kind.

`make bench` writes out/benchmarks, of whatever was measured with the sources of now. `make
bench-results` writes docs/benchmarks, of records of one revision that is in a commit.
"""

from __future__ import annotations

from pathlib import Path

from hallway_lab import modbuild, paths, results, summary
from hallway_lab.summary import BENCHMARKS, Chapters
from hallway_lab.venv import use

MATPLOTLIB = "matplotlib==3.11.2"
PUBLISHED = paths.REPO / "docs/benchmarks"
PAGE = "README.md"


def prepare() -> None:
    """Have the libraries of tables and plots; fetched once, so call it before a run leaves the network."""
    results.prepare()
    use("plots", MATPLOTLIB)


def keep() -> Path:
    """Write out/benchmarks, of all records of the sources of now; return its page."""
    revision = modbuild.revision()
    chapters = summary.find_chapters(revision, BENCHMARKS)
    return _write(paths.out("benchmarks", PAGE).parent, revision, chapters, "Written by `make bench`.")


def publish(revision: str = "") -> Path:
    """Write docs/benchmarks, of all records of this revision, or of that of the sources."""
    revision = revision or modbuild.revision()
    chapters = summary.collect(revision, BENCHMARKS)
    return _write(PUBLISHED, revision, chapters, "Written by `make bench-results`.")


def _write(folder: Path, revision: str, chapters: Chapters, about: str) -> Path:
    from . import plots  # not before matplotlib is available

    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.csv"), *folder.glob("*.svg")):
        old.unlink()
    for kind, records in chapters:
        results.write_samples(folder / f"{kind.name}.csv", records)
    drawn = list(plots.draw([one for _, records in chapters for one in records], folder))
    about += " The .csv files beside this page have the samples and the command of each row."
    page = summary.page("Benchmarks", revision, chapters, about)
    page += "".join(f"\n![{path.stem}]({path.name})\n" for path in drawn)
    (folder / PAGE).write_text(page)
    return folder / PAGE
