# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`hallway enable` and hallwayd beside a real libvirt; the domain's CPUs stand still."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hallway_lab import libvirt, topology
from hallway_lab.prepare import build_host
from hallway_lab.sh import LabError, run
from hallway_tests.suite import wait_for

pytestmark = pytest.mark.needs("libvirt")
DOMAIN = ("--memory", "64", "--vcpus", "1,maxvcpus=2", "--virt-type", "qemu")


def _xml(host: libvirt.Libvirt, machine: str, name: str, *more: str) -> str:
    """Return what virt-install makes of a domain; `more`: words of its."""
    words = ["virt-install", "--connect", host.uri, "--print-xml", "--import", "--machine", machine]
    words += ["--name", name, *DOMAIN, "--osinfo", "linux2020", *more]
    for kind in ("disk", "network", "graphics"):
        words += [f"--{kind}", "none"]
    return run(words)


@pytest.mark.slow
@pytest.mark.needs("host")
def test_enabled_at_once() -> None:
    """Commands that run at once lose no VM of each other."""
    scratch = Path(os.environ["TMPDIR"]) / "at-once"
    scratch.mkdir()
    names = [f"web{n}" for n in range(3)]
    # They take turns, beside guests of other tests.
    places = ["--config-dir", scratch, "--run-dir", scratch / "none", "--timeout", "500"]
    with libvirt.running("at-once") as host:
        for name in names:
            xml = scratch / f"{name}.xml"
            xml.write_text(_xml(host, "pc", name))
            host.virsh("define", xml)
        hallway = build_host() / "hallway"
        running = [subprocess.Popen([*host.enter(), hallway, "enable", name, *places]) for name in names]
        assert [one.wait(500) for one in running] == [0] * len(names)
        group = tomllib.loads((scratch / "default.toml").read_text())
        assert sorted(vm["name"] for vm in group["vm"]) == names


@pytest.mark.needs("host")
def test_enabled_unchecked() -> None:
    """While no hallwayd runs, enable writes nothing with which none would start; a VM keeps its CID."""
    scratch = Path(os.environ["TMPDIR"]) / "unchecked"
    scratch.mkdir()
    config, xml = scratch / "hallwayd.toml", scratch / "web1.xml"
    config.write_text("")
    groups = config.with_suffix(".d")
    places = ["--config-dir", groups, "--run-dir", scratch / "none"]
    with libvirt.running("unchecked") as host:
        xml.write_text(_xml(host, "pc", "web1", "--vsock", "cid.auto=no,cid.address=42"))
        host.virsh("define", xml)
        before = host.virsh("dumpxml", "web1")
        hallway = build_host() / "hallway"
        with pytest.raises(LabError, match="power of two"):
            run([*host.enter(), hallway, "enable", "web1", *places, "--shared", "100M"])
        assert not list(groups.iterdir())
        assert host.virsh("dumpxml", "web1") == before
        said = run([*host.enter(), hallway, "enable", "web1", *places, "--shared", "128M"])
        assert "start it before the VMs" in said, said
        written = tomllib.loads((groups / "default.toml").read_text())
        assert written["group"][0]["size"] == "128M"
        assert written["vm"][0]["cid"] == 42


@pytest.mark.needs("host")
@pytest.mark.parametrize("machine", ["q35", pytest.param("pc", marks=pytest.mark.slow)])
def test_domain(machine: str) -> None:
    """A domain is enabled, saved, restored and disabled; hallwayd has its monitor while it runs."""
    scratch = Path(os.environ["TMPDIR"]) / machine
    scratch.mkdir()
    config, xml, saved = (scratch / name for name in ("hallwayd.toml", "web1.xml", "saved"))
    config.write_text("")

    def machines() -> Any:
        return daemon.status()["machines"]

    def release(*command: str | Path) -> None:
        run([*host.enter(), *hallway, "release", "web1", *places[-2:], *command])
        assert command or machines()[0]["released"]

    def reset(times: int) -> None:
        host.virsh("reset", "web1")
        wait_for(lambda: daemon.log.read_text().count("was reset") == times, "hallwayd hears of a reset")

    with libvirt.running(machine) as host:
        daemon = topology.Daemon(config=config, enter=host.enter())
        daemon.log = scratch / "hallwayd.log"  # no other worker's
        hallway: list[str | Path] = [daemon.binaries / "hallway"]
        places = ["--config-dir", config.with_suffix(".d"), "--run-dir", daemon.run_dir]
        daemon.start()
        try:
            xml.write_text(_xml(host, machine, "web1"))
            host.virsh("define", xml)
            before = host.virsh("dumpxml", "web1")
            with pytest.raises(LabError, match="libvirt has no domain web2"):
                run([*host.enter(), *hallway, "enable", "web1", "web2", *places])
            assert host.virsh("dumpxml", "web1") == before, "half of the domains were enabled"
            assert "ready for its next start" in run([*host.enter(), *hallway, "enable", "web1", *places])
            host.virsh("start", "--paused", "web1")
            wait_for(lambda: machines()[0]["connected"], "its monitor answers")
            assert [one["pid"] for one in daemon.status()["vms"]], "its QEMU has no doorbell"
            reset(1)
            release("--", *host.command("save", "web1", saved))
            wait_for(lambda: not machines()[0]["connected"], "its monitor is gone")
            host.virsh("restore", "--paused", saved)
            wait_for(lambda: machines()[0]["connected"], "its monitor answers again")
            assert not machines()[0]["released"], "that was another QEMU"
            reset(2)
            release()
            host.virsh("qemu-monitor-command", "web1", "--hmp", "migrate -d unix:/nowhere", check=False)
            wait_for(lambda: not machines()[0]["released"], "hallwayd hears that QEMU failed to migrate")
            nowhere = "qemu+unix:///system?socket=/nowhere"
            with pytest.raises(LabError, match="/nowhere"):
                release("--", *host.command("migrate", "--live", "web1", nowhere))
            assert not machines()[0]["released"], "the command has ended"
            release()
            run([*host.enter(), *hallway, "resume", "web1", *places[-2:]])
            assert not machines()[0]["released"]
            assert "keeps its doorbell" in run([*host.enter(), *hallway, "disable", "web1", *places])
            assert not machines()
            assert "hallway" not in host.virsh("dumpxml", "--inactive", "web1")
            host.virsh("destroy", "web1")
        finally:
            daemon.kill(15)
