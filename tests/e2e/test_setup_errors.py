# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A guest that is set up wrong says what to do about it, and plain TCP carries its connections.

So does `hallway doctor` in it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hallway_lab import accel, topology
from hallway_lab.emulator import FAST
from hallway_lab.vm import VM, Plain, boot_all
from hallway_tests.guests import (
    AT_ONCE,
    Stream,
    insmod,
    loaded,
    members,
    rmmod,
    settle_in,
    status,
    wait_members,
)
from hallway_tests.pair import Pair, booted
from hallway_tests.streams import plain_tcp
from hallway_tests.suite import wait_for

from .conftest import Site

pytestmark = [
    pytest.mark.xdist_group("e2e-setup"),
    pytest.mark.slow_on("6.12"),
    pytest.mark.needs(f"qemu {FAST}"),
]

MIB = 1 << 20
# What doctor says of a guest without members.
NOT_JOINED = "this guest has not joined a region"
AT_HOST = "on the host: hallway doctor says whether hallwayd runs, and what this VM lacks"
HEADER = 12288  # HALLWAY_HEADER_SIZE in abi/hallway/region.h


class Guest:
    """The guest that is set up wrong, and the pair of VMs that it shares a site with."""

    def __init__(self, pair: Pair, vm: VM) -> None:
        self.pair, self.vm = pair, vm
        self._files = Path("/dev/shm/errors")
        self._files.mkdir(exist_ok=True)
        self._region = False

    def healthy(self) -> None:
        """Fail if a guest of the site is gone or its kernel complained."""
        self.pair.healthy()

    def sweep(self) -> None:
        """End what a failed test has left running in the pair."""
        self.pair.sweep()

    def reset(self) -> None:
        """Unload the module and clear the kernel's log."""
        if loaded(self.vm):
            rmmod(self.vm)
        wait_for(lambda: self.vm.ip4 not in members(self.pair.a), "the others see this guest leave")
        self.vm.run("dmesg -C")

    def says(self, *lines: str) -> None:
        """Wait until the kernel has said all of these."""
        for line in lines:
            wait_for(
                lambda: line in self.vm.run("dmesg").out,  # noqa: B023
                f"the kernel says {line!r}",
                20 * self.pair.slow,
            )

    def advises(self, *words: str) -> None:
        """Run `hallway doctor`, which must find all of these."""
        result = self.vm.run("hallway doctor", check=False)
        assert result.code, "it finds nothing"
        for word in words:
            assert word in result.out, f"doctor does not say {word!r}:\n{result.out}{result.err}"

    def refuses(self, command: str, *said: str) -> None:
        """Run a command, which must fail with these words."""
        result = self.vm.run(command, check=False)
        for words in said:
            assert result.code, command
            assert words in result.err, command

    def check_plain_tcp(self) -> None:
        """Fail unless TCP alone carries connections with the pair."""
        assert self.vm.ip4 not in members(self.pair.a)
        plain_tcp(self.pair.a, self.vm)

    def plug(self, name: str, size: int, content: bytes) -> None:
        """Hot-plug a file with this content."""
        path = self._files / name
        path.write_bytes(content)
        os.truncate(path, size)
        self.vm.plug(Plain(path, size, name))

    def plug_region(self) -> None:
        """Hot-plug the region itself, once."""
        if not self._region:
            self.vm.plug(Plain(self.pair.site.daemon.region.path, topology.SIZE_MIB * MIB, "good"))
            self._region = True

    @contextlib.contextmanager
    def page(self) -> Iterator[mmap.mmap]:
        """Map the private page that the daemon shares with the guest."""
        fds = Path(f"/proc/{self.vm.pid}/fd")
        path = next(fd for fd in fds.iterdir() if "memfd:hallway-page" in os.readlink(fd))
        with path.open("r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE) as page:
            yield page


@pytest.fixture
def guest(site: Site, kernel: str, share: Path, slow: float) -> Guest:
    """Return a guest whose region lies where the firmware put it, with little room above 4 GiB."""
    return site(lambda logs: _booted(kernel, share, logs, slow))


@contextlib.contextmanager
def _booted(kernel: str, share: Path, logs: Path, slow: float) -> Iterator[Guest]:
    with booted(kernel, share, logs, slow, qemu=FAST) as pair:
        vm = pair.third(
            4,
            machine="pc",
            plain=[pair.site.daemon.region],
            extra=["-global", "i440FX-pcihost.pci-hole64-size=1G"],
        )
        with boot_all(vm):
            pair.site.vms.append(vm)
            pair.load()
            settle_in(vm)
            vm.run("mount -t securityfs none /sys/kernel/security", check=False)
            yield Guest(pair, vm)


def test_nothing_there(guest: Guest) -> None:
    """Without any device the module loads, says so, and does nothing."""
    guest.reset()
    _override(guest.vm, "nobody")
    try:
        insmod(guest.vm)
        guest.says("no doorbell in use: start QEMU with ivshmem-doorbell on hallwayd's socket")
        said = guest.vm.run("hallway status --guest").out
        assert "this guest has not joined a region (see dmesg)" in said
        guest.advises(NOT_JOINED, "the module says: no doorbell in use: start QEMU with", AT_HOST)
        guest.check_plain_tcp()
        rmmod(guest.vm)
    finally:
        _override(guest.vm, "")


def _override(vm: VM, driver: str) -> None:
    """Reserve the shared memory devices for one driver; "" lets any driver have them."""
    vm.run(
        "for d in /sys/bus/pci/devices/*; do grep -q 0x1110 $d/device && grep -q 0x1af4 $d/vendor &&"
        f" echo '{driver}' > $d/driver_override; done; true"
    )


def test_unusable_regions(guest: Guest) -> None:
    """A region that cannot be used is named with what to do; the next one is tried all the same."""
    guest.reset()
    insmod(guest.vm)
    guest.says("is mapped uncached, which is slower than TCP: plug the region in after boot")
    guest.says("no region in use: plug in ivshmem-plain with a region's file")
    guest.advises("its memory lies below 4 GiB", "plug it in after boot", NOT_JOINED, "no region in use")
    head = guest.pair.site.daemon.region.path.read_bytes()[:HEADER]
    foreign = b"\x7fELF" + bytes(8188)
    (major,) = struct.unpack_from("<H", head, 8)
    newer = head[:8] + struct.pack("<H", major + 1) + head[10:]
    which_file = "give ivshmem-doorbell hallwayd's socket, and ivshmem-plain a region's file"
    which_size = "give QEMU the size that hallway status shows on the host"
    for name, size, content, said in (
        ("zeros", 4 * MIB, b"", (f"magic 0x0, which hallwayd did not write: {which_file}",)),
        ("foreign", 4 * MIB, foreign, ("magic 0x464c457f, which hallwayd did not write",)),
        ("small", MIB, head, (f"a region of 1048576 bytes is too small: {which_size}",)),
        ("cut", 4 * MIB, head, (f"the device has 4194304 bytes: {which_size}",)),
        (
            "newer",
            4 * MIB,
            newer,
            (f"the region is of version {major + 1}, this module speaks {major}: update the older",),
        ),
        ("huge", 4096 * MIB, head, ("BAR2 has no address: give QEMU's PCI host a larger pci-hole64-size",)),
    ):
        guest.plug(name, size, content)
        guest.says(*said)
        guest.advises(NOT_JOINED, *said)
    guest.advises("no room for its memory (BAR 2: no space)")
    assert not members(guest.vm)
    guest.check_plain_tcp()
    guest.plug_region()
    wait_members(*guest.pair.both, guest.vm)


def test_daemon_absent(guest: Guest) -> None:
    """A guest whose daemon was killed stays on TCP, and joins once a daemon is back."""
    guest.reset()
    guest.plug_region()
    guest.pair.site.daemon.kill(9)
    try:
        insmod(guest.vm)
        absent = "hallwayd does not answer: start it, and this guest joins; connections stay on TCP"
        guest.says(absent)
        guest.advises(NOT_JOINED, f"the module says: {absent}", AT_HOST)
        guest.check_plain_tcp()
    finally:
        guest.pair.site.daemon.start()
    wait_members(*guest.pair.both, guest.vm)


def test_other_major(guest: Guest) -> None:
    """Daemon and guest of different major versions refuse each other with a message."""
    guest.reset()
    guest.plug_region()
    with guest.page() as page:
        major, minor = struct.unpack_from("<HH", page, 8)
        struct.pack_into("<H", page, 8, major + 1)
        try:
            insmod(guest.vm)
            older = f"hallwayd speaks version {major + 1}, this module {major}: update the older side"
            guest.says(older, "no doorbell in use")
            guest.advises(NOT_JOINED, older, "no doorbell in use")
            guest.check_plain_tcp()
        finally:
            struct.pack_into("<H", page, 8, major)
        guest.reset()
        guest.pair.site.daemon.kill(9)
        try:
            _refused(guest, page, major + 1, minor)
            guest.check_plain_tcp()
        finally:
            guest.pair.site.daemon.start()
    rmmod(guest.vm)
    insmod(guest.vm)
    wait_members(*guest.pair.both, guest.vm)


def _refused(guest: Guest, page: mmap.mmap, major: int, minor: int) -> None:
    """Answer as a newer daemon would; that it does is tested in host/."""
    request, reply = 64, 64 + 128

    def serial(at: int) -> int:
        return struct.unpack_from("<I", page, at)[0]

    insmod(guest.vm)
    wait_for(lambda: serial(request) not in (0, serial(reply)), "the guest asks to join")
    struct.pack_into("<IIIHH", page, reply + 4, 1, 0, 0, major, 0)
    struct.pack_into("<I", page, reply, serial(request))
    refused = (
        f"hallwayd {major}.0 refused this VM (status 1; this module is {major - 1}.{minor}):"
        " it speaks another major version: update the older side"
    )
    guest.says(refused)
    guest.advises(NOT_JOINED, refused)


def test_one_cpu(guest: Guest) -> None:
    """Doctor names an emulated CPU without barriers, and not one that has room for another."""
    if accel.name() != "tcg":
        pytest.skip("no CPU is emulated")
    no_barriers = "the CPU is emulated, with room for one"
    assert no_barriers not in guest.vm.run("hallway doctor", check=False).out
    vm = guest.pair.third(5, extra=["-smp", "1,maxcpus=1"])
    with boot_all(vm):
        said = vm.run("hallway doctor", check=False).out
    assert no_barriers in said and "-smp 1,maxcpus=2" in said, said


RULES = """
import signal, sys
sys.path.insert(0, "/hallway/tests")
import nft
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
with nft.counting(int(sys.argv[1])):
    signal.pause()
"""


def test_firewall(guest: Guest) -> None:
    """Packet rules in the guest keep its connections on TCP, and doctor says how they get rings."""
    guest.reset()
    guest.plug_region()
    insmod(guest.vm, **AT_ONCE)
    wait_members(*guest.pair.both, guest.vm)
    stream = Stream(guest.pair.a, guest.vm)
    guest.vm.put(RULES, "/tmp/rules.py")
    rules = guest.vm.spawn(f"exec python3 -B /tmp/rules.py {stream.port}")
    wait_for(
        lambda: "on TCP, FILTERED" in guest.vm.run("hallway doctor", check=False).out,
        "doctor sees the rules",
        60 * guest.pair.slow,
    )
    guest.advises("remove them, or: echo N >/sys/module/hallway/parameters/honour_filters")
    rules.kill()
    assert not rules.wait(60 * guest.pair.slow).code
    stream.stop()
    stream.finish(60 * guest.pair.slow)


def test_given_uuid(guest: Guest) -> None:
    """The module takes a UUID in place of the machine's, and refuses what is none."""
    guest.reset()
    refused = guest.vm.run("insmod /hallway/hallway.ko uuid=web1", check=False)
    assert refused.code and "Invalid parameters" in refused.err, refused
    guest.says('the parameter uuid is "web1": it has to be a UUID')
    guest.plug_region()
    given = str(uuid.uuid4())
    insmod(guest.vm, uuid=given)

    def own() -> set[str]:
        return {
            member["uuid"] for member in status(guest.vm)["members"] if guest.vm.ip4 in member["addresses"]
        }

    wait_for(lambda: own() == {given}, "it has joined by this UUID", 20 * guest.pair.slow)
    rmmod(guest.vm)


def test_other_kernel(guest: Guest) -> None:
    """A module of another kernel is refused, and the CLI says how to make the right one."""
    guest.reset()
    guest.vm.run("sed 's/ mod_unload / mod_unlike /' /hallway/hallway.ko >/tmp/other.ko")
    guest.refuses("insmod /tmp/other.ko", "Invalid module format")
    guest.says("hallway: version magic")
    release = guest.vm.kernel.version
    remedy = (
        "module hallway is not loaded",
        f"none is installed for this kernel, {release}, and one of another kernel is refused",
        f"with dkms and the headers of {release} installed, run dkms autoinstall, or make dkms",
    )
    for command in ("status", "connections", "off"):
        guest.refuses(f"hallway {command}", *remedy)
    guest.advises(*remedy)
    guest.check_plain_tcp()


@pytest.mark.last
@pytest.mark.not_on("debug", "the kernel takes every module")
def test_locked_down(guest: Guest) -> None:
    """A kernel takes signed modules only: the CLI says which setting requires that, and what to do.

    The settings cannot be undone: this test is the last one of its guest.
    """
    signed = "have it trust the key that DKMS signs with (mokutil --import /var/lib/dkms/mok.pub"
    guest.reset()
    assert "takes signed modules" not in guest.vm.run("hallway status", check=False).err
    guest.vm.run("echo integrity > /sys/kernel/security/lockdown")
    guest.refuses("insmod /hallway/hallway.ko", "Operation not permitted")
    guest.says("unsigned module loading is restricted")
    guest.refuses("hallway status", "this kernel takes signed modules only (lockdown)", signed)
    guest.advises("this kernel takes signed modules only (lockdown)", signed)
    guest.vm.run("umount /sys/kernel/security; echo Y > /sys/module/module/parameters/sig_enforce")
    guest.refuses("insmod /hallway/hallway.ko", "Key was rejected by service")
    guest.refuses("hallway status", "this kernel takes signed modules only (module.sig_enforce)", signed)
    guest.advises("this kernel takes signed modules only (module.sig_enforce)", signed)
    guest.check_plain_tcp()
