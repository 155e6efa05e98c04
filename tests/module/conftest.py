# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Tests that run in a guest: collected here, run by pytest there, and reported here.

`guest/` is collected as it lies, once for each kernel; its fixtures and tests
run in the guest alone (guest_run.py). So all of pytest's choices (-k, -m, --lf,
node ids) work on them, and -x, --durations and junit, too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hallway_lab.emulator import FAST
from hallway_tests.guests import share_folder, slowness
from hallway_tests.site import group_of, kernel_of, site_of
from hallway_tests.suite import GuestLost
from hallway_tests.tell import add_help

from . import guest_run
from .guest_run import Guest

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _on_kernel(kernel: str) -> None:
    """Run each test on each kernel."""


@pytest.fixture
def guest(site: Callable[..., Any], kernel: str, share: Path, slow: float) -> Guest:
    """Return the guest."""
    return site(lambda logs: guest_run.booted(kernel, share, logs, slow))


def _in_guest(item: pytest.Item) -> bool:
    return item.path.is_relative_to(HERE / "guest")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests in one guest are a group."""
    for item in filter(_in_guest, items):
        item.add_marker(pytest.mark.xdist_group("module"))
        item.add_marker(pytest.mark.needs(f"qemu {FAST}"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Report a test as its guest reports it."""
    if not _in_guest(item) or item.get_closest_marker("skip"):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _reports(item):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    site_of(item).leave(nextitem)
    return True


def _reports(item: pytest.Item) -> list[pytest.TestReport]:
    """Return the reports of a test's phases; or one, of a guest that did not boot or was lost."""
    setup = _call(lambda: _running(item), "setup")
    if setup.excinfo:
        return [item.ihook.pytest_runtest_makereport(item=item, call=setup)]
    call = _call(lambda: _reported(item, setup.result), "call")
    if call.excinfo:
        return [item.ihook.pytest_runtest_makereport(item=item, call=call)]
    return call.result


def _call(action: Callable[[], Any], when: Any) -> pytest.CallInfo[Any]:
    return pytest.CallInfo.from_call(action, when=when, reraise=(pytest.exit.Exception, KeyboardInterrupt))


def _running(item: pytest.Item) -> Guest:
    """Return the guest, which runs this test and those of its group that follow."""
    kernel = kernel_of(item)
    slow = slowness(kernel)
    share = share_folder(kernel)
    guest = site_of(item).get(item, lambda logs: guest_run.booted(kernel, share, logs, slow))
    if not guest.running:
        items = item.session.items[item.session.items.index(item) :]
        mine = [one for one in items if _in_guest(one) and group_of(one) == group_of(item)]
        guest.start([_name_in_guest(one) for one in mine if not one.get_closest_marker("skip")])
    return guest


def _reported(item: pytest.Item, guest: Guest) -> list[pytest.TestReport]:
    """Return what the guest reports of a test, once its kernel has been judged."""
    sites, lost = site_of(item), ""
    try:
        said = list(guest.reports(_name_in_guest(item)))
        sites.judge(failed=False)
    except GuestLost as error:
        sites.lose(error)
        lost = str(error)
    if lost:
        pytest.fail(lost, pytrace=False)
    reports = [item.config.hook.pytest_report_from_serializable(config=item.config, data=one) for one in said]
    for report in reports:
        report.nodeid, report.location = item.nodeid, item.location
        if isinstance(report.longrepr, list):  # JSON knows no tuples
            report.longrepr = tuple(report.longrepr)
        add_help(item, report)
    return reports


def _name_in_guest(item: pytest.Item) -> str:
    """Return the node id that a test has in the guest, where there is one kernel alone."""
    kernel = kernel_of(item)
    rest = item.callspec.id.removeprefix(kernel).removesuffix(kernel).strip("-")
    return item.nodeid.partition("[")[0] + (f"[{rest}]" if rest else "")
