# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Two VMs as virt-install defines them: `hallway enable` is all that they need on the host."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hallway_lab.libvirt import Installed
from hallway_lab.sh import LabError, run
from hallway_tests import enabled
from hallway_tests.enabled import Domains, EnabledHost, make_disk
from hallway_tests.guests import AT_ONCE, Delta, Stream, insmod, rmmod, settle_in
from hallway_tests.streams import CALM
from hallway_tests.suite import wait_for

from .conftest import Site

pytestmark = [
    *(pytest.mark.xdist_group("e2e-libvirt"), pytest.mark.needs("libvirt")),
    # libvirt of Debian 12 is made for its QEMU, and guests of 6.12 need a newer one.
    *(pytest.mark.kernel("6.1"), pytest.mark.timeout(900)),
]

LET_GO = 60  # seconds
ENOUGH = 20_000  # bytes


@pytest.fixture
def domains(site: Site, kernel: str, share: Path, slow: float) -> Domains:
    """Return two VMs that are enabled, and run."""
    return site(lambda logs: enabled.booted(kernel, share, logs, slow))


def test_two_commands(domains: Domains) -> None:
    """Connections of VMs as virt-install makes them go through rings once both are enabled."""
    for vm in domains.vms:
        assert "pcie-root" in domains.host.libvirt.virsh("dumpxml", vm.name), "it is no q35"
        wait_for(lambda: domains.host.daemon.machine(vm)["connected"], f"{vm.name}'s monitor")  # noqa: B023
        assert domains.host.daemon.machine(vm)["monitor"] == "libvirt"
    domains.check_streams()


def test_shown(domains: Domains) -> None:
    """Doctors find nothing on the host and in the guests; metrics count what went through rings."""
    domains.check_streams()
    binary, run_dir = domains.pair.site.daemon.binaries / "hallway", domains.pair.site.daemon.run_dir
    assert "all is well" in run([binary, "doctor", "--run-dir", run_dir])
    for vm in domains.vms:
        assert "all is well" in vm.run("hallway doctor").out
    shown = run([binary, "top", "--run-dir", run_dir])
    for vm in domains.vms:
        assert re.search(rf"^{vm.name} +alive ", shown, re.M), shown
        assert "switched on: " in vm.run("hallway top --once").out
    socket = Path(os.environ["TMPDIR"]) / "metrics.sock"
    with subprocess.Popen([binary, "metrics", "--run-dir", run_dir, "--listen", socket]) as server:
        try:
            wait_for(socket.exists, "metrics are served")
            said = run(["curl", "-sS", "--unix-socket", socket, "http://hallway/metrics"])
        finally:
            server.kill()
    line = next(line for line in said.splitlines() if line.startswith("hallway_member_sent_bytes_total"))
    assert float(line.split()[-1]) > 0, said
    assert said.endswith("# EOF\n"), said


def test_restored(domains: Domains) -> None:
    """A VM releases its ring memory under a stream, is saved and restored: the stream is on rings again."""
    vm, saved = domains.vms[0], Path(os.environ["TMPDIR"]) / "domain.saved"
    with _without_share(vm), domains.streaming(vm) as stream:
        refused = domains.host.libvirt.virsh("save", vm.name, saved, check=False)
        assert "error" in refused and "ivshmem" in refused, refused
        domains.release(vm)
        _wait_on_tcp(domains)
        vm.save(saved)
        wait_for(lambda: not domains.host.daemon.machine(vm)["connected"], "its monitor is gone")
        vm.restore(saved)
        wait_for(lambda: domains.host.daemon.machine(vm)["connected"], "its monitor answers again", LET_GO)
        stream.check_running("while its VM was saved")
        _wait_on_rings(domains)
        assert not domains.host.daemon.machine(vm)["released"]


def test_migrated(domains: Domains) -> None:
    """VMs migrate under a stream to another host, have rings there once both came, and migrate back."""
    a, b = domains.vms
    with enabled.running("there", domains.pair.logs) as there, _without_share(a), _without_share(b):
        for vm in (a, b):
            _enable_there(domains.host, there, vm)
        with domains.streaming(a) as stream:
            for source, destination in ((domains.host, there), (there, domains.host)):
                _migrate(a, source, destination)
                _wait_on_tcp(domains)  # its peer is on another host
                _migrate(b, source, destination)
                _wait_on_rings(domains)
                stream.check_running("after both VMs have migrated")
                wait_for(lambda: not _connected(source), "the monitors of both are gone")  # noqa: B023
                assert all(destination.daemon.machine(vm)["plugs"] for vm in (a, b))


def _enable_there(here: EnabledHost, there: EnabledHost, vm: Installed) -> None:
    """Prepare the destination as docs/migration.md says. hallwayd has other paths there."""
    text = here.libvirt.virsh("dumpxml", "--inactive", "--security-info", vm.name)
    path = Path(os.environ["TMPDIR"]) / "there.xml"
    path.write_text(text.replace(f"{here.daemon.run_dir}/", f"{there.daemon.run_dir}/"))
    there.libvirt.virsh("define", path)
    there.hallway("enable", vm.name)


def _migrate(vm: Installed, source: EnabledHost, destination: EnabledHost) -> None:
    vm.migrate(
        destination.libvirt,
        release=source.command("release", vm.name, "--"),
        renamed={f"{source.daemon.run_dir}/": f"{destination.daemon.run_dir}/"},
        persistent=True,
    )


def _connected(host: EnabledHost) -> list[str]:
    machines = host.daemon.status()["machines"]
    return [machine["name"] for machine in machines if machine["connected"]]


@pytest.mark.slow
def test_resumed(domains: Domains) -> None:
    """Ring memory that was released comes back as QEMU fails to migrate, or else by `hallway resume`."""
    vm = domains.vms[0]
    with _without_share(vm), domains.streaming(vm):
        domains.release(vm)
        _wait_on_tcp(domains)
        domains.host.libvirt.virsh("qemu-monitor-command", vm.name, "--hmp", "migrate -d unix:/nowhere")
        _wait_on_rings(domains)
        domains.release(vm)
        nowhere = "qemu+unix:///system?socket=/nowhere"
        command = domains.host.libvirt.command("migrate", "--live", vm.name, nowhere)
        assert "error" in run(command, check=False)
        _wait_on_tcp(domains)
        assert domains.host.daemon.machine(vm)["released"]
        domains.host.ask("resume", vm.name)
        _wait_on_rings(domains)
        with pytest.raises(LabError, match="/nowhere"):
            domains.host.ask("release", vm.name, "--", *command)
        _wait_on_rings(domains)
    with pytest.raises(LabError, match="no VM"):
        domains.host.ask("release", "web3")


@pytest.mark.slow
def test_reset(domains: Domains) -> None:
    """A VM that is reset has ring memory again once its module runs, unless that was released."""
    vm = domains.vms[0]
    for released in (False, True):
        domains.check_streams()
        if released:
            domains.release(vm)
        vm.expect_boot()
        domains.host.libvirt.virsh("reset", vm.name)
        vm.wait_boot()
        settle_in(vm)
        insmod(vm, **AT_ONCE)
        if released:
            wait_for(lambda: _guest_asked(domains, vm), "its module has started")
            assert domains.host.daemon.machine(vm)["released"]
            domains.host.ask("resume", vm.name)
    domains.check_streams()


@pytest.mark.slow
def test_snapshot(domains: Domains) -> None:
    """A VM releases its ring memory for a snapshot; reverted to it, in another QEMU, it has that again."""
    vm, disk = domains.vms[0], Path(os.environ["TMPDIR"]) / "data.qcow2"
    make_disk(disk)  # libvirt makes no snapshot of a VM without a disk of its own
    words = ["--subdriver", "qcow2", "--targetbus", "virtio", "--live"]
    domains.host.libvirt.virsh("attach-disk", vm.name, disk, "vdy", *words)
    with _without_share(vm):
        with domains.streaming(vm):
            command = domains.host.libvirt.command("snapshot-create-as", vm.name, "then")
            domains.host.ask("release", vm.name, "--", *command)
            _wait_on_rings(domains)
        vm.run("touch /tmp/later")
        vm.revert("then")
        assert vm.run("test -e /tmp/later", check=False).code, "it did not go back"
    domains.check_streams()


def _guest_asked(domains: Domains, vm: Installed) -> bool:
    guests = domains.pair.site.daemon.status()["vms"]
    return any(guest["uuid"] == vm.uuid for guest in guests)


@contextlib.contextmanager
def _without_share(vm: Installed) -> Iterator[None]:
    """Take the shared folder from a guest for the block: with it QEMU saves and migrates nothing."""
    vm.run("umount /hallway")
    try:
        yield
    finally:
        vm.run("mount -t 9p -o trans=virtio,version=9p2000.L,ro hallway /hallway")


def _wait_on_tcp(domains: Domains) -> None:
    """Wait until both VMs have sent bytes by their network devices. Rings carry none."""
    ringed = Delta(*domains.vms)

    def sent() -> list[int]:
        return [int(vm.get("/sys/class/net/eth0/statistics/tx_bytes")) for vm in domains.vms]

    before = sent()
    wait_for(
        lambda: all(now > then + ENOUGH for now, then in zip(sent(), before, strict=True)),
        "TCP carries bytes",
        LET_GO,
    )
    for vm in domains.vms:
        assert not ringed.of(vm)["tx_bytes_ring"], f"{vm.name} sent bytes through rings"


def _wait_on_rings(domains: Domains) -> None:
    """Wait until both VMs have sent bytes through rings."""
    ringed = Delta(*domains.vms)
    wait_for(
        lambda: all(ringed.of(vm)["tx_bytes_ring"] > ENOUGH for vm in domains.vms),
        "rings carry bytes",
        LET_GO,
    )


@pytest.mark.slow
@pytest.mark.last
def test_disabled(domains: Domains) -> None:
    """A VM that runs is disabled: its connections go on over TCP, its XML has nothing of ours."""
    a, b = domains.vms
    for vm in (a, b):
        rmmod(vm)
        insmod(vm, **AT_ONCE)  # what an operator took out comes back
    stream = Stream(b, a, both=CALM)
    domains.pair.wait_on_rings()
    said = domains.host.hallway("disable", a.name)
    assert "keeps its doorbell, of no use now, until it is shut down" in said, said
    said = domains.host.libvirt.virsh("dumpxml", "--inactive", a.name)
    assert "ua-hallway" not in said and "ivshmem" not in said, said
    names = [machine["name"] for machine in domains.pair.site.daemon.status()["machines"]]
    assert names == [b.name]
    stream.check_running("after its VM was disabled")
    stream.stop()
    stream.finish(60)
    domains.host.hallway("disable", b.name)
    assert not list(domains.host.folder.iterdir())
    _check_renamed(domains, b)


def _check_renamed(domains: Domains, vm: Installed) -> None:
    """A domain with another name is still the VM of its file, with what an operator wrote there."""
    file = domains.host.folder / "default.toml"
    domains.host.hallway("enable", vm.name)
    (domains.host.folder / "before.toml").write_text('[[group]]\nname = "before"\nisolation = "pair"\n')
    file.write_text(file.read_text().replace('["default"]', '["default", "before"]'))
    vm.stop()
    domains.host.libvirt.virsh("domrename", vm.name, "renamed")
    domains.host.hallway("enable", "renamed")
    assert 'groups = ["default", "before"]' in file.read_text()
    machine = domains.host.daemon.machine(vm)
    assert machine["name"] == "renamed", machine
    said = domains.host.hallway("disable", "renamed")
    assert "no such domain" not in said, said
    said = domains.host.libvirt.virsh("dumpxml", "--inactive", "renamed")
    assert "ua-hallway" not in said and "ivshmem" not in said, said
    domains.host.libvirt.virsh("domrename", "renamed", vm.name)
    vm.begin()
    vm.wait_boot()
