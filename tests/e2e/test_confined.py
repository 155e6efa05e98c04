# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Hallway on a host as its users have it: systemd starts all, and AppArmor confines libvirt and QEMU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hallway_lab import verdict
from hallway_lab.emulator import FAST
from hallway_lab.paths import REPO
from hallway_tests import confined as hosts
from hallway_tests import packages
from hallway_tests.confined import GUESTS, IMAGES, NAMES, PATIENCE, SITE, Confined
from hallway_tests.suite import wait_for

from .conftest import Site

pytestmark = [
    *(pytest.mark.xdist_group("e2e-confined"), pytest.mark.kernel("6.1"), pytest.mark.timeout(1800)),
    pytest.mark.needs("image libvirt", f"qemu {FAST}", "hallway_tests.packages:prepare"),
    # Beside other guests on few CPUs, VMs that are emulated twice are too slow.
    pytest.mark.slow,
]

# Such a group has memory before its members talk.
SHARED = ("--shared", "8M", "--slots", "3")
ENOUGH = 50_000  # bytes: the guests are emulated twice
ADDRESSES = ("10.9.0.1", "10.9.0.2")  # of GUESTS


@pytest.fixture
def confined(site: Site, kernel: str, share: Path) -> Confined:
    """Return the host."""
    return site(lambda logs: hosts.booted(kernel, share, logs))


@pytest.fixture
def enabled(confined: Confined) -> Iterator[Confined]:
    """Have both domains enabled for a test."""
    try:
        said = confined.host.call("hallway", "enable", *SHARED, *NAMES)
        for name in NAMES:
            assert f"{name}: enabled in group default; ready for its next start" in said, said
        yield confined
    finally:
        confined.sweep()


def _check_confined(confined: Confined) -> None:
    """QEMU and libvirtd are confined, and QEMU has a user of its own."""
    for name in NAMES:
        pid = confined.qemu(name)
        assert confined.label(pid) == f"libvirt-{confined.uuid(name)} (enforce)"
        assert confined.user(pid) == "libvirt-qemu"
    daemon = int(confined.host.call("systemctl", "show", "--value", "--property=MainPID", "libvirtd"))
    assert confined.label(daemon) == "libvirtd (enforce)"


def test_joined(enabled: Confined) -> None:
    """Two domains get ring memory by two commands, and AppArmor denies nothing."""
    before = enabled.denials()
    for name in NAMES:
        enabled.begin(name)
    _check_confined(enabled)
    for name in NAMES:
        enabled.join(name)
    assert enabled.denials() == before
    assert "all is well" in enabled.doctor(), enabled.doctor()


@pytest.fixture
def running(confined: Confined) -> Iterator[Confined]:
    """Have both guests run for a test, by the two commands of README.md; nothing is denied meanwhile."""
    before = confined.denials()
    with confined.bridged():
        try:
            for name, own, peer in zip(GUESTS, ADDRESSES, reversed(ADDRESSES), strict=True):
                confined.define_guest(name, own, peer)
            said = confined.host.call("hallway", "enable", *GUESTS)
            assert said.count("enabled in group default; ready for its next start") == len(GUESTS), said
            for name in GUESTS:
                confined.host.virsh("start", name)
            _wait_carried(confined, "at first")
            yield confined
            assert confined.denials() == before
            for name in GUESTS:
                confined.judge_guest(name)
        finally:
            confined.sweep()


def _wait_carried(confined: Confined, when: str) -> None:
    wait_for(lambda: _both_carried(confined), f"rings carry bytes both ways {when}", 400, 5)


def _both_carried(confined: Confined) -> bool:
    moved = confined.carried()
    return len(moved) == len(GUESTS) and all(min(one) > ENOUGH for one in moved)


def _wait_missed(confined: Confined) -> None:
    """Wait until one of both guests is no member: what was carried since is then another's."""
    wait_for(lambda: len(confined.carried()) < len(GUESTS), "a guest is no member", PATIENCE)


def test_saved(running: Confined) -> None:
    """Guests have promoted connections, also after `virsh save` and restore."""
    assert "all is well" in running.doctor(), running.doctor()
    name, saved = GUESTS[0], f"{IMAGES}/saved"
    running.host.call("hallway", "release", name, "--", "virsh", "save", name, saved)
    assert running.state(name) == "shut off"
    _wait_missed(running)
    running.host.virsh("restore", saved)
    _wait_carried(running, "after it was restored")


def test_snapshot(running: Confined) -> None:
    """A guest has rings again after a snapshot, and after it was reverted to that."""
    name = GUESTS[1]
    running.host.call("hallway", "release", name, "--", "virsh", "snapshot-create-as", name, "then")
    _wait_carried(running, "after a snapshot")
    before = running.qemu(name)
    running.host.virsh("snapshot-revert", name, "then")
    assert running.qemu(name) != before, "the QEMU with ring memory goes on"
    _wait_carried(running, "after the revert")


def test_two_hosts(running: Confined, kernel: str, share: Path) -> None:
    """A guest migrates to another host where AppArmor enforces, and comes back: it has rings again."""
    name = GUESTS[0]
    with hosts.two_hosts(running, kernel, share) as there:
        there.await_guest(name, running.xml(name))
        running.judge_guest(name)
        running.migrate(name, there)
        _wait_missed(running)
        assert there.state(name) == "running"
        assert there.label(there.qemu(name)) == f"libvirt-{there.uuid(name)} (enforce)"
        sent = there.forwarded()
        wait_for(lambda: there.forwarded() > sent + ENOUGH, "it sends bytes from there", PATIENCE)
        assert verdict.scan(there.console(name)).ok
        there.migrate(name, running)
        _wait_carried(running, "after it came back")
        assert there.state(name) == "shut off"
        assert not there.denials()
        there.healthy()


def test_played(confined: Confined) -> None:
    """Ansible's role enables the domains that it is given, and changes nothing when it runs again."""
    words = {"hallway_role": "host", "hallway_packages": "/hallway"}
    words["hallway_groups"] = {"default": list(NAMES)}
    try:
        confined.host.put(packages.play("/hallway/hallway", **words), "/tmp/play.yml")
        first, second = (confined.host.call(*packages.PLAY) for _ in range(2))
        assert re.search(r"changed=[1-9].*failed=0", first), first
        assert all("ivshmem-doorbell" in confined.xml(name) for name in NAMES)
        assert re.search(r"changed=0 .*failed=0", second), second
    finally:
        confined.sweep()


def test_disabled(confined: Confined) -> None:
    """What was enabled and disabled is for libvirt as it was before."""
    try:
        confined.host.call("hallway", "enable", *SHARED, *NAMES)
        assert all("ivshmem-doorbell" in confined.xml(name) for name in NAMES)
        confined.host.call("hallway", "disable", *NAMES)
        assert {name: confined.xml(name) for name in NAMES} == confined.defined
    finally:
        confined.sweep()


@pytest.mark.last  # doctor finds what it has denied
def test_by_hand(enabled: Confined) -> None:
    """A domain opens a region's file with the rules of docs/install.md, and not without them."""
    name, file = NAMES[0], "/dev/shm/hallway/r"
    add = f"object_add memory-backend-file,id=r,share=on,size=1M,mem-path={file}"
    site, before = enabled.host.get(SITE), enabled.denials()
    try:
        enabled.host.run(f"mkdir -p /dev/shm/hallway; truncate -s 1M {file}; chmod 666 {file}")
        enabled.begin(name)
        assert "Permission denied" in enabled.monitor(name, add)
        assert any(file in line for line in enabled.denials()[len(before) :])
        assert f"AppArmor has denied {file} to a QEMU" in enabled.doctor()
        enabled.host.virsh("destroy", name)
        enabled.host.put(site + _rules(), SITE)
        enabled.begin(name)
        assert not enabled.monitor(name, add).strip()
    finally:
        enabled.host.put(site, SITE)
        enabled.host.run("rm -r /dev/shm/hallway")


def _rules() -> str:
    text = (REPO / "docs/install.md").read_text()
    blocks = re.findall(r"^```text\n(.*?)^```$", text, re.M | re.S)
    return next(block for block in blocks if block.endswith(".qmp rw,\n"))


def test_rebooted(enabled: Confined) -> None:
    """After a reboot of the host its domains start by themselves, and get ring memory again."""
    try:
        for name in NAMES:
            enabled.host.virsh("autostart", name)
        enabled.host.reboot()
        for name in NAMES:
            wait_for(lambda: enabled.state(name) == "running", f"{name} runs", PATIENCE)  # noqa: B023
            enabled.host.virsh("suspend", name)
            enabled.join(name)
        _check_confined(enabled)
        assert not enabled.denials()
    finally:
        for name in NAMES:
            enabled.host.virsh("autostart", "--disable", name)
