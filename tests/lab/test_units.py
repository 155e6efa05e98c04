# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The units of hosts, started by a systemd with all that confines them."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hallway_lab.paths import REPO
from hallway_lab.prepare import build_host
from hallway_lab.sh import LabError
from hallway_tests import packages, systemd
from hallway_tests.suite import wait_for
from hallway_tests.systemd import Systemd

pytestmark = [pytest.mark.needs("host"), pytest.mark.xdist_group("lab-units")]

UNITS = REPO / "host/systemd"
VM = uuid.UUID("7d1f5e62-9d1a-4c9c-8a68-0f1f9b6e2c11")
CONFIG = f"""
[[group]]
name = "web"
isolation = "shared"
size = "8M"
slots = 2
[[vm]]
name = "web1"
uuid = "{VM}"
groups = ["web"]
monitor = "{systemd.MONITOR}"
[vm.outsource]
connect = ["::/0"]
[vm.tunnels]
socket = "/run/hallway-tunnels/web1.sock"
"""


def _install(root: packages.Root, *dropins: str) -> None:
    """Install hallwayd and its unit as docs/install.md does."""
    for name in ("hallwayd", "hallway-outsource", "hallway-host", "hallway"):
        folder = root.path / ("usr/local/bin" if name == "hallway" else "usr/local/sbin")
        shutil.copy(build_host() / name, folder)
    units = root.path / "etc/systemd/system"
    for unit in UNITS.glob("*.service"):
        shutil.copy(unit, units)
    folder = units / "hallwayd.service.d"
    folder.mkdir()
    for dropin in dropins:
        shutil.copy(UNITS / f"{dropin}.conf", folder)
    shutil.copy(UNITS / "tmpfiles.conf", root.path / "etc/tmpfiles.d/hallway.conf")
    (root.path / "etc/hallway").mkdir(exist_ok=True)
    (root.path / "etc/hallway/hallwayd.toml").write_text(CONFIG)
    root.run("groupadd", "--system", "--force", "kvm")


@pytest.fixture
def booted(request: pytest.FixtureRequest) -> Iterator[Systemd]:
    """Return a systemd that has hallwayd's unit, with the drop-ins that the test asks for."""
    with packages.root() as root:
        _install(root, *request.param)
        with systemd.boot(root) as one:
            yield one


PROPERTIES = {
    "Type": "notify",
    "Restart": "on-failure",
    "OOMPolicy": "continue",
    "LimitNOFILE": "524288",
    "StartLimitBurst": "30",
    "StartLimitIntervalUSec": "1min",
    "RuntimeDirectory": "hallway",
    "RuntimeDirectoryPreserve": "yes",
}


def _is_confined(pid: int) -> bool:
    """Tell whether a process has given up what it was started with."""
    status = Path(f"/proc/{pid}/status").read_text()
    return "\nUid:\t65534\t" in status and "\nCapEff:\t0000000000000000\n" in status


def _lines(booted: Systemd, priority: str, unit: str = "hallwayd") -> str:
    """Return a unit's lines in the journal that have this priority or a higher one."""
    words = ("--no-pager", "--output=cat", f"--unit={unit}", f"--priority={priority}")
    return booted.run("journalctl", *words)


def _inodes(booted: Systemd) -> list[int]:
    """Return what a rule of nftables keeps of the helpers' cgroups."""
    return [(booted.cgroup / systemd.HALLWAYD / f"{kind}.web1").stat().st_ino for kind in ("out", "tun")]


@pytest.mark.parametrize("booted", [()], ids=["alone"], indirect=True)
def test_region(booted: Systemd) -> None:
    """hallwayd serves a QEMU of another user, and the next one goes on with it."""
    # What systemd has understood of the unit, not what is written there.
    said = booted.run("systemctl", "show", f"--property={','.join(PROPERTIES)}", "hallwayd")
    assert dict(line.split("=", 1) for line in said.splitlines()) == PROPERTIES
    booted.start("hallwayd")
    booted.start_qemu(VM, region="web")
    before = booted.holders()
    booted.start("hallwayd")
    assert len(before) == 1 and booted.holders() == before
    # No helper without outsource.conf, and the log says what it lacks.
    for line in ("no outsourcer can be started", "took over from the daemon before"):
        wait_for(lambda: line in _lines(booted, "info"), f"the journal has {line!r}")  # noqa: B023
    assert "took over from the daemon before" not in _lines(booted, "warning")
    # The error with which a daemon ends is one in the journal, too.
    (booted.root / "etc/hallway/hallwayd.toml").write_text("group = 1")
    with pytest.raises(AssertionError):
        booted.start("hallwayd")
    wait_for(lambda: "hallwayd.toml" in _lines(booted, "err"), "its error is one in the journal")


@pytest.mark.parametrize("booted", [("outsource",)], ids=["outsource"], indirect=True)
def test_helpers(booted: Systemd) -> None:
    """With outsource.conf each helper has its cgroup, before it runs and through a restart."""
    booted.start("hallwayd")
    before = _inodes(booted)
    booted.run("systemctl", "reload", "hallwayd")
    assert _inodes(booted) == before
    booted.start_qemu(VM, region="web")

    def helpers() -> list[int]:
        return [pid for kind in ("out", "tun") for pid in booted.pids(f"{systemd.HALLWAYD}/{kind}.web1")]

    wait_for(lambda: [_is_confined(pid) for pid in helpers()] == [True, True], "both run")
    started = helpers()
    booted.run("test", "-S", "/run/hallway-tunnels/web1.sock")
    booted.start("hallwayd")
    booted.run("systemctl", "reload", "hallwayd")
    assert helpers() == started and _inodes(booted) == before
    booted.run("hallwayd", "--stop")
    wait_for(lambda: not helpers() + booted.pids(systemd.HALLWAYD), "all has ended")
    # They have the same log, to which the journal adds the time.
    line = "\n INFO the guest has departed\n"
    wait_for(lambda: line in _lines(booted, "info"), "the journal has a helper's line")
    booted.run("systemd-run", "--unit=alone", "/usr/local/sbin/hallway-outsource")
    why = "only hallwayd starts this program"
    wait_for(lambda: why in _lines(booted, "err", "alone"), "its error is one in the journal")


# Sends a datagram from the cgroup that it is given, or from its own.
SENDER = """
import pathlib, socket, sys
for path in sys.argv[1:]:
    pathlib.Path(path, "cgroup.procs").write_text("0")
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"?", ("127.0.0.1", 9))
"""


def _counted(booted: Systemd) -> int:
    """Return how many packets the rule of docs/outsourcing.md has counted."""
    said = json.loads(booted.run("nft", "--json", "list", "chain", "inet", "guests", "output"))
    (rule,) = [one["rule"] for one in said["nftables"] if "rule" in one]
    (counter,) = [part["counter"] for part in rule["expr"] if "counter" in part]
    return counter["packets"]


@pytest.mark.needs("hallway_tests.systemd:prepare_nft")
@pytest.mark.parametrize("booted", [("outsource",)], ids=["outsource"], indirect=True)
def test_nftables(booted: Systemd) -> None:
    """The rules of docs/outsourcing.md concern what the outsourcer's cgroup sends, and nothing else."""
    found = re.search(r"```text\n(table inet .*?)```", (REPO / "docs/outsourcing.md").read_text(), re.S)
    assert found
    rules = ["nft", found[1]]
    with pytest.raises(LabError, match="No such file"):
        booted.run(*rules)
    booted.start("hallwayd")
    booted.run(*rules)
    booted.run("ip", "link", "set", "lo", "up")
    send = ("python3", "-c", SENDER)
    booted.run(*send)
    assert not _counted(booted)
    booted.run(*send, f"/sys/fs/cgroup/{systemd.HALLWAYD}/out.web1")
    assert _counted(booted) == 1


@pytest.mark.parametrize("booted", [("weight",)], ids=["weight"], indirect=True)
def test_weight(booted: Systemd) -> None:
    """With weight.conf hallwayd can write the cgroups of libvirt's slice, and no others."""
    booted.start("hallwayd")
    pid = booted.run("systemctl", "show", "--property=MainPID", "--value", "hallwayd").strip()

    def make(cgroup: str) -> None:
        booted.run("nsenter", f"--target={pid}", "--mount", "mkdir", f"/sys/fs/cgroup/{cgroup}/test")

    make("machine.slice")
    for cgroup in ("system.slice", "."):
        with pytest.raises(LabError, match="Read-only file system"):
            make(cgroup)


@pytest.mark.parametrize("booted", [()], ids=["alone"], indirect=True)
def test_metrics(booted: Systemd) -> None:
    """The unit for metrics is answered by hallwayd."""
    booted.start("hallwayd")
    booted.start("hallway-metrics")
    get = ("curl", "--silent", "--fail", "--unix-socket", "/run/hallway-metrics/metrics.sock")
    answer = wait_for(lambda: booted.run(*get, "http://localhost/metrics", check=False), "it answers")
    assert 'vm="web1"' in str(answer), answer
