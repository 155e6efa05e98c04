# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A host, then its guests, are upgraded from the previous release while a stream runs."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hallway_lab.paths import REPO
from hallway_tests import packages
from hallway_tests.guests import AT_ONCE, Delta, Stream, insmod, rmmod, wait_members
from hallway_tests.packages import Root
from hallway_tests.pair import Pair, booted
from hallway_tests.versions import PREVIOUS_ABI, previous_binaries

from .conftest import Site

pytestmark = [
    *(pytest.mark.xdist_group("e2e-previous"), pytest.mark.slow, pytest.mark.kernel("6.1")),
    pytest.mark.needs("hallway_tests.versions:build_previous", "hallway_tests.packages:prepare"),
]

CONNECTIONS = 4


@dataclass
class Installed:
    """Two VMs, and the root in which their host's programs are installed."""

    pair: Pair
    root: Root

    def healthy(self) -> None:
        """Fail if a guest complained."""
        self.pair.healthy()


@contextlib.contextmanager
def _previous(kernel: str, share: Path, logs: Path, slow: float) -> Iterator[Installed]:
    with packages.root() as root:
        sbin = root.path / "usr/sbin"
        for name in ("hallwayd", "hallway"):
            shutil.copy(previous_binaries() / name, sbin)
        with booted(kernel, share, logs, slow, binaries=sbin) as pair:
            for vm in pair.both:
                vm.run("cp /hallway/previous/hallway /usr/local/bin/hallway")
                insmod(vm, file="previous/hallway.ko", **AT_ONCE)
            wait_members(*pair.both)
            yield Installed(pair, root)


@pytest.fixture
def installed(site: Site, kernel: str, share: Path, slow: float) -> Installed:
    """Return a host and two guests of the previous release."""
    return site(lambda logs: _previous(kernel, share, logs, slow))


def _abi() -> str:
    """Return the version of the ABI of this tree."""
    header = (REPO / "abi/hallway/constants.h").read_text()
    return ".".join(re.findall(rf"#define HALLWAY_{name} (\d+)", header)[0] for name in ("MAJOR", "MINOR"))


def test_upgraded_by_package(installed: Installed) -> None:
    """The package replaces hallwayd, and the next one takes over; then each guest gets its module."""
    pair, daemon = installed.pair, installed.pair.site.daemon
    assert daemon.status()["abi"] == PREVIOUS_ABI != _abi()
    stream = Stream(pair.b, pair.a, conns=CONNECTIONS, stall=60)
    pair.wait_on_rings(CONNECTIONS)
    before = Delta(*pair.both)
    installed.root.install("hallway-host")
    stream.check_running("with the new package, and the old hallwayd")
    # What systemd does once the package is there, which the root does not have.
    daemon.kill(15)
    daemon.binaries = installed.root.path / "usr/bin"
    (daemon.binaries / "hallwayd").symlink_to("../sbin/hallwayd")
    daemon.start()
    assert daemon.status()["abi"] == _abi()
    wait_members(*pair.both)
    stream.check_running("with the new hallwayd")
    pair.wait_on_rings(CONNECTIONS)
    pair.wait_read_from_rings(CONNECTIONS)
    for vm in pair.both:
        moved = before.of(vm)
        assert moved["tx_bytes_ring"] > 10 * moved["tx_bytes_tcp"], f"{vm.name} left its rings"
        assert not moved["resets"] and not moved["tx_demoted"], vm.name
    for vm in pair.both:
        rmmod(vm)
        vm.run("cp /hallway/hallway /usr/local/bin/hallway")
        insmod(vm, **AT_ONCE)
        wait_members(*pair.both)
        stream.check_running(f"with the new module in {vm.name}")
        pair.wait_on_rings(CONNECTIONS)
    delta = Delta(*pair.both)
    pair.wait_read_from_rings(CONNECTIONS)
    stream.stop()
    stream.finish(60 * pair.slow)
    pair.check_counters(delta)
