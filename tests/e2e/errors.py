"""What is set up wrong says what to do about it, and plain TCP goes on."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from hallway_lab import topology
from hallway_lab.vm import VM, Plain, boot_all
from hallway_tests.guests import (
    REPO,
    call,
    healthy,
    insmod,
    loaded,
    members,
    rmmod,
    settle_in,
    wait_members,
)
from hallway_tests.pair import TINY, Pair
from hallway_tests.streams import plain_tcp
from hallway_tests.suite import check, wait_for

MIB = 1 << 20
HEADER = 12288


# -- the host's side ------------------------------------------------------------


def host(pair: Pair) -> None:
    """The daemon and its CLI refuse what they can not do well, and say what to do."""
    daemon = pair.site.daemon
    folder = Path("/run/errors")
    folder.mkdir(exist_ok=True)
    hallwayd, hallway = (
        shutil.copy(REPO / "host/target/release" / name, folder) for name in ("hallwayd", "hallway")
    )
    nobody = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
    shared = folder / "shared"
    shared.mkdir(exist_ok=True)
    shared.chmod(0o777)
    own = folder / "own"
    for words, said in (
        ((hallwayd,), f"hallwayd runs already for {daemon.socket.parent} (pid "),
        (
            (hallwayd, "--run-dir", own, "--socket", daemon.socket),
            f"another program listens at {daemon.socket}: end it, or give another --socket",
        ),
        ((hallwayd, "--run-dir", shared), f"{shared}: others may write there (owner 0, mode 0777)"),
        (
            (hallwayd, "--run-dir", own, "--region", "small:4M"),
            "a region of 4194304 bytes gives each of its 4 members less than 2 MiB: make it larger",
        ),
        ((*nobody, hallwayd, "--run-dir", folder / "new"), "cannot be made: run as root"),
        ((*nobody, hallwayd), "run as root, or give a --run-dir of your own"),
        ((*nobody, hallway, "status"), "not permitted: run as the user that hallwayd runs as"),
        ((hallway, "status", "--host", "--run-dir", folder), "start hallwayd, or give the directory"),
    ):
        result = call(*words)
        check(
            result.returncode and said in result.stderr,
            f"{words}: did not fail with {said!r}: code {result.returncode}: {result.stderr}",
        )
    check(daemon.status(), "the daemon no longer answers")


def region_full(pair: Pair) -> None:
    """A guest that finds a region full says so, and joins once another one has left."""
    a, b = pair.both
    tiny = Plain(pair.site.daemon.region.path.with_name(TINY), 8 * MIB, TINY)

    def inside() -> list[str]:
        regions = pair.site.daemon.status()["regions"]
        shown = next(region["members"] for region in regions if region["name"] == TINY)
        return [member["uuid"] for member in shown if member["liveness"] == "alive"]

    pair.load()
    a.plug(tiny)
    wait_for(lambda: a.uuid in inside(), f"{a.name} is a member", 20 * pair.slow)
    b.run("dmesg -C")
    b.plug(tiny)
    wait_for(lambda: "no slot is left" in b.run("dmesg").out, f"{b.name} is refused", 20 * pair.slow)
    check(b.uuid not in inside(), f"{b.name} is a member of a full region")
    a.unplug(TINY)
    wait_for(lambda: b.uuid in inside(), f"{b.name} is a member", 20 * pair.slow)
    b.unplug(TINY)
    said = b.run("dmesg").out
    check(said.count("no slot is left") == 1, f"it was told how often? {said}")


# -- a guest that is set up wrong -----------------------------------------------


class Guest:
    """The guest of these tests, and the pair it shares a site with."""

    def __init__(self, pair: Pair, vm: VM) -> None:
        self.pair, self.vm = pair, vm
        self._files = Path("/dev/shm/errors")
        self._files.mkdir(exist_ok=True)
        self._region = False

    def afresh(self) -> None:
        """Unload the module and forget what the kernel said; the others are as always."""
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

    def refuses(self, command: str, *said: str) -> None:
        """Run a command that must fail with these words."""
        result = self.vm.run(command, check=False)
        for words in said:
            check(
                result.code and words in result.err,
                f"`{command}` did not fail with {words!r}: code {result.code}: {result.err}",
            )

    def goes_on(self) -> None:
        """Connections to the others are plain TCP, and work."""
        check(self.vm.ip4 not in members(self.pair.a), "the others have this guest for a member")
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
        """Map the guest's private page, as daemon and guest do."""
        fds = Path(f"/proc/{self.vm.pid}/fd")
        path = next(fd for fd in fds.iterdir() if "memfd:hallway-page" in os.readlink(fd))
        with path.open("r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE) as page:
            yield page


@contextlib.contextmanager
def booted(pair: Pair) -> Iterator[Guest]:
    """Boot a guest whose region lies where the firmware put it, with little room above 4 GiB."""
    vm = pair.third(
        4,
        machine="pc",
        plain=[pair.site.daemon.region],
        extra=["-global", "i440FX-pcihost.pci-hole64-size=1G"],
    )
    pair.load()
    with boot_all(vm):
        settle_in(vm)
        vm.run("mount -t securityfs none /sys/kernel/security", check=False)
        yield Guest(pair, vm)
        healthy(vm)


def nothing_there(guest: Guest) -> None:
    """Without any device the module loads, says so, and does nothing."""
    guest.afresh()
    _override(guest.vm, "nobody")
    try:
        insmod(guest.vm)
        guest.says("no doorbell in use: start QEMU with ivshmem-doorbell on hallwayd's socket")
        said = guest.vm.run("hallway status --guest").out
        check("this guest has not joined a region (see dmesg)" in said, f"hallway status: {said}")
        guest.goes_on()
        rmmod(guest.vm)
    finally:
        _override(guest.vm, "")


def _override(vm: VM, driver: str) -> None:
    """Keep the shared memory devices for one driver, or for whichever wants them."""
    vm.run(
        "for d in /sys/bus/pci/devices/*; do grep -q 0x1110 $d/device && grep -q 0x1af4 $d/vendor &&"
        f" echo '{driver}' > $d/driver_override; done; true"
    )


def unusable_regions(guest: Guest) -> None:
    """A region that can not be used is named with what to do; the next one is looked at all the same."""
    guest.afresh()
    insmod(guest.vm)
    guest.says("is mapped uncached, which is slower than TCP: plug the region in after boot")
    guest.says("no region in use: plug in ivshmem-plain with a region's file")
    head = guest.pair.site.daemon.region.path.read_bytes()[:HEADER]
    foreign = b"\x7fELF" + bytes(8188)
    newer = head[:8] + struct.pack("<H", 3) + head[10:]
    which_file = "give ivshmem-doorbell hallwayd's socket, and ivshmem-plain a region's file"
    which_size = "give QEMU the size that hallway status shows on the host"
    for name, size, content, said in (
        ("zeros", 4 * MIB, b"", (f"magic 0x0, which hallwayd did not write: {which_file}",)),
        ("foreign", 4 * MIB, foreign, ("magic 0x464c457f, which hallwayd did not write",)),
        ("small", MIB, head, (f"a region of 1048576 bytes is too small: {which_size}",)),
        ("cut", 4 * MIB, head, (f"the device has 4194304 bytes: {which_size}",)),
        ("newer", 4 * MIB, newer, ("the region is of version 3, this module speaks 2: update the older",)),
        ("huge", 4096 * MIB, head, ("BAR2 has no address: give QEMU's PCI host a larger pci-hole64-size",)),
    ):
        guest.plug(name, size, content)
        guest.says(*said)
    check(not members(guest.vm), f"it has members: {members(guest.vm)}")
    guest.goes_on()
    guest.plug_region()
    wait_members(*guest.pair.both, guest.vm)


def daemon_absent(guest: Guest) -> None:
    """A guest that asks a daemon which was killed stays on TCP, and joins once one is back."""
    guest.afresh()
    guest.plug_region()
    guest.pair.site.daemon.kill(9)
    try:
        insmod(guest.vm)
        guest.says("hallwayd does not answer: start it, and this guest joins; connections stay on TCP")
        guest.goes_on()
    finally:
        guest.pair.site.daemon.start()
    wait_members(*guest.pair.both, guest.vm)


def other_major(guest: Guest) -> None:
    """Daemon and guest of different major versions part with a message."""
    guest.afresh()
    guest.plug_region()
    with guest.page() as page:
        major, minor = struct.unpack_from("<HH", page, 8)
        struct.pack_into("<H", page, 8, major + 1)
        try:
            insmod(guest.vm)
            guest.says(
                f"hallwayd speaks version {major + 1}, this module {major}: update the older side",
                "no doorbell in use",
            )
            guest.goes_on()
        finally:
            struct.pack_into("<H", page, 8, major)
        guest.afresh()
        guest.pair.site.daemon.kill(9)
        try:
            _refused(guest, page, major + 1, minor)
            guest.goes_on()
        finally:
            guest.pair.site.daemon.start()
    rmmod(guest.vm)
    insmod(guest.vm)
    wait_members(*guest.pair.both, guest.vm)


def _refused(guest: Guest, page: mmap.mmap, major: int, minor: int) -> None:
    """Answer as a newer daemon would (the daemon's own tests hold that it does)."""
    request, reply = 64, 64 + 128

    def serial(at: int) -> int:
        return struct.unpack_from("<I", page, at)[0]

    insmod(guest.vm)
    wait_for(lambda: serial(request) not in (0, serial(reply)), "the guest asks to join")
    struct.pack_into("<IIIHH", page, reply + 4, 1, 0, 0, major, 0)
    struct.pack_into("<I", page, reply, serial(request))
    guest.says(
        f"hallwayd {major}.0 refused this VM (status 1; this module is {major - 1}.{minor}):"
        " it speaks another major version: update the older side"
    )


def other_kernel(guest: Guest) -> None:
    """A module of another kernel is refused, and the CLI says how to make the right one."""
    guest.afresh()
    guest.vm.run("sed 's/ mod_unload / mod_unlike /' /hallway/hallway.ko >/tmp/other.ko")
    guest.refuses("insmod /tmp/other.ko", "Invalid module format")
    guest.says("hallway: version magic")
    release = guest.vm.kernel.version
    for command in ("status", "connections", "off"):
        guest.refuses(
            f"hallway {command}",
            "module hallway is not loaded",
            f"none is installed for this kernel, {release}, and one of another kernel is refused",
            f"with dkms and the headers of {release} installed, run make dkms in Hallway's sources",
        )
    guest.goes_on()


def locked_down(guest: Guest) -> None:
    """A kernel that takes signed modules only: the CLI says who wants that, and what to do."""
    signed = "have it trust the key that DKMS signs with (mokutil --import /var/lib/dkms/mok.pub"
    guest.afresh()
    check("takes signed modules" not in guest.vm.run("hallway status", check=False).err, "told too early")
    guest.vm.run("echo integrity > /sys/kernel/security/lockdown")
    guest.refuses("insmod /hallway/hallway.ko", "Operation not permitted")
    guest.says("unsigned module loading is restricted")
    guest.refuses("hallway status", "this kernel takes signed modules only (lockdown)", signed)
    guest.vm.run("umount /sys/kernel/security; echo Y > /sys/module/module/parameters/sig_enforce")
    guest.refuses("insmod /hallway/hallway.ko", "Key was rejected by service")
    guest.refuses("hallway status", "this kernel takes signed modules only (module.sig_enforce)", signed)
    guest.goes_on()


# No way leads back from the last one.
TESTS: tuple[Callable[[Guest], None], ...] = (
    nothing_there,
    unusable_regions,
    daemon_absent,
    other_major,
    other_kernel,
    locked_down,
)
