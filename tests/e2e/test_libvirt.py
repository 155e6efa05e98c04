# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Two VMs as virt-install defines them: `hallway enable` is all that they need on the host."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hallway_lab import image, libvirt, topology
from hallway_lab.libvirt import Installed, Libvirt
from hallway_lab.sh import LabError, run
from hallway_lab.vm import Config
from hallway_tests.guests import AT_ONCE, Delta, Stream, healthy, insmod, rmmod, settle_in
from hallway_tests.pair import Pair, name_logs, sweep
from hallway_tests.streams import CALM
from hallway_tests.suite import wait_for

from .conftest import Site

pytestmark = [
    *(pytest.mark.xdist_group("e2e-libvirt"), pytest.mark.needs("libvirt")),
    # libvirt of Debian 12 is made for its QEMU, and guests of 6.12 need a newer one.
    *(pytest.mark.kernel("6.1"), pytest.mark.timeout(900)),
]

NUMBERS = (5, 6)
LET_GO = 60  # seconds
ENOUGH = 20_000  # bytes


@dataclass
class Domains:
    """Two VMs that a libvirt has, and the host's programs."""

    pair: Pair
    host: Libvirt
    folder: Path

    @property
    def vms(self) -> list[Installed]:
        """Both VMs."""
        return [vm for vm in (self.pair.a, self.pair.b) if isinstance(vm, Installed)]

    def hallway(self, *words: str) -> str:
        """Run `hallway` on the host, with the configuration of this test."""
        return self.ask(*words, "--config-dir", self.folder)

    def ask(self, *words: str | Path) -> str:
        """Run `hallway` on the host, with this test's hallwayd."""
        daemon = self.pair.site.daemon
        command, *rest = words
        return run([daemon.binaries / "hallway", command, "--run-dir", daemon.run_dir, *rest])

    def release(self, vm: Installed) -> None:
        """Have a VM release its ring memory."""
        assert f"{vm.name}: its ring memory is out" in self.ask("release", vm.name)
        machine = self.machine(vm)
        assert machine["released"] and not machine["plugs"], machine

    @contextlib.contextmanager
    def streaming(self, vm: Installed) -> Iterator[Stream]:
        """Stream between the VMs, on rings before the block, and again at its end."""
        stays = next(other for other in self.vms if other is not vm)
        stream = Stream(stays, vm, both=f"{CALM} --stall 90")
        self.pair.wait_on_rings()
        yield stream
        self.pair.wait_on_rings()
        stream.stop()
        stream.finish(60)

    def machine(self, vm: Installed) -> dict[str, Any]:
        """Return what hallwayd says of a VM."""
        machines = self.pair.site.daemon.status()["machines"]
        return next(machine for machine in machines if machine["uuid"] == vm.uuid)

    def start(self) -> None:
        """Start both VMs, with the module in them."""
        for vm in self.vms:
            vm.begin()
        for vm in self.vms:
            vm.wait_boot()
            settle_in(vm)
            insmod(vm, **AT_ONCE)

    def check_streams(self) -> None:
        """Run a stream between the VMs; rings must carry most of its bytes."""
        self.pair.stream_on_rings(self.pair.b, self.pair.a, conns=3, enough=300_000, both=CALM)

    def healthy(self) -> None:
        """Fail if a guest complained."""
        healthy(*self.vms)

    def sweep(self) -> None:
        """End what a failed test has left running in the guests."""
        sweep(*self.vms)


@pytest.fixture
def domains(site: Site, kernel: str, share: Path, slow: float) -> Domains:
    """Return two VMs that are enabled, and run."""
    return site(lambda logs: _enabled(kernel, share, logs, slow))


@contextlib.contextmanager
def _enabled(kernel: str, share: Path, logs: Path, slow: float) -> Iterator[Domains]:
    config = Path(os.environ["TMPDIR"]) / "hallwayd.toml"
    config.write_text("")
    daemon = topology.Daemon(config=config)
    daemon.log = logs / "hallwayd.log"
    with libvirt.running("host", "#!/bin/sh\n") as host, host.as_of_the_machine():
        daemon.start()
        try:
            disks = [config.with_name("root.qcow2"), None]
            _make_disk(config.with_name("root.qcow2"), image.root_image(Config().image))
            vms = [
                Installed(Config(number=number, kernel=kernel, share=share, disk=disk))
                for number, disk in zip(NUMBERS, disks, strict=True)
            ]
            with contextlib.ExitStack() as stack:
                for vm in vms:
                    vm.libvirt = host
                    name_logs(vm, logs)
                    vm.define()
                site = topology.Site(daemon, list(vms))
                pair = Pair(site, *vms, kernel, slow, logs, share)
                domains = Domains(pair, host, config.with_suffix(".d"))
                said = domains.hallway("enable", *(vm.name for vm in vms))
                for vm in vms:
                    assert f"{vm.name}: enabled in group default; ready for its next start" in said, said
                for vm in vms:
                    stack.callback(vm.stop)
                domains.start()
                yield domains
        finally:
            daemon.kill(15)


def _make_disk(path: Path, base: Path | None = None) -> None:
    over = ["-F", "raw", "-b", base] if base else []
    run(["qemu-img", "create", "-q", "-f", "qcow2", *over, path, *([] if base else ["1M"])])


def test_two_commands(domains: Domains) -> None:
    """Connections of VMs as virt-install makes them go through rings once both are enabled."""
    for vm in domains.vms:
        assert "pcie-root" in domains.host.virsh("dumpxml", vm.name), "it is no q35"
        wait_for(lambda: domains.machine(vm)["connected"], f"{vm.name}'s monitor")  # noqa: B023
        assert domains.machine(vm)["monitor"] == "libvirt"
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
        refused = domains.host.virsh("save", vm.name, saved, check=False)
        assert "error" in refused and "ivshmem" in refused, refused
        domains.release(vm)
        _wait_on_tcp(domains)
        vm.save(saved)
        wait_for(lambda: not domains.machine(vm)["connected"], "its monitor is gone")
        vm.restore(saved)
        wait_for(lambda: domains.machine(vm)["connected"], "its monitor answers again", LET_GO)
        stream.check_running("while its VM was saved")
        _wait_on_rings(domains)
        assert not domains.machine(vm)["released"]


@pytest.mark.slow
def test_resumed(domains: Domains) -> None:
    """Ring memory that was released comes back as QEMU fails to migrate, or else by `hallway resume`."""
    vm = domains.vms[0]
    with _without_share(vm), domains.streaming(vm):
        domains.release(vm)
        _wait_on_tcp(domains)
        domains.host.virsh("qemu-monitor-command", vm.name, "--hmp", "migrate -d unix:/nowhere")
        _wait_on_rings(domains)
        domains.release(vm)
        nowhere = "qemu+unix:///system?socket=/nowhere"
        command = domains.host.command("migrate", "--live", vm.name, nowhere)
        assert "error" in run(command, check=False)
        _wait_on_tcp(domains)
        assert domains.machine(vm)["released"]
        domains.ask("resume", vm.name)
        _wait_on_rings(domains)
        with pytest.raises(LabError, match="/nowhere"):
            domains.ask("release", vm.name, "--", *command)
        _wait_on_rings(domains)
    with pytest.raises(LabError, match="no VM"):
        domains.ask("release", "web3")


@pytest.mark.slow
def test_reset(domains: Domains) -> None:
    """A VM that is reset has ring memory again once its module runs, unless that was released."""
    vm = domains.vms[0]
    for released in (False, True):
        domains.check_streams()
        if released:
            domains.release(vm)
        vm.expect_boot()
        domains.host.virsh("reset", vm.name)
        vm.wait_boot()
        settle_in(vm)
        insmod(vm, **AT_ONCE)
        if released:
            wait_for(lambda: _guest_asked(domains, vm), "its module has started")
            assert domains.machine(vm)["released"]
            domains.ask("resume", vm.name)
    domains.check_streams()


@pytest.mark.slow
def test_snapshot(domains: Domains) -> None:
    """A VM releases its ring memory for a snapshot; reverted to it, in another QEMU, it has that again."""
    vm, disk = domains.vms[0], Path(os.environ["TMPDIR"]) / "data.qcow2"
    _make_disk(disk)  # libvirt makes no snapshot of a VM without a disk of its own
    words = ["--subdriver", "qcow2", "--targetbus", "virtio", "--live"]
    domains.host.virsh("attach-disk", vm.name, disk, "vdy", *words)
    with _without_share(vm):
        with domains.streaming(vm):
            command = domains.host.command("snapshot-create-as", vm.name, "then")
            domains.ask("release", vm.name, "--", *command)
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
    said = domains.hallway("disable", a.name)
    assert "keeps its doorbell, of no use now, until it is shut down" in said, said
    said = domains.host.virsh("dumpxml", "--inactive", a.name)
    assert "ua-hallway" not in said and "ivshmem" not in said, said
    names = [machine["name"] for machine in domains.pair.site.daemon.status()["machines"]]
    assert names == [b.name]
    stream.check_running("after its VM was disabled")
    stream.stop()
    stream.finish(60)
    domains.hallway("disable", b.name)
    assert not list(domains.folder.iterdir())
    _check_renamed(domains, b)


def _check_renamed(domains: Domains, vm: Installed) -> None:
    """A domain with another name is still the VM of its file, with what an operator wrote there."""
    file = domains.folder / "default.toml"
    domains.hallway("enable", vm.name)
    (domains.folder / "before.toml").write_text('[[group]]\nname = "before"\nisolation = "pair"\n')
    file.write_text(file.read_text().replace('["default"]', '["default", "before"]'))
    vm.stop()
    domains.host.virsh("domrename", vm.name, "renamed")
    domains.hallway("enable", "renamed")
    assert 'groups = ["default", "before"]' in file.read_text()
    machine = domains.machine(vm)
    assert machine["name"] == "renamed", machine
    said = domains.hallway("disable", "renamed")
    assert "no such domain" not in said, said
    said = domains.host.virsh("dumpxml", "--inactive", "renamed")
    assert "ua-hallway" not in said and "ivshmem" not in said, said
    domains.host.virsh("domrename", "renamed", vm.name)
    vm.begin()
    vm.wait_boot()
