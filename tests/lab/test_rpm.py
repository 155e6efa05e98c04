# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The packages for distributions with rpm, installed by rpm into a copy of this machine's root.

Debian's rpm knows of no package, so what these require is looked at, and not looked for.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hallway_lab.sh import run
from hallway_tests import packages
from hallway_tests.packages import MODULES, RPMS, Root

pytestmark = [
    *(pytest.mark.slow, pytest.mark.xdist_group("lab-rpm")),
    pytest.mark.needs("hallway_tests.packages:prepare_rpm"),
]

BOTH = {
    "/usr/bin/hallway",
    "/usr/share/man/man1/hallway-doctor.1",
    "/usr/share/bash-completion/completions/hallway",
}
FILES = {
    "hallway-host": {
        *("/usr/sbin/hallwayd", "/usr/sbin/hallway-host", "/usr/sbin/hallway-libvirt"),
        *("/usr/sbin/hallway-outsource", "/usr/lib/systemd/system/hallwayd.service"),
        "/usr/lib/systemd/system/hallway-metrics.service",
        *("/usr/share/man/man8/hallwayd.8", "/usr/share/man/man5/hallwayd.toml.5"),
        *("/etc/hallway/hallwayd.toml", "/usr/share/doc/hallway-host/grafana.json"),
        *("/usr/share/doc/hallway-host/xen.conf", "/usr/lib/tmpfiles.d/hallway.conf"),
    },
    "hallway-guest": {
        *("/usr/lib/modprobe.d/hallway.conf", "/usr/share/doc/hallway-guest/docs/tunnels.md"),
        "/usr/lib/systemd/system/hallway-metrics-guest.service",
    },
}
NEEDED = {"hallway-host": "libvirt.so.0", "hallway-guest": "dkms"}


def _file(package: str) -> Path:
    (found,) = RPMS.glob(f"{package}-*.rpm")
    return found


@pytest.fixture
def root() -> Iterator[Root]:
    """Return a root that is like this machine's."""
    with packages.root() as made:
        yield made


@pytest.mark.parametrize("package", FILES)
def test_content(package: str) -> None:
    """Files, what is required, what conflicts, and scripts that a shell can read."""
    file = _file(package)
    listed = set(run(["rpm", "-qpl", file]).splitlines())
    assert not (BOTH | FILES[package]) - listed
    other = next(name for name in FILES if name != package)
    assert not FILES[other] & listed
    assert not [path for path in listed if path.startswith(("/lib", "/usr/local"))]
    assert NEEDED[package] in run(["rpm", "-qp", "--requires", file])
    assert other in run(["rpm", "-qp", "--conflicts", file])
    said = run(["rpm", "-qp", "--qf", "%{PREIN}\n%{POSTIN}\n%{PREUN}\n%{POSTUN}\n%{POSTTRANS}\n", file])
    run(["sh", "-n"], text=said.replace("(none)", ""))


def test_host_rpm(root: Root) -> None:
    """rpm installs the host's package: its programs run, and it is removed with what it made."""
    shutil.copy(_file("hallway-host"), root.path / "tmp/host.rpm")
    root.run("rpm", "-i", "--nodeps", "/tmp/host.rpm")
    said = root.run("hallwayd", "--config", "/etc/hallway/hallwayd.toml", "--check-config")
    assert "the configuration is good" in said, said
    root.run("hallway-libvirt", "--version")
    unit = (root.path / "usr/lib/systemd/system/hallwayd.service").read_text()
    assert "ExecStart=/usr/sbin/hallwayd --config /etc/hallway/hallwayd.toml" in unit
    unit = (root.path / "usr/lib/systemd/system/hallway-metrics.service").read_text()
    assert "ExecStart=/usr/bin/hallway metrics " in unit
    toml = root.path / "etc/hallway/hallwayd.toml"
    toml.write_text("# of the site\n")
    root.run("rpm", "-U", "--force", "--nodeps", "/tmp/host.rpm")
    assert toml.read_text() == "# of the site\n"
    root.run("rpm", "-e", "hallway-host")
    assert not (root.path / "usr/sbin/hallwayd").exists()
    assert not root.run("rpm", "-V", "--all", "--nodeps")


def test_guest_rpm(root: Root) -> None:
    """DKMS builds both modules as rpm installs the package, again as it is replaced, and both go."""
    folder = packages.headers(root)
    shutil.copy(_file("hallway-guest"), root.path / "tmp/guest.rpm")
    for words in (["-i"], ["-U", "--force"]):
        said = root.run("rpm", *words, "--nodeps", "/tmp/guest.rpm")
        assert packages.built(folder) == MODULES, said
    root.run("rpm", "-e", "hallway-guest")
    assert not packages.built(folder) and not (root.path / "usr/bin/hallway").exists()
