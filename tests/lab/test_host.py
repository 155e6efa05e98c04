# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The host's side without a guest: which users may connect, and the unit for systemd."""

from __future__ import annotations

import contextlib
import grp
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hallway_lab.paths import REPO
from hallway_lab.prepare import build_host
from hallway_tests import hello, packages, still
from hallway_tests.suite import wait_for

NOBODY, SOMEBODY = 65534, 65533
GROUP = "daemon"  # a group that every Debian has, and root is not in
UNIT = REPO / "host/systemd/hallwayd.service"
XEN = REPO / "host/systemd/xen.conf"
OUTSOURCE = REPO / "host/systemd/outsource.conf"
TMPFILES = REPO / "host/systemd/tmpfiles.conf"
METRICS = REPO / "host/systemd/hallway-metrics.service"
OF_GUEST = REPO / "host/systemd/hallway-metrics-guest.service"


def _qemu(run: Path, region: Path, gid: int) -> subprocess.CompletedProcess[str]:
    """Start a QEMU as nobody with both devices, stopped, and let it end at once."""
    devices = [
        *("-chardev", f"socket,id=hd,path={run}/hallwayd.sock"),
        *("-device", "ivshmem-doorbell,chardev=hd,vectors=1,master=on"),
        *(
            "-object",
            f"memory-backend-file,id=ring0,share=on,size=8M,mem-path={region}",
        ),
        *("-device", "ivshmem-plain,memdev=ring0"),
    ]
    return subprocess.run(
        [
            "qemu-system-x86_64",
            "-S",
            "-nodefaults",
            "-display",
            "none",
            "-monitor",
            "stdio",
            *devices,
        ],
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
        words = [
            binaries / "hallwayd",
            "--run-dir",
            run,
            "--region-dir",
            regions,
            "--region",
            "small:8M:2",
        ]
        with subprocess.Popen([*words, "--group", GROUP], stderr=subprocess.PIPE, text=True) as daemon:
            try:
                assert daemon.stderr is not None
                wait_for(lambda: "ready" in daemon.stderr.readline(), "hallwayd is ready")
                served = _qemu(run, regions / "small", ours)
                assert served.returncode == 0 and "VM status: paused" in served.stdout, str(served)
                wait_for(
                    lambda: "QEMU connected" in daemon.stderr.readline(),
                    "hallwayd saw it",
                    5,
                )
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


def _setting(unit: Path, name: str) -> str:
    """Return what a unit, or a file beside one, says last."""
    lines = [line for line in unit.read_text().splitlines() if line.startswith(f"{name}=")]
    return lines[-1].partition("=")[2]


def _confined() -> list[str]:
    """Return the words before a command that give it the unit's capabilities alone."""
    names = _setting(UNIT, "CapabilityBoundingSet").lower().replace("cap_", "").split()
    bounds = ",".join(["-all", *(f"+{name}" for name in names)])
    return ["setpriv", "--bounding-set", bounds, "--inh-caps", "-all", "--no-new-privs"]


@contextlib.contextmanager
def _with_status_group() -> Iterator[tuple[Path, int]]:
    """Run hallwayd as its unit does; yield its directory, and the group's number."""
    group = _setting(UNIT, "SupplementaryGroups")
    assert _setting(UNIT, "ExecStart").endswith(f" --status-group {group}")
    adm, gid = (grp.getgrnam(name).gr_gid for name in (group, GROUP))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
        os.chmod(scratch, 0o755)
        run, regions = Path(scratch, "run"), Path(scratch, "regions")
        # As systemd makes it.
        run.mkdir()
        os.chown(run, 0, gid)
        run.chmod(int(_setting(UNIT, "RuntimeDirectoryMode"), 8))
        words = [build_host() / "hallwayd", "--run-dir", run, "--region-dir", regions]
        words += ["--region", "small:8M:2", "--group", GROUP, "--status-group", group]
        confined = [*_confined(), f"--regid={gid}", f"--groups={adm}"]
        with subprocess.Popen([*confined, *words], stderr=subprocess.PIPE, text=True) as daemon:
            try:
                assert daemon.stderr is not None
                wait_for(lambda: "ready" in daemon.stderr.readline(), "hallwayd is ready")
                yield run, adm
                assert daemon.poll() is None
            finally:
                subprocess.run([*words, "--stop"], capture_output=True, check=False)


@pytest.mark.needs("host")
def test_status_group() -> None:
    """A member of the status group asks for the status, and ends nothing."""
    nogroup = grp.getgrnam("nogroup").gr_gid
    with _with_status_group() as (run, adm):

        def ask(*question: str | Path, groups: list[int]) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [*question, "--run-dir", run],
                capture_output=True,
                text=True,
                check=False,
                user=NOBODY,
                group=nogroup,
                extra_groups=groups,
            )

        hallway = build_host() / "hallway"
        for command in ("status", "metrics", "top"):
            asked = ask(hallway, command, groups=[adm])
            assert asked.returncode == 0 and "small" in asked.stdout, str(asked)
            refused = ask(hallway, command, groups=[])
            assert refused.returncode != 0 and "not permitted" in refused.stderr, str(refused)
        refused = ask(hallway, "migrate", "vm1", "--cancel", groups=[adm])
        assert refused.returncode != 0 and "not permitted" in refused.stderr, str(refused)


@pytest.mark.needs("host")
def test_metrics_unit() -> None:
    """As its unit runs it, `hallway metrics` answers members of the status group, and no others."""
    assert _setting(METRICS, "Group") == _setting(UNIT, "SupplementaryGroups")
    assert _setting(METRICS, "CapabilityBoundingSet") == ""
    _, *words = _setting(METRICS, "ExecStart").split()
    place = Path(words.pop())
    assert place.parent == Path("/run", _setting(METRICS, "RuntimeDirectory"))
    with _with_status_group() as (run, adm), tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
        os.chown(scratch, NOBODY, adm)
        os.chmod(scratch, int(_setting(METRICS, "RuntimeDirectoryMode"), 8))
        path = Path(scratch, place.name)
        confined = ["setpriv", f"--reuid={NOBODY}", f"--regid={adm}", "--clear-groups"]
        confined += ["--bounding-set", "-all", "--inh-caps", "-all", "--no-new-privs"]
        program = [build_host() / "hallway", *words, path, "--run-dir", run]

        def ask(gid: int) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                ["curl", "--silent", "--show-error", "--unix-socket", path, "http://localhost/metrics"],
                capture_output=True,
                text=True,
                check=False,
                user=SOMEBODY,
                group=gid,
                extra_groups=[],
            )

        with subprocess.Popen([*confined, *program]) as server:
            try:
                wait_for(lambda: "# EOF" in ask(adm).stdout, "it answers")
                assert 'region="small"' in ask(adm).stdout
                refused = ask(grp.getgrnam("nogroup").gr_gid)
                assert refused.returncode != 0 and not refused.stdout, str(refused)
            finally:
                server.kill()


@pytest.mark.needs("host")
def test_guest_metrics_unit() -> None:
    """In a guest that lacks the module its unit's program says so, for this kernel."""
    assert _setting(OF_GUEST, "RuntimeDirectory") == _setting(METRICS, "RuntimeDirectory")
    # They would hide the kernel's release, and its modules.
    assert not re.search("^(ProcSubset|ProtectKernelModules)=", OF_GUEST.read_text(), re.M)
    _, *words = _setting(OF_GUEST, "ExecStart").split()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
        os.chown(scratch, NOBODY, NOBODY)
        path = Path(scratch, Path(words.pop()).name)
        confined = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        confined += ["--bounding-set", "-all", "--inh-caps", "-all", "--no-new-privs"]

        def ask() -> str:
            words = ["curl", "--silent", "--include", "--unix-socket", path, "http://localhost/metrics"]
            return subprocess.run(words, capture_output=True, text=True, check=False).stdout

        with subprocess.Popen([*confined, build_host() / "hallway", *words, path]) as server:
            try:
                wait_for(lambda: "503 Service Unavailable" in ask(), "it answers")
                said = ask()
                assert "module hallway is not loaded" in said, said
                assert f"none is installed for this kernel, {os.uname().release}," in said, said
            finally:
                server.kill()


def test_unit_names_one_program() -> None:
    """The unit, its reload and the drop-ins start the same program."""
    start = _setting(UNIT, "ExecStart")
    assert _setting(UNIT, "ExecReload") == f"{start.split()[0]} --reload"
    assert _setting(XEN, "ExecStart") == f"{start} --xen"


@pytest.mark.needs("host")
@pytest.mark.parametrize("unit", [UNIT, XEN], ids=lambda unit: unit.stem)
def test_unit_options(unit: Path) -> None:
    """hallwayd takes the options of its unit, and of a drop-in."""
    _, *words = _setting(unit, "ExecStart").split()
    subprocess.run([build_host() / "hallwayd", *words, "--help"], capture_output=True, check=True)


def test_outsource_places() -> None:
    """What hallwayd.toml names for tunnels is there at boot, and the drop-in lets hallwayd write there."""
    example = tomllib.loads((REPO / "host/hallwayd.toml").read_text())
    (tunnels,) = [vm["tunnels"] for vm in example["vm"] if "tunnels" in vm]
    folder = str(Path(tunnels["socket"]).parent)
    # Without the sign the unit fails where the folder is missing.
    assert _setting(OUTSOURCE, "ReadWritePaths") == f"-{folder}"
    # hallwayd is in the example's group without a word more, and the drop-in has the word for others.
    assert tunnels["access"] in _setting(UNIT, "SupplementaryGroups").split()
    assert "\n#SupplementaryGroups=" in OUTSOURCE.read_text()
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(["systemd-tmpfiles", "--create", f"--root={scratch}", TMPFILES], check=True)
        made = Path(scratch, folder.lstrip("/")).stat()
        assert (made.st_uid, made.st_mode & 0o7777) == (0, 0o755)


def test_group_of_sockets() -> None:
    """With outsource.conf's line, and no capability more, hallwayd can give a socket to that group."""
    adm = grp.getgrnam("adm").gr_gid
    names = f"{_setting(UNIT, 'CapabilityBoundingSet')} {_setting(OUTSOURCE, 'CapabilityBoundingSet')}"
    bounds = ",".join(["-all", *(f"+{name[4:].lower()}" for name in names.split())])
    confined = ["setpriv", "--bounding-set", bounds, "--inh-caps", "-all", f"--regid={adm + 1}"]
    with tempfile.TemporaryDirectory() as scratch:
        socket = Path(scratch, "socket")
        socket.touch()
        give = ["chgrp", str(adm), socket]
        refused = subprocess.run([*confined, "--clear-groups", *give], capture_output=True, check=False)
        assert refused.returncode != 0, "then the line is of no use"
        subprocess.run([*confined, f"--groups={adm}", *give], check=True)
        assert socket.stat().st_gid == adm


@pytest.mark.needs("host")
def test_capabilities() -> None:
    """With the capabilities of the unit, and no others, a QEMU of another user is served and seen."""
    gid = grp.getgrnam(GROUP).gr_gid
    confined = [*_confined(), f"--regid={gid}", "--clear-groups"]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
        os.chmod(scratch, 0o755)
        run, regions = Path(scratch, "run"), Path(scratch, "regions")
        words = [
            *confined,
            build_host() / "hallwayd",
            "--run-dir",
            run,
            "--region-dir",
            regions,
        ]
        words += ["--region", "small:8M:2", "--group", GROUP]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as daemon:
            try:
                assert daemon.stderr is not None
                wait_for(lambda: "ready" in daemon.stderr.readline(), "hallwayd is ready")
                served = _qemu(run, regions / "small", gid)
                assert served.returncode == 0 and "VM status: paused" in served.stdout, str(served)
            finally:
                subprocess.run([*words, "--stop"], capture_output=True, check=False)


TOUCH = """
import mmap, os, sys
memory = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 0)
memory[::4096] = bytes(len(memory) // 4096)
"""


@contextlib.contextmanager
def _daemon(run: Path, *words: str) -> Iterator[None]:
    """Run a hallwayd for the length of the block."""
    command = [build_host() / "hallwayd", "--run-dir", run, *words]
    with (
        open(run.with_suffix(".log"), "w+") as log,
        subprocess.Popen(command, stderr=log),
    ):
        try:
            wait_for(lambda: "ready" in Path(log.name).read_text(), "hallwayd is ready")
            yield
        finally:
            subprocess.run([*command, "--stop"], capture_output=True, check=False)


def _machine(run: Path) -> Any:
    """Return what hallwayd says of the VM of its configuration."""
    words = [build_host() / "hallway", "status", "--json", "--run-dir", run]
    return json.loads(subprocess.run(words, capture_output=True, check=True).stdout)["machines"][0]


@pytest.mark.needs("host")
def test_handed_over() -> None:
    """A QEMU without privileges is handed its region; no user reaches the region's size and place."""
    vm = uuid.uuid4()
    nobody: dict[str, Any] = {
        "user": NOBODY,
        "group": grp.getgrnam(GROUP).gr_gid,
        "extra_groups": [],
    }
    with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
        os.chmod(scratch, 0o755)
        run, monitors, regions = (Path(scratch, name) for name in ("run", "monitors", "regions"))
        monitors.mkdir()
        os.chown(monitors, NOBODY, -1)
        config = Path(scratch, "hallwayd.toml")
        config.write_text(
            '[[group]]\nname = "web"\nisolation = "shared"\nsize = "8M"\nslots = 2\n'
            f'[[vm]]\nname = "web1"\nuuid = "{vm}"\ngroups = ["web"]\nmonitor = "{monitors}/web1"\n'
        )
        words = [
            "--config",
            str(config),
            "--region-dir",
            str(regions),
            "--group",
            GROUP,
        ]
        command = still.start_words(run, monitors / "web1", vm)
        with _daemon(run, *words), subprocess.Popen(command, cwd="/", **nobody) as qemu:
            try:
                wait_for(lambda: _machine(run)["connected"], "the monitor answers", 20)
                hello.say_hello(qemu.pid, vm)
                wait_for(
                    lambda: any(plug["plugged"] for plug in _machine(run)["plugs"]),
                    "plugged in",
                    20,
                )
                memory = hello.memory(qemu.pid, "hallway-web")
                maps = Path(f"/proc/{qemu.pid}/maps").read_text()
                assert memory and re.search("rw-s .*memfd:hallway-web", maps), maps
                assert os.stat(memory[0]).st_blocks * 512 == 8 << 20, "it has not all its memory"
                # What QEMU itself may do with it.
                for size in ("0", "16M"):
                    words = ["truncate", "-s", size, memory[0]]
                    cut = subprocess.run(words, capture_output=True, check=False)
                    assert cut.returncode != 0 and b"not permitted" in cut.stderr, str(cut)
                assert not regions.exists(), "there are files that the group can open"
            finally:
                qemu.kill()


@pytest.mark.needs("host")
def test_filled_memory() -> None:
    """A region's file keeps its memory while another user fills the file system; a new one is refused."""
    with tempfile.TemporaryDirectory(dir="/run") as scratch:
        os.chmod(scratch, 0o755)
        run, shm = Path(scratch, "run"), Path(scratch, "shm")
        shm.mkdir()
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=24M,mode=1777", "tmpfs", shm],
            check=True,
        )
        try:
            words = ["--region-dir", str(shm), "--region", "small:8M:2"]
            with _daemon(run, *words):
                fill = ["dd", "if=/dev/zero", f"of={shm}/junk", "bs=1M", "count=100"]
                full = subprocess.run(fill, capture_output=True, check=False, user=NOBODY, group=NOBODY)
                assert b"No space left" in full.stderr, str(full)
                touched = subprocess.run([sys.executable, "-c", TOUCH, shm / "small"], check=False)
                assert touched.returncode == 0, f"a VM would end by {touched.returncode} (-7: SIGBUS)"
                other = [
                    build_host() / "hallwayd",
                    "--run-dir",
                    f"{run}2",
                    "--region-dir",
                    shm,
                ]
                other += ["--region", "more:8M:2"]
                refused = subprocess.run(other, capture_output=True, text=True, check=False)
                assert refused.returncode and "make the region smaller" in refused.stderr, str(refused)
                assert not (shm / "more").exists()
        finally:
            subprocess.run(["umount", shm], check=True)


@pytest.mark.needs("host")
@pytest.mark.parametrize("machine", ["pc", "q35", "microvm"])
def test_qemu_args(machine: str) -> None:
    """QEMU starts with the words that `hallway qemu-args` prints for its machine."""
    with tempfile.TemporaryDirectory(dir="/run") as scratch:
        run = Path(scratch, "run")
        words = [
            build_host() / "hallway",
            "qemu-args",
            "vm",
            "--machine",
            machine,
        ]
        said = subprocess.run([*words, "--run-dir", run], capture_output=True, text=True, check=True).stdout
        said = said.replace("UUID", str(uuid.uuid4())).replace("/run/hallway-vms", scratch)
        given = " ".join(line for line in said.splitlines() if line.startswith("-")).split()
        with _daemon(run, "--region-dir", f"{scratch}/shm", "--region", "small:8M:2"):
            command = [
                "qemu-system-x86_64",
                "-S",
                "-nodefaults",
                "-display",
                "none",
            ]
            ended = subprocess.run(
                [*command, "-monitor", "stdio", *given],
                input="info status\nquit\n",
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        assert ended.returncode == 0 and "VM status: paused" in ended.stdout, str(ended)


def test_host_leaves() -> None:
    """Removing the host's package names what needs it still; purging takes what enable wrote."""
    with tempfile.TemporaryDirectory() as scratch:
        groups = Path(scratch, "etc/hallway/hallwayd.d")
        groups.mkdir(parents=True)
        Path(scratch, "hallwayd").symlink_to("/bin/true")
        env = {"DPKG_ROOT": scratch, "PATH": f"{scratch}:{os.environ['PATH']}"}

        def script(name: str, word: str) -> str:
            words = ["sh", REPO / f"debian/hallway-host.{name}", word]
            return subprocess.run(words, env=env, capture_output=True, text=True, check=True).stderr

        assert not script("prerm", "remove")
        (groups / "empty.toml").write_text('[[group]]\nname = "empty"\n')
        assert not script("prerm", "remove")
        (groups / "web.toml").write_text(
            '[[group]]\nname = "web"\n\n[[vm]]\nname = "web1"\n[vm.cpus]\n'
            'name = "none"\n[[vm]]\nname = "web2"\n'
        )
        said = script("prerm", "remove")
        assert "web.toml" in said and "empty" not in said, said
        assert "  hallway disable --group web web1 web2 \n" in said, said
        assert not script("prerm", "upgrade")
        script("postrm", "remove")
        assert (groups / "web.toml").exists()
        (groups.parent / "kept").touch()
        script("postrm", "purge")
        assert os.listdir(groups.parent) == ["kept"]


def test_install_without_python() -> None:
    """Without python3, `make install` says so before it installs anything; a named folder is enough."""
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "sed").symlink_to(shutil.which("sed") or "")
        for words, is_good in ((), False), (("PYTHONDIR=/usr/lib/python3/dist-packages",), True):
            done = subprocess.run(
                [shutil.which("make") or "make", "-n", "install", *words],
                cwd=REPO,
                env={"PATH": scratch},
                capture_output=True,
                text=True,
                check=False,
            )
            assert (done.returncode == 0) == is_good, done
            assert ("python3 says where" in done.stderr) != is_good, done.stderr
            assert ("python3/dist-packages/hallway" in done.stdout) == is_good, done.stdout


END = "# The end.\n"


def _loads() -> dict[str, str]:
    """Return what the guest's package does once its module is built: of both kinds."""
    deb = (REPO / "debian/hallway-guest.postinst").read_text().partition("#DEBHELPER#\n")[2]
    spec = (REPO / "packaging/hallway.spec").read_text()
    rpm = spec.partition("%posttrans -n hallway-guest\n")[2].partition("%files")[0]
    return {"deb": deb, "rpm": rpm.partition("done\n")[2]}


def test_guest_scripts_agree() -> None:
    """Both packages load the module alike."""
    deb, rpm = _loads()["deb"].partition(END)[0], _loads()["rpm"]
    assert rpm.startswith(deb.partition("\n")[2]), rpm


@pytest.mark.parametrize("kind", ["deb", "rpm"])
@pytest.mark.parametrize(
    ("files", "is_loaded"),
    [
        ({}, False),
        ({"bus/pci/devices/0000:00:05.0/device": "0x1110\n"}, True),
        ({"bus/pci/devices/0000:00:05.0/device": "0x1000\n"}, False),
        ({"hypervisor/type": "xen\n", "hypervisor/properties/features": "000002fd\n"}, True),
        ({"hypervisor/type": "xen\n", "hypervisor/properties/features": "00000afd\n"}, False),
        ({"hypervisor/type": "xen\n"}, True),
    ],
    ids=["none", "doorbell", "other", "domain", "dom0", "bare"],
)
def test_guest_loads(kind: str, files: dict[str, str], is_loaded: bool) -> None:
    """The guest's package loads the module where there is use of it, and says where none was built."""
    with tempfile.TemporaryDirectory() as scratch:
        for name, text in files.items():
            path = Path(scratch, "sys", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        _fake_kernel(Path(scratch), "6.12.60-1-amd64", "#1 SMP")
        for name in ("modprobe", "modinfo"):
            Path(scratch, name).write_text(f"#!/bin/sh\n[ -e {scratch}/built ] && echo {name} >&2\n")
            Path(scratch, name).chmod(0o755)
        env = {"DPKG_ROOT": scratch, "PATH": f"{scratch}:{os.environ['PATH']}"}

        def said() -> str:
            words = ["sh", "-e", "-c", _loads()[kind], "sh", "configure"]
            return subprocess.run(words, env=env, capture_output=True, text=True, check=True).stderr

        assert "no module was built" in said() and "modprobe\n" not in said()
        Path(scratch, "built").touch()
        assert said() == ("modprobe\n" if is_loaded else "")


def _fake_kernel(folder: Path, release: str, version: str) -> None:
    """Write a uname that names this kernel alone."""
    program = folder / "uname"
    program.write_text(f"#!/bin/sh\ncase $1 in -r) echo '{release}' ;; -v) echo '{version}' ;; esac\n")
    program.chmod(0o755)


@pytest.mark.parametrize("kind", ["deb", "rpm"])
@pytest.mark.parametrize(
    ("release", "version", "is_old"),
    [
        ("6.1.0-41-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.158-1 (2025-11-09)", True),
        ("6.1.0-42-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.159-1 (2025-12-30)", False),
        ("6.12.57+deb13-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.12.57-1 (2025-11-05)", True),
        ("6.12.95+deb12-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.12.95-1~bpo12+1 (2026-10-02)", False),
        ("5.14.0-611.el9.x86_64", "#1 SMP PREEMPT_DYNAMIC Tue Nov 11 2025", True),
        ("6.12.0-124.8.1.el10_1.x86_64", "#1 SMP PREEMPT_DYNAMIC Tue Nov 11 2025", True),
        ("6.8.0-88-generic", "#89-Ubuntu SMP PREEMPT_DYNAMIC Sat Oct 11 2025", True),
        ("6.17.8-300.fc43.x86_64", "#1 SMP PREEMPT_DYNAMIC Fri Nov 14 2025", True),
        ("6.18.0-1-default", "#1 SMP PREEMPT_DYNAMIC", False),
        ("7.2.13+deb14-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 7.2.13-1 (2026-11-20)", False),
        ("10.0", "#1 SMP", False),
        ("6.1", "#1 SMP", True),
    ],
)
def test_guest_warns(kind: str, release: str, version: str, is_old: bool) -> None:
    """The guest's package warns of a kernel that MPTCP may crash."""
    with tempfile.TemporaryDirectory() as scratch:
        _fake_kernel(Path(scratch), release, version)
        env = {"DPKG_ROOT": scratch, "PATH": f"{scratch}:{os.environ['PATH']}"}
        words = ["sh", "-e", "-u", "-c", _loads()[kind], "sh", "configure"]
        said = subprocess.run(words, env=env, capture_output=True, text=True, check=True).stderr
    assert ("may crash" in said) == is_old, said


@pytest.mark.needs("hallway_tests.packages:prepare_libvirt_units")
def test_unit_order() -> None:
    """At boot hallwayd starts before libvirt's socket, and that is no cycle."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for unit in packages.libvirt_units().iterdir():
            shutil.copy(unit, folder)
        _copy_unit(UNIT, folder)
        wanted = {"sockets.target": "libvirtd.socket", "multi-user.target": UNIT.name}
        for target, unit in wanted.items():
            Path(folder, f"{target}.wants").mkdir()
            Path(folder, f"{target}.wants", unit).symlink_to(f"../{unit}")

        def contradicts() -> bool:
            said = subprocess.run(
                ["systemd-analyze", "verify", "multi-user.target"],
                env={**os.environ, "SYSTEMD_UNIT_PATH": f"{folder}:"},
                capture_output=True,
                text=True,
                check=True,
            ).stderr
            # The machine's own units are there, too.
            lines = [line for line in said.splitlines() if UNIT.name in line]
            return any("ordering cycle" in line for line in lines)

        assert not contradicts()
        # The other order contradicts the unit's.
        Path(folder, "libvirtd.socket.d").mkdir()
        Path(folder, "libvirtd.socket.d/order.conf").write_text(f"[Unit]\nBefore={UNIT.name}\n")
        assert contradicts()


def _copy_unit(unit: Path, folder: Path) -> Path:
    """Copy a unit; its program exists elsewhere."""
    copy = Path(folder, unit.name)
    copy.write_text(re.sub(r"/usr/local/s?bin/\w+", "/bin/true", unit.read_text()))
    return copy


@pytest.mark.needs("host")
@pytest.mark.parametrize("unit", [UNIT, METRICS, OF_GUEST], ids=lambda unit: unit.stem)
def test_unit(unit: Path) -> None:
    """systemd finds nothing wrong with a unit, and the program knows its options."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = _copy_unit(unit, Path(scratch))
        said = subprocess.run(
            ["systemd-analyze", "verify", copy],
            capture_output=True,
            text=True,
            check=False,
        )
    complaints = [line for line in said.stderr.splitlines() if unit.name in line]
    assert said.returncode == 0 and not complaints, f"{said.returncode}: {said.stderr}"
    program, *command = _setting(unit, "ExecStart").split()
    known = subprocess.run(
        [build_host() / Path(program).name, *command, "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert known.returncode == 0, f"{program} does not know the unit's options: {known.stderr}"
