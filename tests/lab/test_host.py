"""The host's side without a guest: which users may connect, and the unit for systemd."""

from __future__ import annotations

import grp
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hallway_lab.paths import REPO
from hallway_lab.prepare import build_host
from hallway_tests.suite import wait_for

NOBODY, GROUP = 65534, "daemon"  # a group that every Debian has, and root is not in
UNIT = REPO / "host/systemd/hallwayd.service"


def _qemu(run: Path, region: Path, gid: int) -> subprocess.CompletedProcess[str]:
    """Start a QEMU as nobody with both devices, stopped, and let it end at once."""
    devices = [
        *("-chardev", f"socket,id=hd,path={run}/hallwayd.sock"),
        *("-device", "ivshmem-doorbell,chardev=hd,vectors=1,master=on"),
        *("-object", f"memory-backend-file,id=ring0,share=on,size=8M,mem-path={region}"),
        *("-device", "ivshmem-plain,memdev=ring0"),
    ]
    return subprocess.run(
        ["qemu-system-x86_64", "-S", "-nodefaults", "-display", "none", "-monitor", "stdio", *devices],
        input="info status\nquit\n",
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        cwd="/",
        user=NOBODY,
        group=gid,
        extra_groups=[],
    )


@pytest.mark.needs("host")
def test_group() -> None:
    """Of two QEMUs that root did not start, the one in the daemon's group is served."""
    binaries = build_host()
    ours, other = (grp.getgrnam(name).gr_gid for name in (GROUP, "nogroup"))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
        os.chmod(scratch, 0o755)
        run, regions = Path(scratch, "run"), Path(scratch, "regions")
        words = [binaries / "hallwayd", "--run-dir", run, "--region-dir", regions, "--region", "small:8M:2"]
        with subprocess.Popen([*words, "--group", GROUP], stderr=subprocess.PIPE, text=True) as daemon:
            try:
                assert daemon.stderr is not None
                wait_for(lambda: "ready" in daemon.stderr.readline(), "hallwayd is ready")
                served = _qemu(run, regions / "small", ours)
                assert served.returncode == 0 and "VM status: paused" in served.stdout, str(served)
                wait_for(lambda: "QEMU connected" in daemon.stderr.readline(), "hallwayd saw it", 5)
                refused = _qemu(run, regions / "small", other)
                assert refused.returncode != 0 and "Permission denied" in refused.stderr, str(refused)
                status = [binaries / "hallway", "status", "--run-dir", run]
                asked = subprocess.run(
                    status,
                    capture_output=True,
                    text=True,
                    check=False,
                    user=NOBODY,
                    group=ours,
                    extra_groups=[],
                )
                assert asked.returncode != 0, f"the group may ask the daemon, and so stop it: {asked}"
            finally:
                subprocess.run([*words, "--stop"], capture_output=True, check=False)
        refused = subprocess.run([*words, "--group", "no-such"], capture_output=True, text=True, check=False)
        assert "there is no group no-such" in refused.stderr, str(refused)


@pytest.mark.needs("host")
def test_unit() -> None:
    """systemd finds nothing wrong with the unit, whose program exists elsewhere."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    text = UNIT.read_text()
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch, UNIT.name)
        copy.write_text(text.replace("/usr/local/sbin/hallwayd", "/bin/true"))
        said = subprocess.run(
            ["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False
        )
    complaints = [line for line in said.stderr.splitlines() if UNIT.name in line]
    assert said.returncode == 0 and not complaints, f"{said.returncode}: {said.stderr}"
    command = next(line for line in text.splitlines() if line.startswith("ExecStart=")).split()[1:]
    known = subprocess.run(
        [build_host() / "hallwayd", *command, "--help"], capture_output=True, text=True, check=False
    )
    assert known.returncode == 0, f"hallwayd does not know the unit's options: {known.stderr}"
