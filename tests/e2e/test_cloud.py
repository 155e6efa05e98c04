# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A guest as its users have it: cloud-init installs the package, DKMS builds, udev loads."""

from __future__ import annotations

from pathlib import Path

import pytest
from hallway_lab.emulator import FAST
from hallway_tests import cloud
from hallway_tests.guests import AT_ONCE, insmod, loaded, wait_members
from hallway_tests.pair import Pair
from hallway_tests.suite import wait_for

from .conftest import Site

pytestmark = [
    *(pytest.mark.xdist_group("e2e-cloud"), pytest.mark.kernel("6.1"), pytest.mark.timeout(3600)),
    pytest.mark.needs("image cloud", f"qemu {FAST}", "hallway_tests.packages:prepare"),
    # A compiler is emulated.
    pytest.mark.slow,
]


@pytest.fixture
def cloud_pair(site: Site, kernel: str, share: Path, slow: float) -> Pair:
    """Return a VM of the lab, and the guest after its first boot."""
    return site(lambda logs: cloud.booted(kernel, share, logs, slow))


def test_first_boot(cloud_pair: Pair, slow: float) -> None:
    """cloud-init's user data give a guest rings at its first boot; udev loads the module at the next one."""
    vm = cloud_pair.b
    said = vm.run("cat /var/log/cloud-init-output.log").out
    assert vm.run("cloud-init status", check=False).out.strip() == "status: done", said
    assert vm.run("modinfo -F filename hallway").out.startswith("/lib/modules/"), said
    # DKMS signs with a key of its own, which Secure Boot needs.
    assert vm.run("modinfo -F signer hallway").out.strip() == "DKMS module signing key"
    insmod(cloud_pair.a, **AT_ONCE)
    _check_rings(cloud_pair)
    cloud.reboot(vm)
    wait_for(lambda: loaded(vm), "udev loads the module", 60 * slow)
    _check_rings(cloud_pair)


def _check_rings(pair: Pair) -> None:
    """Connections between both go through rings."""
    wait_members(*pair.both)
    pair.stream_on_rings(*pair.both, conns=2, enough=300_000)
