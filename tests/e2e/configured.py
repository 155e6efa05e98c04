"""VMs that are in hallwayd's configuration: it plugs their ring memory in by itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hallway_lab import topology
from hallway_lab.vm import VM, Plain
from hallway_tests import kexec
from hallway_tests.guests import (
    Delta,
    Stream,
    healthy,
    insmod,
    loaded,
    members,
    rmmod,
    settle_in,
    wait_members,
)
from hallway_tests.pair import Pair, name_logs
from hallway_tests.streams import CALM
from hallway_tests.suite import check, wait_for

NUMBERS = (5, 6, 7)
IDLE = 4  # seconds
GROUPS = """
[limits]
host = "96M"
vm = "96M"

[[group]]
name = "shared"
isolation = "shared"
size = "64M"

[[group]]
name = "each"
isolation = "pair"
idle = {idle}
"""
VM_WORDS = """
[[vm]]
name = "{vm.name}"
uuid = "{vm.uuid}"
monitor = "{vm.config.monitor}"
groups = {groups}
"""


@dataclass
class Company:
    """What a test gets: VMs that a configuration names, and the daemon that has it."""

    pair: Pair
    site: topology.Site

    @property
    def vms(self) -> list[VM]:
        """Every VM."""
        return self.site.vms

    def of_two(self, a: VM, b: VM) -> Pair:
        """Two of the VMs, as tests of streams want them."""
        pair = self.pair
        return Pair(
            self.site,
            a,
            b,
            pair.kernel,
            pair.slow,
            pair.rng,
            pair.logs,
            pair.share,
        )

    def machine(self, vm: VM) -> dict[str, Any]:
        """What the daemon tells of a VM of its configuration."""
        machines = self.site.daemon.status()["machines"]
        return next(machine for machine in machines if machine["uuid"] == vm.uuid)

    def plugged(self, vm: VM) -> set[str]:
        """Names of the regions that the daemon has plugged into a VM."""
        return {plug["region"] for plug in self.machine(vm)["plugs"] if plug["plugged"]}

    def regions(self) -> set[str]:
        """Names of the regions that the daemon serves."""
        return {region["name"] for region in self.site.daemon.status()["regions"]}

    def wait_plugged(self, vm: VM, *regions: str) -> None:
        """Wait until the daemon says that a VM has just these regions, and QEMU says the same."""
        wanted = {f"hallway-{region}" for region in regions}
        wait_for(
            lambda: self.plugged(vm) == set(regions) and devices(vm) == wanted,
            f"{vm.name} has {regions or 'no region'}",
            60 * self.pair.slow,
        )

    def wait_monitor(self, vm: VM) -> None:
        """Wait until the daemon speaks with a VM's QEMU."""
        wait_for(lambda: self.machine(vm)["connected"], f"{vm.name}'s monitor answers")

    def unload(self) -> None:
        """Make sure that the module is in no VM."""
        for vm in self.vms:
            if loaded(vm):
                rmmod(vm)

    def healthy(self) -> None:
        """Fail if a guest complained."""
        healthy(*self.vms)


def devices(vm: VM) -> set[str]:
    """Ids of the shared memory that QEMU has, as QEMU tells."""
    listed = vm.qmp.command("qom-list", path="/machine/peripheral")
    return {item["name"] for item in listed if item["type"] == "child<ivshmem-plain>"}


def config_plugs(company: Company) -> None:
    """Memory comes when a guest's module runs, not before; what a person takes out stays out."""
    a, b, _ = company.vms
    company.unload()
    pair = company.of_two(a, b)
    for vm in (a, b):
        company.wait_monitor(vm)
        check(
            not devices(vm),
            f"{vm.name} has ring memory, and no module yet: {devices(vm)}",
        )
        insmod(vm, promote_bytes=0, promote_ms=0)
    wait_members(a, b, timeout=30 * company.pair.slow)
    for vm in (a, b):
        company.wait_plugged(vm, "shared")
    delta = Delta(a, b)
    Stream(b, a, conns=3, seconds=1, both=CALM).finish(60 * company.pair.slow)
    pair.check_counters(delta)
    pair.check_through_rings(delta, 0.5)

    # By hand, under load: it stays out, and comes again with the guest's module.
    delta = Delta(a, b)
    stream = Stream(b, a, conns=3, both=CALM)
    wait_for(
        lambda: delta.of(a)["tx_promoted"] >= 3,
        "the streams are on rings",
        20 * company.pair.slow,
    )
    a.qmp.command("device_del", id="hallway-shared")
    wait_for(lambda: not company.plugged(a), "the daemon knows", 30 * company.pair.slow)
    said = company.machine(a)["plugs"]
    check(said[0]["problem"] == "another took it out", f"the daemon says {said}")
    stream.check_running("when its region was unplugged")
    stream.stop()
    stream.finish(60 * company.pair.slow)
    check(not devices(a), f"it was plugged in again: {devices(a)}")
    rmmod(a)
    insmod(a, promote_bytes=0, promote_ms=0)
    wait_members(a, b, timeout=30 * company.pair.slow)


def config_survives(company: Company) -> None:
    """A daemon that takes over finds memory plugged in, and plugs no second device."""
    a, b, _ = company.vms
    wait_members(a, b, timeout=30 * company.pair.slow)
    company.site.daemon.kill()
    company.site.daemon.start()
    for vm in (a, b):
        company.wait_plugged(vm, "shared")
    pair, delta = company.of_two(a, b), Delta(a, b)
    Stream(b, a, conns=3, seconds=1, both=CALM).finish(60 * company.pair.slow)
    pair.check_through_rings(delta, 0.5)


def config_admits(company: Company) -> None:
    """A VM that is in no group of a region is not let in, and is told so."""
    daemon = company.site.daemon
    stranger = name_logs(
        company.site.vm(8, company.pair.kernel, share=company.pair.share),
        company.pair.logs,
    )
    region = daemon.status()["regions"][0]
    with company.site.join(stranger):
        stranger.plug(Plain(Path(region["file"]), region["size"]))
        insmod(stranger)
        wait_for(
            lambda: "this VM is not allowed in" in stranger.run("dmesg").out,
            "the stranger's kernel says so",
            20 * company.pair.slow,
        )
        check(
            "is not in this group: put it there" in daemon.log.read_text(),
            "the daemon does not say so",
        )
        rmmod(stranger)


def config_reset(company: Company) -> None:
    """A VM that is reset is missed at once, and has its region anew when its module runs again."""
    a, b, _ = company.vms
    with _boots_again(company, a, b):
        b.reset()
    check(company.machine(b)["plugs"][0]["problem"] == "its guest was reset", "the daemon does not say so")
    _is_back(company, a, b)


def config_kexec(company: Company) -> None:
    """A VM whose kernel starts another one leaves before it, and is back when its module runs again."""
    a, b, _ = company.vms
    kexec.lay_out(company.pair.share, b)
    with _boots_again(company, a, b):
        kexec.kexec(b)
        # By its own word: nobody else could tell so much.
        wait_for(lambda: company.of_two(a, b).member(b)["liveness"] == "absent", "it left")
    _is_back(company, a, b)


@contextlib.contextmanager
def _boots_again(company: Company, a: VM, b: VM) -> Iterator[None]:
    """Have two members, of which one boots again by the block; the other one misses it."""
    company.unload()
    for vm in (a, b):
        insmod(vm, promote_bytes=0, promote_ms=0)
    wait_members(a, b, timeout=30 * company.pair.slow)
    yield
    wait_for(lambda: b.ip4 not in members(a), f"{a.name} misses it")
    b.wait_boot()


def _is_back(company: Company, a: VM, b: VM) -> None:
    pair = company.of_two(a, b)
    settle_in(b)
    insmod(b, promote_bytes=0, promote_ms=0)
    wait_members(a, b, timeout=30 * company.pair.slow)
    company.wait_plugged(b, "shared")
    delta = Delta(a, b)
    Stream(b, a, conns=3, seconds=1, both=CALM).finish(60 * company.pair.slow)
    pair.check_counters(delta)
    pair.check_through_rings(delta, 0.5)


def config_pairs(company: Company) -> None:
    """Two VMs get a region at their first traffic, which no third one sees; idle, they lose it."""
    a, b, c = company.vms
    company.unload()
    for vm in company.vms:
        insmod(vm, promote_bytes=0, promote_ms=0)
    wait_members(a, b, timeout=30 * company.pair.slow)
    company.wait_plugged(c)
    with _on_rings(company, a, c), _on_rings(company, b, c):
        company.wait_plugged(a, "shared", "pair.vm5.vm7")
        company.wait_plugged(b, "shared", "pair.vm6.vm7")
        company.wait_plugged(c, "pair.vm5.vm7", "pair.vm6.vm7")
        for vm in company.vms:
            bound = vm.run("ls -d /sys/bus/pci/drivers/hallway/0*").out.split()
            check(len(bound) == 3, f"{vm.name} has not its doorbell and two regions: {bound}")

    company.wait_plugged(a, "shared")
    company.wait_plugged(b, "shared")
    company.wait_plugged(c)
    check(not members(c) - {c.ip4, c.ip6}, f"members after all were withdrawn: {members(c)}")
    wait_for(lambda: company.regions() == {"shared"}, "only the shared region is left")

    # New traffic; and that of a connection which is older than the module.
    with _on_rings(company, a, c):
        pass
    rmmod(c)
    with _on_rings(company, b, c, lambda: insmod(c, promote_bytes=0, promote_ms=0)):
        pass


@contextlib.contextmanager
def _on_rings(
    company: Company, client: VM, server: VM, meanwhile: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Run a stream that is on rings throughout the block, and then to its end."""
    delta = Delta(client)
    stream = Stream(server, client, conns=3, both=CALM)
    wait_for(
        lambda: client.run(f"ss -Htn state established dport = :{stream.port}").out.count("\n") == 3,
        "the stream is connected",
        20 * company.pair.slow,
    )
    meanwhile()
    wait_for(
        lambda: min(delta.of(client)[name] for name in ("tx_promoted", "rx_promoted")) >= 3,
        f"{client.name} and {server.name} are on rings",
        60 * company.pair.slow,
    )
    yield
    stream.stop()
    stream.finish(60 * company.pair.slow)
    moved = delta.of(client)
    check(moved["tx_bytes_ring"] and moved["rx_bytes_ring"], f"no byte went through rings: {moved}")
    check(not moved["resets"], f"resets is {moved['resets']}")


@contextlib.contextmanager
def booted(pair: Pair) -> Iterator[Company]:
    """Run a daemon with a configuration, and its VMs, for the length of the block."""
    config = pair.logs / "hallwayd.toml"
    daemon = topology.Daemon(host="configured", config=config)
    daemon.log = pair.logs / "hallwayd-configured.log"
    daemon.log.write_bytes(b"")
    site = topology.Site(daemon)
    vms = []
    for number in NUMBERS:
        monitor = Path(f"/run/vm{number}.qmp")
        vm = site.vm(
            number,
            pair.kernel,
            share=pair.share,
            monitor=monitor,
            reboots=True,
            boot_timeout=120 * pair.slow,
        )
        vms.append(name_logs(vm, pair.logs))
    groups = ['["shared", "each"]', '["shared", "each"]', '["each"]']
    words = [VM_WORDS.format(vm=vm, groups=own) for vm, own in zip(vms, groups, strict=True)]
    config.write_text(GROUPS.format(idle=IDLE) + "".join(words))
    daemon.start()
    try:
        with site.join(*vms):
            for vm in vms:
                settle_in(vm)
            yield Company(pair, site)
    finally:
        daemon.kill(15)


TESTS = (config_plugs, config_survives, config_admits, config_reset, config_kexec, config_pairs)
