# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Daemon and modules are replaced by those of another minor version, under streams."""

from __future__ import annotations

from pathlib import Path

import pytest
from hallway_lab.vm import VM
from hallway_tests.guests import AT_ONCE, Delta, Stream, insmod, rmmod, wait_members
from hallway_tests.pair import Pair
from hallway_tests.versions import newer_binaries

pytestmark = [
    pytest.mark.xdist_group("e2e-peers"),
    pytest.mark.slow,
    pytest.mark.needs("hallway_tests.versions:build_newer"),
]


@pytest.mark.slow_on("6.12")
def test_upgrade(pair: Pair) -> None:
    """The daemon, then each module, becomes newer, and older again: streams go on by rings."""
    pair.load(**AT_ONCE)
    daemon = pair.site.daemon
    older, version = daemon.binaries, daemon.status()["abi"]
    stream = Stream(pair.b, pair.a, conns=4, stall=60)
    pair.wait_on_rings(4)

    def replace_daemon(binaries: Path) -> None:
        before = Delta(*pair.both)
        daemon.kill(9)
        daemon.binaries = binaries
        daemon.start()
        wait_members(*pair.both)
        stream.check_running("with another daemon")
        pair.wait_on_rings(4)
        pair.wait_read_from_rings(4)
        for vm in pair.both:
            moved = before.of(vm)
            assert moved["tx_bytes_ring"] > 10 * moved["tx_bytes_tcp"], f"{vm.name} left its rings"

    def replace_module(vm: VM, file: str) -> None:
        rmmod(vm, 60 * pair.slow)
        insmod(vm, file=file, **AT_ONCE)
        wait_members(*pair.both)
        stream.check_running(f"with another module in {vm.name}")
        pair.wait_on_rings(4)

    try:
        replace_daemon(newer_binaries())
        assert daemon.status()["abi"] != version, "the newer daemon speaks the same version"
        for vm in pair.both:
            replace_module(vm, "newer/hallway.ko")
        replace_daemon(older)
        for vm in pair.both:
            replace_module(vm, "hallway.ko")
    finally:
        if daemon.binaries != older:
            daemon.kill(9)
            daemon.binaries = older
            daemon.start()
    delta = Delta(*pair.both)
    pair.wait_read_from_rings(4)
    stream.stop()
    stream.finish(60 * pair.slow)
    pair.check_counters(delta)
