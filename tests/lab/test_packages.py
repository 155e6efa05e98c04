# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The packages, installed by apt into a copy of this machine's root, which is a chroot."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hallway_lab import kernels
from hallway_lab.paths import REPO
from hallway_lab.sh import LabError, run
from hallway_tests import documents, packages, systemd, versions
from hallway_tests.packages import DEBS, KERNEL, MODULES, Root
from hallway_tests.suite import wait_for

UNIT = "/lib/systemd/system/hallwayd.service"
# At most, as systemd-analyze counts: of a unit, and of hallwayd's with a drop-in.
EXPOSURES = {"hallwayd": 2.0, "hallway-metrics": 0.3, "hallway-metrics-guest": 0.8}
# Helpers are other users' processes in namespaces, and use the network.
DROPINS = {"xen": 2.0, "outsource": 3.8}


pytestmark = [pytest.mark.needs("hallway_tests.packages:prepare"), pytest.mark.xdist_group("lab-packages")]


@pytest.fixture
def root() -> Iterator[Root]:
    """Return such a root."""
    with packages.root() as made:
        yield made


@pytest.mark.slow
def test_guest_package(root: Root) -> None:
    """DKMS builds both modules as apt installs the package, udev finds them, and both go again."""
    kernel = kernels.kernel(KERNEL)
    folder = packages.headers(root)
    said = root.install("hallway-guest")
    assert packages.built(folder) == MODULES, said
    # There are no headers of this machine's kernel.
    assert f"no module was built for the kernel that runs, {os.uname().release}" in said, said
    unit = (root.path / "lib/systemd/system/hallway-metrics-guest.service").read_text()
    assert "ExecStart=/usr/bin/hallway metrics --guest " in unit
    root.run("depmod", kernel.version)
    # QEMU's ivshmem and a network device of Xen, as udev asks for them.
    for alias in ("pci:v00001AF4d00001110sv00001AF4sd00001100bc05sc00i00", "xen:vif"):
        loads = root.run("modprobe", "--set-version", kernel.version, "--show-depends", alias)
        assert "hallway.ko" in loads and "hallway_vsock.ko" in loads, loads
    assert root.run("hallway", "--version").startswith("hallway ")
    _check_library(root)
    root.run("apt-get", "remove", "-y", "hallway-guest")
    assert not packages.built(folder) and not (root.path / "usr/bin/hallway").exists()
    assert not list(root.path.glob("usr/lib/*/libhallway*"))


def _check_library(root: Root) -> None:
    """Programs in C and in Python find the library where the package has it."""
    (root.path / "tmp/lines.c").write_text((REPO / "host/crates/capi/examples/lines.c").read_text())
    root.run("sh", "-c", "cc -o /tmp/lines /tmp/lines.c $(pkg-config --cflags --libs hallway)")
    said = root.run("sh", "-c", "/tmp/lines send 1:none 2>&1 || true")
    assert '"none" is no port' in said, said
    # Not the interpreter that a user has set up.
    assert root.run("/usr/bin/python3", "-c", "import hallway; print(hallway.MESSAGE_MAX)") == "262136\n"


@pytest.mark.slow
def test_cloud_init(root: Root) -> None:
    """The user data are good YAML, and their commands install the guest's package."""
    text = (REPO / "packaging/cloud-init.yaml").read_text()
    assert text.startswith("#cloud-config\n")
    folder = packages.headers(root)
    (root.path / "tmp/data").write_text(text)
    parse = "import json, yaml; print(json.dumps(yaml.safe_load(open('/tmp/data'))))"
    data = json.loads(root.run("/usr/bin/python3", "-c", parse))
    assert sorted(data) == ["packages", "runcmd"]
    for package in data["packages"]:
        root.run("dpkg", "--status", package)
    # There are no headers of this machine's kernel, and no module is loaded into it.
    headers, install, load = data["runcmd"]
    assert headers == 'apt-get install -y "linux-headers-$(uname -r)"' and load == "modprobe hallway"
    (deb,) = DEBS.glob("hallway-guest_*.deb")
    (root.path / "tmp/hallway-guest.deb").write_bytes(deb.read_bytes())
    install = install.replace("http://SERVER/", "file:///tmp/")
    with pytest.raises(LabError, match="sha256sum"):
        root.run("sh", "-c", install.replace("SHA256", hashlib.sha256(b"another").hexdigest()))
    assert not packages.built(folder)
    root.run("sh", "-c", install.replace("SHA256", hashlib.sha256(deb.read_bytes()).hexdigest()))
    assert packages.built(folder) == MODULES


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["host", "guest"])
def test_ansible(root: Root, kind: str) -> None:
    """Ansible's role installs the package, and changes nothing when it runs again."""
    folder = packages.headers(root)
    shutil.copytree(packages.ROLE, root.path / "tmp/hallway")
    shutil.copytree(DEBS, root.path / "tmp/deb")
    words = {"hallway_role": kind, "hallway_packages": "/tmp/deb"}
    # As for cloud-init.
    words |= {"hallway_headers": False, "hallway_load": False}
    (root.path / "tmp/play.yml").write_text(packages.play("/tmp/hallway", **words))
    first, second = (root.run(*packages.PLAY) for _ in range(2))
    assert re.search(r"changed=[1-9].*failed=0", first), first
    assert re.search(r"changed=0 .*failed=0", second), second
    assert root.run("hallway", "--version").startswith("hallway ")
    assert packages.built(folder) == (MODULES if kind == "guest" else [])


def test_ansible_refuses(root: Root) -> None:
    """The role says what it cannot do before it does anything."""
    shutil.copytree(packages.ROLE, root.path / "tmp/hallway")
    for word, value, part in (("role", "router", "it is host or guest"), ("packages", "/tmp", "make deb")):
        play = packages.play("/tmp/hallway", gather_facts=False, **{f"hallway_{word}": value})
        (root.path / "tmp/play.yml").write_text(play)
        with pytest.raises(LabError, match=part):
            root.run(*packages.PLAY)


def test_host_package(root: Root) -> None:
    """Programs and a good configuration are there, and go again."""
    root.install("hallway-host")
    assert root.run("hallway", "--version").startswith("hallway ")
    assert (root.path / "usr/share/man/man1/hallway-doctor.1.gz").exists()
    _check_library(root)
    completion = ". /usr/share/bash-completion/completions/hallway; complete -p"
    assert "hallway" in root.run("bash", "-c", completion)
    assert "Usage: hallway enable " in root.run("hallway", "enable", "--help")
    # What hallway hands over to another program, and those of the daemon.
    for page, option in (
        ("man1/hallway-enable.1", "--shared"),
        ("man8/hallwayd.8", "--status-group"),
        ("man5/hallwayd.toml.5", "arrival-burst"),
    ):
        text = gzip.decompress((root.path / f"usr/share/man/{page}.gz").read_bytes()).decode()
        assert option in text.replace("\\-", "-"), page
    load = ". /usr/share/bash-completion/completions/hallway; COMP_WORDS=(hallway enable --sh); COMP_CWORD=2"
    said = root.run("bash", "-c", f"{load}; _hallway hallway --sh enable; echo ${{COMPREPLY[@]}}")
    assert said == "--shared\n", said
    said = root.run("hallwayd", "--config", "/etc/hallway/hallwayd.toml", "--check-config")
    assert "the configuration is good" in said, said
    root.run("hallway-libvirt", "--version")
    (named,) = re.findall(r"/\S+/hallwayd.toml", (root.path / "etc/hallway/hallwayd.toml").read_text())
    named = root.path / named.lstrip("/")
    for document in set(re.findall(r"docs/[a-z-]+\.md", named.read_text())):
        assert (named.parent / document).exists(), f"hallwayd.toml names {document}"
    for document in named.parent.glob("docs/*.md"):
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name} leads to {link}"
    unit = (root.path / UNIT.lstrip("/")).read_text()
    assert "ExecStart=/usr/sbin/hallwayd --config /etc/hallway/hallwayd.toml" in unit
    dropin = (root.path / "usr/share/doc/hallway-host/xen.conf").read_text()
    assert "/usr/sbin/hallwayd" in dropin and "/usr/local" not in dropin
    assert "/run/hallway-tunnels" in (root.path / "usr/lib/tmpfiles.d/hallway.conf").read_text()
    (root.path / "etc/hallway/hallwayd.d/web.toml").write_text('[[group]]\nname = "web"\n')
    root.run("apt-get", "remove", "-y", "hallway-host")
    assert not (root.path / "usr/sbin/hallwayd").exists()
    assert (root.path / "etc/hallway/hallwayd.toml").exists(), "it is removed by purge alone"
    root.run("dpkg", "--purge", "hallway-host")
    assert not (root.path / "etc/hallway").exists()


def test_service(root: Root) -> None:
    """apt starts hallwayd; an upgrade replaces it beside a QEMU, which the removal lets go."""
    vm = uuid.uuid4()
    # Images of containers have this one, which forbids apt to start anything.
    (root.path / "usr/sbin/policy-rc.d").unlink(missing_ok=True)
    root.run("groupadd", "--system", "--force", "kvm")
    (deb,) = DEBS.glob("hallway-host_*.deb")
    shutil.copy(deb, root.path / "srv")  # systemd empties /tmp
    install = ("apt-get", "install", "-y", "--no-install-recommends", "--reinstall", f"/srv/{deb.name}")
    with systemd.boot(root) as booted:
        booted.run(*install)
        assert booted.run("systemctl", "is-enabled", "hallwayd").strip() == "enabled"
        booted.run("systemctl", "disable", "--now", "hallwayd")
        for line in documents.run_by("lab/test_packages.py::test_service"):
            booted.run("sh", "-c", line)
        assert booted.run("systemctl", "is-enabled", "hallwayd").strip() == "enabled"
        (root.path / "etc/hallway/hallwayd.d/web.toml").write_text(_group(vm))
        booted.run("systemctl", "reload", "hallwayd")
        booted.start_qemu(vm, region="web")
        (holder,) = booted.holders()
        (daemon,) = set(booted.pids(systemd.HALLWAYD)) - {holder}
        booted.run(*install)
        assert booted.run("systemctl", "is-active", "hallwayd").strip() == "active"
        assert holder in booted.holders() and daemon not in booted.pids(systemd.HALLWAYD)
        wait_for(lambda: _is_plugged(booted), "the new one has its monitor, and its memory is in")
        booted.run("apt-get", "remove", "-y", "hallway-host")
        wait_for(lambda: not booted.pids(systemd.HALLWAYD), "all of it has ended")
        assert booted.pids("system.slice/qemu.service"), "its QEMU has ended, too"


@pytest.mark.slow
@pytest.mark.needs("hallway_tests.versions:build_previous_host")
def test_upgraded(root: Root) -> None:
    """apt replaces a hallwayd of the previous release, which runs; the new one goes on with its QEMU."""
    vm = uuid.uuid4()
    (root.path / "usr/sbin/policy-rc.d").unlink(missing_ok=True)
    root.run("groupadd", "--system", "--force", "kvm")
    _install_previous(root)
    (root.path / "etc/hallway").mkdir(exist_ok=True)
    (root.path / "etc/hallway/hallwayd.toml").write_text(_group(vm))
    (deb,) = DEBS.glob("hallway-host_*.deb")
    shutil.copy(deb, root.path / "srv")  # systemd empties /tmp
    with systemd.boot(root) as booted:
        booted.run("systemctl", "enable", "--now", "hallwayd")
        wait_for(lambda: "web" in booted.run("hallway", "status", check=False), "the previous one answers")
        before = json.loads(booted.run("hallway", "status", "--json"))
        booted.start_qemu(vm, region="web")
        (holder,) = booted.holders()
        keep = ("-o", "Dpkg::Options::=--force-confold")  # the configuration, as most answer
        booted.run("apt-get", *keep, "install", "-y", "--no-install-recommends", f"/srv/{deb.name}")
        after = json.loads(booted.run("hallway", "status", "--json"))
        assert (before["abi"], after["version"]) == (versions.PREVIOUS_ABI, _version(root))
        assert booted.run("stat", "-c", "%a", "/run/hallway").strip() == "711"
        assert holder in booted.holders(), "what keeps the QEMU's connection has ended"
        wait_for(lambda: _is_plugged(booted), "the new one has its monitor, and its memory is in")
        assert [one["uuid"] for one in after["vms"]] == [str(vm)], after["vms"]


def _is_plugged(booted: systemd.Systemd) -> bool:
    """Tell whether hallwayd has the monitor of its VM, and that the ring memory."""
    (machine,) = json.loads(booted.run("hallway", "status", "--json"))["machines"]
    return machine["connected"] and [plug["plugged"] for plug in machine["plugs"]] == [True]


def _version(root: Root) -> str:
    return root.run("hallway", "--version").split()[1]


CONTROL = """Package: hallway-host
Version: 0.1.0
Architecture: amd64
Maintainer: nobody <nobody@example.org>
Description: the previous release, which had no packages
"""


def _install_previous(root: Root) -> None:
    """Install the previous release as a package would have: it had none."""
    tree = root.path / "srv/previous"
    unit = versions.read_previous("host/systemd/hallwayd.service")
    start = r"\1/usr/sbin/hallwayd --config /etc/hallway/hallwayd.toml --group kvm"
    unit, count = re.subn("(ExecStart=).*", start, unit)
    assert count == 1, unit
    for name, folder in (("hallwayd", "usr/sbin"), ("hallway", "usr/bin")):
        (tree / folder).mkdir(parents=True)
        shutil.copy(versions.previous_binaries() / name, tree / folder)
    for path, text in ((UNIT, unit), ("/DEBIAN/control", CONTROL)):
        file = tree / path.lstrip("/")
        file.parent.mkdir(parents=True)
        file.write_text(text)
    run(["dpkg-deb", "--build", "--root-owner-group", tree])
    root.run("dpkg", "--install", "/srv/previous.deb")


def _group(vm: uuid.UUID) -> str:
    """Return the configuration of a group with one VM."""
    return (
        '[[group]]\nname = "web"\nisolation = "shared"\nsize = "8M"\nslots = 2\n'
        f'[[vm]]\nname = "web1"\nuuid = "{vm}"\ngroups = ["web"]\nmonitor = "{systemd.MONITOR}"\n'
    )


LINES = "lab/test_packages.py::test_by_hand"


def test_by_hand(root: Root) -> None:
    """The command lines of docs/install.md give a host a hallwayd that answers."""
    inside = root.path / str(REPO).lstrip("/")
    inside.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "--bind", REPO, inside], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", root.path / "dev/shm"], check=True)
    cargo = Path(shutil.which("cargo") or "").parent
    env = {"PATH": f"{cargo}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    *lines, last = (line.replace("QEMU_USER", "nobody") for line in documents.run_by(LINES))
    for line in lines:
        run(["chroot", root.path, "sh", "-c", f"cd {REPO} && {line}"], env=env)
    # Without --now: the root has no systemd that could start it.
    shutil.copy(REPO / "host/systemd/hallwayd.service", root.path / "etc/systemd/system")
    root.run("systemctl", "enable", "hallwayd")
    assert (root.path / "run/hallway-vms").owner() == "nobody"
    assert last.startswith("hallwayd "), "it does not end before it is stopped"
    with subprocess.Popen(["chroot", root.path, *last.split()], env={**os.environ, **env}) as daemon:
        try:
            status = ["chroot", root.path, "hallway", "status"]
            wait_for(lambda: "region default " in run(status, check=False), "it answers")
            run(["chroot", root.path, "hallwayd", "--stop"])
        finally:
            daemon.kill()


def _exposure(unit: Path) -> float:
    """Return what systemd says of a unit, with the drop-ins beside it."""
    env = {**os.environ, "SYSTEMD_UNIT_PATH": f"{unit.parent}:"}
    said = run(["systemd-analyze", "security", "--offline=true", unit], env=env)
    found = re.search(rf"Overall exposure level for {unit.name}: ([0-9.]+)", said)
    assert found, said
    return float(found[1])


@pytest.mark.parametrize("unit", EXPOSURES)
def test_exposure(unit: str) -> None:
    """systemd finds little that a unit's program could do if it were taken over."""
    assert _exposure(REPO / f"host/systemd/{unit}.service") <= EXPOSURES[unit]


@pytest.mark.parametrize("dropin", DROPINS)
def test_exposure_with_dropin(tmp_path: Path, dropin: str) -> None:
    """A drop-in opens no more than it needs."""
    unit = Path(shutil.copy(REPO / "host/systemd/hallwayd.service", tmp_path))
    folder = tmp_path / f"{unit.name}.d"
    folder.mkdir()
    shutil.copy(REPO / f"host/systemd/{dropin}.conf", folder)
    assert _exposure(unit) <= DROPINS[dropin]
