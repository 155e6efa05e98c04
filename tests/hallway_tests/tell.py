# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a person is shown of failures: how to repeat them, where the guests' logs are, what was not run."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hallway_lab.kernels import DEBUG

from .site import NOT_RUN, kernel_of, logs_of

COUNTS = "counts"  # the property of a report with what a runner of its own counted


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Add to a failure how to repeat it, and where its guests' logs are."""
    report = yield
    add_help(item, report)
    return report


def add_help(item: pytest.Item, report: pytest.TestReport) -> None:
    """Add to a failure how to repeat it, and where its guests' logs are."""
    if report.failed and not _not_run(report):
        report.sections.append(("repeat it alone", repeat(item)))
        if logs := logs_of(item):
            report.sections.append(("logs of its guests", str(logs)))


def repeat(item: pytest.Item) -> str:
    """Return the command that runs a test alone, with the same random choices."""
    debug = ["--kernel", kernel_of(item)] if kernel_of(item) in DEBUG else []
    return shlex.join(["tests/run", item.nodeid, *_options(item.config), *debug])


def _options(config: pytest.Config) -> list[str]:
    """Return the words without which a run is another one."""
    on_xen = ["--xen", config.option.xen] if getattr(config.option, "xen", None) else []
    return ["--seed", str(config.option.seed), *on_xen]


def _not_run(report: Any) -> str:
    return dict(report.user_properties).get(NOT_RUN, "") if hasattr(report, "user_properties") else ""


def pytest_report_teststatus(report: Any) -> tuple[str, str, str] | None:
    """Count a test whose site did not boot as not run."""
    if report.failed and _not_run(report):
        return "not run", "N", "NOT RUN"
    return None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any) -> Iterator[None]:
    """End with what runners of their own counted, what was not run and why, and what repeats failures."""
    yield
    reports = [report for some in terminalreporter.stats.values() for report in some]
    for report in reports:
        counted = dict(getattr(report, "user_properties", ())).get(COUNTS)
        if counted and report.when == "call":
            terminalreporter.write_line(f"{report.nodeid}: {counted}")
    not_run = terminalreporter.stats.get("not run", ())
    for reason, count in Counter(map(_not_run, not_run)).items():
        first = next(report for report in not_run if _not_run(report) == reason)
        terminalreporter.section(f"guests that did not boot: {reason.partition(':')[0]}")
        terminalreporter.write_line(first.longreprtext)
        terminalreporter.write_line(f"NOT RUN: {count} tests of {reason}", red=True)
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        words = ["tests/run", "--lf", *_options(terminalreporter.config)]
        terminalreporter.write_line(f"to repeat: {shlex.join(words)}")
