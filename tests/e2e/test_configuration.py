# SPDX-License-Identifier: Apache-2.0 OR MIT
"""VMs that hallwayd's configuration names: it plugs their regions in by itself."""

from __future__ import annotations

import contextlib
import json
import signal
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hallway_lab import topology
from hallway_lab.vm import VM, Plain
from hallway_tests import kexec, table, tunnels
from hallway_tests.guests import (
    AT_ONCE,
    Delta,
    Stream,
    healthy,
    insmod,
    loaded,
    members,
    rmmod,
    settle_in,
    status,
    wait_members,
)
from hallway_tests.pair import Pair, name_logs, sweep
from hallway_tests.streams import CALM
from hallway_tests.suite import wait_for
from hallway_tests.tunnels import FIRST_CID, PORT, Talk, cid

from .conftest import Site

pytestmark = [
    pytest.mark.xdist_group("e2e-configured"),
    pytest.mark.not_on("6.12", "the configuration hardly concerns the guests' kernel"),
]

NUMBERS = (5, 6, 7)
NARROW = 9  # a VM with root ports too small for a region
IDLE = 4  # seconds
LONG = 600  # seconds, where regions are to stay
RELOADS = 3
GIVEN = (50, 70)  # CIDs of the first VM and of the third
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


@dataclass
class Configured:
    """Three VMs that a configuration names, and the daemon that has it."""

    site: topology.Site
    kernel: str
    slow: float  # factor on all timeouts
    logs: Path
    share: Path

    @property
    def vms(self) -> list[VM]:
        """Every VM."""
        return self.site.vms

    def pair(self, a: VM, b: VM) -> Pair:
        """Return two of the VMs as a pair."""
        return Pair(self.site, a, b, self.kernel, self.slow, self.logs, self.share)

    def check_streams(self, a: VM, b: VM) -> None:
        """Run a stream between two VMs; rings must carry most of its bytes."""
        self.pair(a, b).stream_on_rings(b, a, conns=3, enough=300_000, both=CALM)

    def plugged(self, vm: VM) -> set[str]:
        """Return the names of the regions that the daemon has plugged into a VM."""
        return {plug["region"] for plug in self.site.daemon.machine(vm)["plugs"] if plug["plugged"]}

    def regions(self) -> set[str]:
        """Return the names of the regions that the daemon serves."""
        return {region["name"] for region in self.site.daemon.status()["regions"]}

    def wait_plugged(self, vm: VM, *regions: str) -> None:
        """Wait until a VM has just these regions, as the daemon says and as its QEMU says."""
        wanted = {f"hallway-{region}" for region in regions}
        wait_for(
            lambda: self.plugged(vm) == set(regions) and devices(vm) == wanted,
            f"{vm.name} has {regions or 'no region'}",
            60 * self.slow,
        )

    def wait_monitor(self, vm: VM) -> None:
        """Wait until the daemon is connected to a VM's QEMU."""
        wait_for(lambda: self.site.daemon.machine(vm)["connected"], f"{vm.name}'s monitor answers")

    def unload(self) -> None:
        """Unload the module from all VMs."""
        for vm in self.vms:
            if loaded(vm):
                rmmod(vm)

    def healthy(self) -> None:
        """Fail if a guest complained."""
        healthy(*self.vms)

    def sweep(self) -> None:
        """End what a failed test has left running in the guests."""
        sweep(*self.vms)


def devices(vm: VM) -> set[str]:
    """Return the ids of the shared memory devices that QEMU has."""
    listed = vm.qmp.command("qom-list", path="/machine/peripheral")
    return {item["name"] for item in listed if item["type"] == "child<ivshmem-plain>"}


@pytest.fixture
def configured(site: Site, kernel: str, share: Path, slow: float) -> Configured:
    """Return three VMs of a configuration; their order: two of a shared region, one without."""
    return site(lambda logs: _booted(kernel, share, logs, slow))


@contextlib.contextmanager
def _booted(kernel: str, share: Path, logs: Path, slow: float) -> Iterator[Configured]:
    config = logs / "hallwayd.toml"
    daemon = topology.Daemon(host="configured", config=config)
    daemon.log = logs / "hallwayd.log"
    daemon.log.write_bytes(b"")
    site = topology.Site(daemon)
    options = {"share": share, "reboots": True, "boot_timeout": 120 * slow}
    vms = [
        name_logs(site.vm(number, kernel, monitor=Path(f"/run/vm{number}.qmp"), **options), logs)
        for number in NUMBERS
    ]
    narrow = _describe_narrow(site, kernel, **options)
    groups = [("shared", "each"), ("shared", "each"), ("each",), ("shared",)]
    cids = [f"cid = {GIVEN[0]}", "", f"cid = {GIVEN[1]}", ""]
    each = zip([*vms, narrow], groups, cids, strict=True)
    words = [topology.describe_vm(vm, *own, more=cid) for vm, own, cid in each]
    config.write_text(GROUPS.format(idle=IDLE) + "".join(words))
    daemon.start()
    try:
        with site.join(*vms):
            for vm in vms:
                settle_in(vm)
            yield Configured(site, kernel, slow, logs, share)
    finally:
        daemon.kill(15)


def _describe_narrow(site: topology.Site, kernel: str, **options: Any) -> VM:
    monitor = Path(f"/run/vm{NARROW}.qmp")
    return site.vm(NARROW, kernel, monitor=monitor, machine="q35", port_room="1M", **options)


def _load(configured: Configured, *vms: VM, **params: object) -> None:
    """Load the module in VMs, of which the first two then serve each other."""
    for vm in vms:
        insmod(vm, **AT_ONCE, **params)
    wait_members(*vms[:2], timeout=30 * configured.slow)


def test_config_plugs(configured: Configured) -> None:
    """A region is plugged in when a guest's module runs, not before; what a person unplugs stays out."""
    a, b, _ = configured.vms
    configured.unload()
    for vm in (a, b):
        configured.wait_monitor(vm)
        assert not devices(vm), f"{vm.name} has a region, and no module yet"
    _load(configured, a, b)
    for vm in (a, b):
        configured.wait_plugged(vm, "shared")
    configured.check_streams(a, b)

    # Unplugged by hand, under load: it stays out, and is plugged in again with the guest's module.
    delta = Delta(a, b)
    stream = Stream(b, a, conns=3, both=CALM)
    wait_for(lambda: delta.of(a)["tx_promoted"] >= 3, "the streams are on rings", 20 * configured.slow)
    a.qmp.command("device_del", id="hallway-shared")
    wait_for(lambda: not configured.plugged(a), "the daemon knows", 30 * configured.slow)
    assert configured.site.daemon.machine(a)["plugs"][0]["problem"] == "another took it out"
    stream.check_running("when its region was unplugged")
    stream.stop()
    stream.finish(60 * configured.slow)
    assert not devices(a), "it was plugged in again"
    rmmod(a)
    _load(configured, a)
    wait_members(a, b, timeout=30 * configured.slow)


def test_config_survives(configured: Configured) -> None:
    """A daemon that takes over finds regions plugged in, and plugs no second device."""
    a, b = _members(configured)
    configured.site.daemon.kill()
    configured.site.daemon.start()
    for vm in (a, b):
        configured.wait_plugged(vm, "shared")
    configured.check_streams(a, b)


def test_config_reloaded(configured: Configured) -> None:
    """The configuration is read again under a stream, which stays on rings all the time."""
    # On a busy machine a VM may stand still for seconds: the peer is demoted, and promoted again.
    assert any(_reload_under_stream(configured) for _ in range(3)), "a VM was unresponsive each time"


def _reload_under_stream(configured: Configured) -> bool:
    """Tell whether a stream has stayed on rings; False: a VM was unresponsive."""
    a, b, _ = configured.vms
    configured.unload()
    _load(configured, a, b, ring_bytes=1 << 18, ring_bytes_max=1 << 18)  # none grows
    daemon = configured.site.daemon
    assert daemon.config
    text, pid = daemon.config.read_text(), daemon.status()["pid"]
    with _on_rings(configured, a, b):
        delta = Delta(a, b)
        for vm in (a, b):
            vm.run("dmesg -C")
        try:
            for number in range(RELOADS):
                name = f"later{number}"
                daemon.config.write_text(f'{text}[[vm]]\nname = "{name}"\nuuid = "{uuid.uuid4()}"\n')
                daemon.signal(signal.SIGHUP)
                wait_for(lambda: name in _names(configured), "the configuration is read")  # noqa: B023
        finally:
            daemon.config.write_text(text)
            daemon.signal(signal.SIGHUP)
        wait_for(lambda: name not in _names(configured), "the first configuration is read")
        assert daemon.status()["pid"] == pid, "the service manager watches another process"
        found: list[str] = []
        for vm in (a, b):
            before = delta.of(vm)
            wait_for(lambda: delta.of(vm)["tx_bytes_ring"] > before["tx_bytes_ring"], "bytes flow")  # noqa: B023
            moved = delta.of(vm)
            left = {key: moved[key] for key in ("tx_demoted", "rx_demoted", "tx_bytes_tcp", "resets")}
            found += [f"{vm.name}: {left}"] if any(left.values()) else []
        stalled = any("is unresponsive" in vm.run("dmesg").out for vm in (a, b))
    configured.unload()
    assert stalled or not found, found
    return not found


def _names(configured: Configured) -> set[str]:
    """Return the names of the configuration's VMs. hallwayd may be reading it: the CLI waits."""
    return {machine["name"] for machine in configured.site.daemon.status()["machines"]}


def _members(configured: Configured) -> tuple[VM, VM]:
    """Return the two VMs of the shared region, with the module loaded."""
    a, b, _ = configured.vms
    for vm in (a, b):
        if not loaded(vm):
            insmod(vm, **AT_ONCE)
    wait_members(a, b, timeout=30 * configured.slow)
    return a, b


def test_config_admits(configured: Configured) -> None:
    """A VM that is in no group of a region is refused, and says so."""
    daemon = configured.site.daemon
    _members(configured)
    options = {"share": configured.share, "boot_timeout": 120 * configured.slow}
    stranger = name_logs(configured.site.vm(8, configured.kernel, **options), configured.logs)
    region = daemon.status()["regions"][0]
    with configured.site.join(stranger):
        stranger.plug(Plain(daemon.memory(region["name"]), region["size"]))
        insmod(stranger)
        wait_for(
            lambda: "this VM is not allowed in" in stranger.run("dmesg").out,
            "the stranger's kernel says so",
            20 * configured.slow,
        )
        assert "is not in this group: put it there" in daemon.log.read_text()
        rmmod(stranger)


@pytest.mark.slow
def test_config_no_room(configured: Configured) -> None:
    """A q35 guest has no room for a region at its root port: the daemon says what to start QEMU with."""
    options = {"share": configured.share, "boot_timeout": 120 * configured.slow}
    narrow = _describe_narrow(configured.site, configured.kernel, **options)
    name_logs(narrow, configured.logs)

    def problem() -> str:
        return next((plug["problem"] or "" for plug in configured.site.daemon.machine(narrow)["plugs"]), "")

    with configured.site.join(narrow):
        insmod(narrow)
        configured.wait_plugged(narrow, "shared")
        wait_for(lambda: "pref64-reserve" in problem(), "the daemon says what is wrong", 60 * configured.slow)
        assert problem().startswith("plugged in and not joined"), problem()
        log = configured.site.daemon.log
        wait_for(lambda: problem() in log.read_text(), "the log says so, too")
        rmmod(narrow)


@pytest.mark.slow
def test_config_reset(configured: Configured) -> None:
    """A VM that is reset is missed at once, and gets its region again when its module runs."""
    a, b, _ = configured.vms
    with _boots_again(configured, a, b):
        b.reset()
    assert configured.site.daemon.machine(b)["plugs"][0]["problem"] == "its guest was reset"
    _check_back(configured, a, b)


@pytest.mark.slow
@pytest.mark.not_on("debug", "the kernel has no kexec")
def test_config_kexec(configured: Configured) -> None:
    """A VM whose kernel starts another one leaves before, and is back when its module runs again."""
    a, b, _ = configured.vms
    kexec.lay_out(configured.share, b)
    with _boots_again(configured, a, b):
        kexec.kexec(b)
        # The guest itself reports this: QEMU does not notice a kexec.
        wait_for(lambda: configured.pair(a, b).member(b)["liveness"] == "absent", "it left")
    _check_back(configured, a, b)


@contextlib.contextmanager
def _boots_again(configured: Configured, a: VM, b: VM) -> Iterator[None]:
    """Have two members, of which b boots again by the block; a misses it."""
    configured.unload()
    _load(configured, a, b)
    yield
    wait_for(lambda: b.ip4 not in members(a), f"{a.name} misses it")
    b.wait_boot()


def _check_back(configured: Configured, a: VM, b: VM) -> None:
    settle_in(b)
    insmod(b, **AT_ONCE)
    wait_members(a, b, timeout=30 * configured.slow)
    configured.wait_plugged(b, "shared")
    configured.check_streams(a, b)


def test_config_pairs(configured: Configured) -> None:
    """Two VMs get a region at their first traffic, which no third one sees; idle, they lose it."""
    a, b, c = configured.vms
    configured.unload()
    _load(configured, a, b, c)
    configured.wait_plugged(c)
    with _on_rings(configured, a, c), _on_rings(configured, b, c):
        configured.wait_plugged(a, "shared", "pair.vm5.vm7")
        configured.wait_plugged(b, "shared", "pair.vm6.vm7")
        configured.wait_plugged(c, "pair.vm5.vm7", "pair.vm6.vm7")
        for vm in configured.vms:
            bound = vm.run("ls -d /sys/bus/pci/drivers/hallway/0*").out.split()
            assert len(bound) == 3, f"{vm.name} has not its doorbell and two regions"

    configured.wait_plugged(a, "shared")
    configured.wait_plugged(b, "shared")
    configured.wait_plugged(c)
    assert members(c) <= {c.ip4, c.ip6}, "members are left after all regions were withdrawn"
    wait_for(lambda: configured.regions() == {"shared"}, "only the shared region is left")

    # New traffic; and traffic of a connection that is older than the module.
    with _on_rings(configured, a, c):
        pass
    rmmod(c)
    with _on_rings(configured, b, c, lambda: insmod(c, **AT_ONCE)):
        pass


def test_given_cids(configured: Configured) -> None:
    """VMs use the CIDs that the configuration gives, in regions of two and of groups."""
    a, b, c = configured.vms
    configured.unload()
    _load(configured, *configured.vms)
    with _regions_that_stay(configured):
        for vm in (a, b):
            with _on_rings(configured, vm, c):
                pass
        of_b = cid(b)
        assert (cid(a), cid(c)) == GIVEN and of_b >= FIRST_CID
        known = {vm.name: {one["cid"] for one in _others(vm)} for vm in configured.vms}
        first, third = GIVEN
        assert known == {a.name: {of_b, third}, b.name: {first, third}, c.name: {first, of_b}}
        for vm in configured.vms:
            tunnels.load(vm)
        for kind in tunnels.ALL_KINDS:
            _greet(c, third, kind, {first: a, of_b: b})
            _greet(b, of_b, kind, {first: a})
        tunnels.unload(*configured.vms)
        configured.unload()


def _greet(hearer: VM, hearer_cid: int, kind: str, callers: dict[int, VM]) -> None:
    """Have VMs send to another one, which reads their CIDs."""
    hears = Talk(hearer, f"name {kind} {PORT}")
    assert hears.hear() == "ready"
    for number, vm in callers.items():
        caller = Talk(vm, f"greet {kind} {hearer_cid} {PORT}")
        assert hears.hear() == str(number), f"{kind} from {vm.name}"
        caller.end()
    hears.end()


@pytest.mark.slow
def test_cid_claimed(configured: Configured) -> None:
    """In a region of two a member that writes another's UUID into the table gets nothing under its CID."""
    hostile, honest, victim = configured.vms
    configured.unload()
    _load(configured, *configured.vms)
    with _regions_that_stay(configured):
        for vm in (hostile, honest):
            with _on_rings(configured, vm, victim):
                pass
        for vm in configured.vms:
            tunnels.load(vm)
        cids = {vm.name: cid(vm) for vm in configured.vms}
        _claim(configured, hostile, honest)
        assert {one["cid"] for one in _others(victim)} == {cids[vm.name] for vm in (hostile, honest)}

        # What it sends comes from itself, of each type.
        for kind in tunnels.ALL_KINDS:
            both = {cids[vm.name]: vm for vm in (hostile, honest)}
            _greet(victim, cids[victim.name], kind, both)
        # What is sent to the other one does not reach it: there nothing listens.
        listener = Talk(hostile, f"hear stream {PORT} 1")
        assert listener.hear() == "ready"
        caller = Talk(victim, f"try stream {cids[honest.name]} {PORT} 1")
        assert json.loads(caller.hear()) == ["ECONNRESET"]
        for program in (caller, listener):
            program.end()
        tunnels.unload(*configured.vms)
        configured.unload()


@pytest.mark.slow
def test_key_overwritten(configured: Configured) -> None:
    """A member that writes over a region's key keeps others out meanwhile: it chooses no key for tokens."""
    hostile, _, victim = configured.vms
    configured.unload()
    _load(configured, *configured.vms)
    with _regions_that_stay(configured):
        with _on_rings(configured, hostile, victim):
            pass
        region = configured.site.daemon.memory(f"pair.{hostile.name}.{victim.name}")
        victim.run("dmesg -C")

        def refused() -> bool:
            said = _hear_after_loss(victim, region)
            assert "joined region" not in said, said
            return "a member has overwritten the header" in said

        with table.overwriting_key(region):
            wait_for(refused, "the victim does not join", 60 * configured.slow)
        with _on_rings(configured, hostile, victim):
            pass
        configured.unload()


def _hear_after_loss(victim: VM, region: Path) -> str:
    """Have the victim lose its place in the table, unless it has; return what its kernel says after that."""
    _, lost, after = victim.run("dmesg").out.partition("no longer a member")
    if not lost:
        table.overwrite_place(region, victim)
    return after


def _claim(configured: Configured, hostile: VM, claimed: VM) -> None:
    """Have the hostile one's entry name another VM while the victim takes in the table."""
    victim = configured.vms[2]
    region = configured.site.daemon.memory(f"pair.{hostile.name}.{victim.name}")
    victim.run("dmesg -C")

    with table.claiming(region, hostile, claimed):
        wait_for(
            lambda: "joined region" in _hear_after_loss(victim, region),
            "the victim has joined again",
            60 * configured.slow,
        )

        wait_for(lambda: len(_others(victim)) == 2, "it knows all members again", 60 * configured.slow)


def _others(vm: VM) -> list[dict[str, Any]]:
    """Return the other members of all regions of a VM, as it knows them."""
    return [member for member in status(vm)["members"] if not (member["self"] or member["host"])]


@contextlib.contextmanager
def _regions_that_stay(configured: Configured) -> Iterator[None]:
    """Have regions of pairs that are made in the block stay for its length."""
    daemon = configured.site.daemon
    assert daemon.config

    def set_idle(before: int, seconds: int) -> None:
        text = daemon.config.read_text()
        daemon.config.write_text(text.replace(f"idle = {before}", f"idle = {seconds}"))
        daemon.kill()
        daemon.start()

    set_idle(IDLE, LONG)
    try:
        yield
    finally:
        set_idle(LONG, IDLE)
    wait_for(lambda: configured.regions() == {"shared"}, "the others are withdrawn", 60 * configured.slow)


@contextlib.contextmanager
def _on_rings(
    configured: Configured, client: VM, server: VM, once_connected: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Run a stream that is on rings when the block begins, and then to its end."""
    delta = Delta(client)
    stream = Stream(server, client, conns=3, both=CALM)
    wait_for(
        lambda: client.run(f"ss -Htn state established dport = :{stream.port}").out.count("\n") == 3,
        "the stream is connected",
        20 * configured.slow,
    )
    once_connected()
    wait_for(
        lambda: min(delta.of(client)[name] for name in ("tx_promoted", "rx_promoted")) >= 3,
        f"{client.name} and {server.name} are on rings",
        60 * configured.slow,
    )
    yield
    stream.stop()
    stream.finish(60 * configured.slow)
    moved = delta.of(client)
    assert moved["tx_bytes_ring"] and moved["rx_bytes_ring"], "no byte went through rings"
    assert not moved["resets"]
