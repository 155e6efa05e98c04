# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The guests of the end-to-end tests.

A group of tests (xdist_group) shares its guests; each group runs in one worker:

    e2e-streams     a pair of VMs: connections between them
    e2e-peers       a pair of VMs: peers, module and daemon come, go and fail
    e2e-setup       a pair of VMs, and a guest that is set up wrong (test_setup_errors.py)
    e2e-configured  three VMs that hallwayd's configuration names (test_configuration.py)
    e2e-outsourcing a VM with an outsourcer, and a network outside (test_outsourcing.py)
    e2e-tunnels     a pair of VMs: AF_VSOCK between them (test_tunnels.py, test_tunnel_programs.py)
    e2e-tunnel-host two VMs, and the host as an end of tunnels (test_tunnel_host.py)
    e2e-cpus        two VMs with two CPUs each, of which hallwayd says how many are online (test_cpus.py)
    e2e-confined    a host as its users have it, in a VM (test_confined.py)
    e2e-cloud       a VM, and a guest as clouds have them (test_cloud.py)
    e2e-qemu-args   a VM of each machine, by printed words alone (test_qemu_args.py)
    e2e-secure-boot a VM, and a guest with UEFI and Secure Boot (test_secure_boot.py)
    e2e-previous    a pair of VMs of the previous release (test_previous_release.py)
    e2e-hosts       two VMs on two hosts (test_migration.py)
    e2e-outsourcing-hosts   the same, with an outsourcer on each (test_outsourced_migration.py)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from hallway_lab.emulator import FAST
from hallway_tests import cpus as scheduling
from hallway_tests import domains, hostend
from hallway_tests import outsourced as outsourcing
from hallway_tests.cpus import Cpus
from hallway_tests.hostend import HostEnd
from hallway_tests.outsourced import Outsourced
from hallway_tests.pair import Pair, booted

# Groups that are about connections and members, not about what QEMU does with devices.
CONNECTIONS = (
    *("e2e-streams", "e2e-peers", "e2e-outsourcing", "e2e-tunnels"),
    *("e2e-tunnel-host", "e2e-cpus"),
)

# On the debug kernel, the guests of these groups are searched for leaks (test_leaks.py). kmemleak makes
# guests half as fast: connections alone are searched where one guest is both ends (tests/module).
LEAKS = ("e2e-peers", "e2e-outsourcing", "e2e-tunnels")

Site = Callable[[Callable[[Path], AbstractContextManager[Any]]], Any]


@pytest.fixture
def pair(request: pytest.FixtureRequest, site: Site, kernel: str, share: Path, slow: float) -> Pair:
    """Return the pair of VMs of this group, or with --xen the two domains."""
    if request.config.option.xen:
        return site(lambda logs: domains.booted(kernel, share, logs, slow, kind=request.config.option.xen))
    return site(lambda logs: booted(kernel, share, logs, slow, **_options(request.node)))


@pytest.fixture
def outsourced(
    request: pytest.FixtureRequest, site: Site, kernel: str, share: Path, slow: float
) -> Outsourced:
    """Return a VM of a configuration with an outsourcer."""
    return site(lambda logs: outsourcing.booted(kernel, share, logs, slow, **_options(request.node)))


@pytest.fixture
def host_end(request: pytest.FixtureRequest, site: Site, kernel: str, share: Path, slow: float) -> HostEnd:
    """Return two VMs of a configuration with the host as an end of tunnels."""
    return site(lambda logs: hostend.booted(kernel, share, logs, slow, qemu=_qemu(request.node)))


@pytest.fixture
def cpus(request: pytest.FixtureRequest, site: Site, kernel: str, share: Path, slow: float) -> Cpus:
    """Return two VMs of a configuration whose CPUs hallwayd schedules."""
    return site(lambda logs: scheduling.booted(kernel, share, logs, slow, qemu=_qemu(request.node)))


def _options(item: pytest.Item) -> dict[str, Any]:
    return {"qemu": _qemu(item), "kmemleak": _group(item) in LEAKS}


def _qemu(item: pytest.Item) -> str | None:
    """Return the QEMU of a test's guests: any does for tests that are about connections alone."""
    return FAST if _group(item) in CONNECTIONS else None


def _group(item: pytest.Item) -> str:
    mark = item.get_closest_marker("xdist_group")
    return mark.args[0] if mark else ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say what tests need; run those that are marked `last` after all others of their group."""
    for item in items:
        if qemu := _qemu(item):
            item.add_marker(pytest.mark.needs(f"qemu {qemu}"))
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)
