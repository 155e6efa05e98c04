# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Sites: the guests that the tests of one group share.

Tests of a group (`pytest.mark.xdist_group`) on one kernel run one after the
other in one worker. The first one boots their site, the last one ends it. After
each test the site is judged: a guest that is gone, or whose kernel complained,
fails the test, and the next test boots the site again. A site that does not
boot is not tried again: the group's other tests are "not run".

A suite's fixture for its guests asks for its site like this:

    @pytest.fixture
    def pair(site, kernel, share, slow):
        return site(lambda logs: booted(kernel, share, logs, slow))

`booted` is a context manager that boots guests with their logs in the folder
`logs`. What it yields has `healthy()`, which raises GuestLost, and may have
`sweep()`, which ends what a failed test left behind: without it, the guests end
after a test that failed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest
from hallway_lab import isolate, paths

from .suite import GuestLost

BOOTS = 3  # times that a group's guests are booted, if tests lose them
NOT_RUN = "not_run"  # the property of a report whose test was not run, with the reason
Boot = Callable[[Path], AbstractContextManager[Any]]


def kernel_of(item: pytest.Item) -> str:
    """Return the kernel that a test runs on; "" if it boots none."""
    callspec = getattr(item, "callspec", None)
    return str(callspec.params.get("kernel", "")) if callspec else ""


def group_of(item: pytest.Item) -> str:
    """Return the name of the group that a test belongs to; a test without a mark is one of its own."""
    mark, kernel = item.get_closest_marker("xdist_group"), kernel_of(item)
    if not mark:
        return item.nodeid
    return f"{mark.args[0]}-{kernel}" if kernel else str(mark.args[0])


class Sites:
    """The site that this process has booted, if any, and those that it could not boot."""

    def __init__(self) -> None:
        self.group = ""
        self.stage: Any = None
        self.logs: Path | None = None
        self._stack = ExitStack()
        self._boots: Counter[str] = Counter()
        self._broken: dict[str, str] = {}

    def get(self, item: pytest.Item, boot: Boot) -> Any:
        """Return what the group of a test shares, booted if need be."""
        group = group_of(item)
        item.stash[_used] = True
        if self.group != group:
            self.close()
            if group not in self._broken:
                self._boot(item, group, boot)
        if group in self._broken:
            self._not_run(item, group)
            pytest.fail(f"not run: {self._broken[group]}", pytrace=False)
        return self.stage

    def _boot(self, item: pytest.Item, group: str, boot: Boot) -> None:
        if self._boots[group] == BOOTS:
            self._broken[group] = f"its guests were lost {BOOTS} times"
            return
        self._boots[group] += 1
        again = f".{self._boots[group]}" if self._boots[group] > 1 else ""
        self.group, self.logs = group, folder(f"{group}{again}")
        try:
            self.stage = self._stack.enter_context(boot(self.logs))
        except Exception as error:
            self._broken[group] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            self._not_run(item, group)
            self.close()
            raise

    def _not_run(self, item: pytest.Item, group: str) -> None:
        item.user_properties.append((NOT_RUN, f"{group}: {self._broken[group]}"))

    def leave(self, nextitem: pytest.Item | None) -> None:
        """End the site unless the next test is of its group."""
        if self.group and (nextitem is None or group_of(nextitem) != self.group):
            self.close()

    def close(self) -> None:
        """End the site."""
        stack, self._stack = self._stack, ExitStack()
        self.group, self.stage = "", None
        stack.close()

    def lose(self, why: BaseException) -> None:
        """End a site with a guest that is lost."""
        stack, self._stack = self._stack, ExitStack()
        self.group, self.stage = "", None
        with contextlib.suppress(Exception):
            stack.__exit__(type(why), why, why.__traceback__)

    def judge(self, failed: bool) -> None:
        """Raise GuestLost if a guest is gone or its kernel complained; else make ready for the next test.

        A site that cannot be swept is ended after a test that failed.
        """
        sweep = getattr(self.stage, "sweep", None)
        try:
            if failed and sweep:
                with contextlib.suppress(Exception):
                    sweep()
            self.stage.healthy()
        except GuestLost as lost:
            self.lose(lost)
            raise
        if failed and not sweep:
            self.lose(GuestLost("a test failed that may have left anything behind"))


_sites = pytest.StashKey[Sites]()
_used = pytest.StashKey[bool]()


def folder(group: str) -> Path:
    """Return an empty folder for the logs of a group's guests."""
    made = paths.out("tests", "logs", group.replace("/", "-").replace("::", "-"))
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    return made


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Callable[[Boot], Any]:
    """Return the function by which a suite's fixture gets the site of its group."""
    sites = request.config.stash[_sites]

    return lambda boot: sites.get(request.node, boot)


@pytest.fixture
def logs(request: pytest.FixtureRequest) -> Path:
    """Return the folder with the logs of this test's guests; a test without a site gets one of its own."""
    return logs_of(request.node) or folder(request.node.nodeid)


def site_of(item: pytest.Item) -> Sites:
    """Return what this process has booted."""
    return item.config.stash[_sites]


def logs_of(item: pytest.Item) -> Path | None:
    """Return the folder with the logs of a test's site."""
    return site_of(item).logs if item.stash.get(_used, False) else None


def pytest_configure(config: pytest.Config) -> None:
    """Have no site yet."""
    config.stash[_sites] = Sites()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Leave the machine's network, where tests run: in a worker, or in a run without workers."""
    option = session.config.option
    controls = not hasattr(session.config, "workerinput") and option.dist != "no"
    if controls or option.collectonly or not session.items:
        return
    if "HALLWAY_TEST_PLAN" not in os.environ:
        raise pytest.UsageError("start the tests by tests/run: it prepares what they need")
    isolate.cut_off()
    os.environ["TMPDIR"] = tempfile.mkdtemp()
    tempfile.tempdir = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Judge the site after each test, as part of the test."""
    failure: BaseException | None = None
    try:
        yield
    except (KeyboardInterrupt, pytest.exit.Exception):
        raise
    except BaseException as error:
        failure = error
    if site_of(item).stage is not None and item.stash.get(_used, False):
        try:
            site_of(item).judge(failed=failure is not None)
        except GuestLost as lost:
            raise lost from failure
    if failure:
        raise failure


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """End the site after the last test of its group."""
    try:
        yield
    finally:
        site_of(item).leave(nextitem)
