# SPDX-License-Identifier: Apache-2.0 OR MIT
"""VMs of each machine, with no word about Hallway but what `hallway qemu-args` prints for it."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hallway_lab import topology
from hallway_lab.prepare import build_host
from hallway_lab.sh import run
from hallway_lab.vm import VM, Config
from hallway_tests import pair
from hallway_tests.guests import AT_ONCE, insmod
from hallway_tests.pair import Pair
from hallway_tests.streams import CALM

from .conftest import Site

# Machines concern QEMU, not the guests' kernel. The microvm of newer QEMUs in Debian has broken ACPI tables.
pytestmark = [pytest.mark.xdist_group("e2e-qemu-args"), pytest.mark.kernel("6.1")]

MACHINES = {5: "pc", 6: "q35", 7: "microvm"}  # of the VMs with these numbers


class Bare(VM):
    """A VM without root ports and windows of the lab's."""

    def _bridges(self) -> list[str]:
        return []


@pytest.fixture
def machines(site: Site, kernel: str, share: Path, slow: float) -> Pair:
    """Return VMs of each machine; the first two of them are the pair."""
    return site(lambda logs: _booted(kernel, share, logs, slow))


@contextlib.contextmanager
def _booted(kernel: str, share: Path, logs: Path, slow: float) -> Iterator[Pair]:
    folder = Path(os.environ["TMPDIR"])
    config = folder / "printed.toml"
    site = topology.Site(topology.Daemon(host="printed", config=config))
    vms: list[VM] = []
    for number, machine in MACHINES.items():
        options = {"share": share, "boot_timeout": 120 * slow}
        vm = Bare(Config(number=number, kernel=kernel, machine=machine, **options))
        lines = _print(vm, site.daemon.run_dir, folder)
        vm.config.extra = [word for line in lines if line.startswith("-") for word in line.split()]
        vm.config.cmdline = " ".join(_guest_words(lines))
        with config.open("a") as out:
            out.write(_table(lines, with_group=not vms))
        vms.append(vm)
    with pair.running(site, vms, logs):
        yield Pair(site, vms[0], vms[1], kernel, slow, logs, share)


def _print(vm: VM, run_dir: Path, folder: Path) -> list[str]:
    """Return what was printed for a VM, with what its user fills in."""
    command = [build_host() / "hallway", "qemu-args", vm.name, "--machine", vm.machine]
    said = run([*command, "--run-dir", run_dir])
    (rate,) = re.findall(r"^cpu MHz\s*: (\d+)", Path("/proc/cpuinfo").read_text(), re.M)[:1]
    for word, filled in (("UUID", vm.uuid), ("KHZ", f"{rate}000"), ("/run/hallway-vms", str(folder))):
        said = said.replace(word, filled)
    return said.splitlines()


def _guest_words(lines: list[str]) -> list[str]:
    """Return what goes on the guest's command line."""
    return re.findall(r"^#   (\S+=\S+)$", "\n".join(lines), re.M)


def _table(lines: list[str], *, with_group: bool) -> str:
    """Return what goes into hallwayd's configuration; the group is there once."""
    start = lines.index("#   [[group]]" if with_group else "#   [[vm]]")
    return "".join(f"{line.lstrip('#').strip()}\n" for line in lines[start:])


@pytest.mark.needs("host")
def test_printed_words(machines: Pair) -> None:
    """Machines of each kind get ring memory by what was printed, and have rings between any two."""
    vms = machines.site.vms
    for vm in vms:
        assert machines.site.daemon.socket.name in " ".join(vm.config.extra), "no doorbell was printed"
        # modprobe takes it from the command line.
        given = re.findall(r"hallway\.(uuid)=(\S+)", vm.config.cmdline)
        insmod(vm, **AT_ONCE, **dict(given))
    for a, b in itertools.combinations(vms, 2):
        replace(machines, a=a, b=b).stream_on_rings(b, a, conns=2, enough=300_000, both=CALM)
