# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A guest with Secure Boot: modules signed as DKMS signs them, and a key that MokManager enrolls."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from hallway_lab import kernels, paths, secureboot, topology
from hallway_lab.emulator import FAST
from hallway_lab.secureboot import SecureVM
from hallway_lab.sh import run
from hallway_lab.vm import Config

from . import pair
from .guests import settle_in
from .pair import Pair

NUMBER = 4
CERTIFICATE = "mok.pub"  # in /var/lib/dkms where DKMS itself has made it
PASSWORD = "once only"
MODULE, UNSIGNED, FOREIGN = "hallway.ko", "unsigned.ko", "foreign.ko"
# The guest's mokutil, with a library of its own.
MOKUTIL = "LD_LIBRARY_PATH=/hallway/mokutil /hallway/mokutil/mokutil"
ENTER, DOWN = "\r", "\x1b[B"


def prepare(_kernel: str) -> None:
    """Fetch firmware and boot loaders: see `needs`."""
    secureboot.files()


def lay_out(kernel: str, share: Path) -> Path:
    """Lay out what the guest sees as /hallway: the tests' share, mokutil, and modules of three kinds."""
    folder = paths.out("secureboot", kernel, "share", "x").parent
    keys = paths.out("secureboot", kernel, "keys", "x").parent
    shutil.rmtree(folder)
    shutil.copytree(share, folder)
    mokutil = folder / "mokutil"
    mokutil.mkdir()
    for path in ("usr/bin/mokutil", "usr/lib/x86_64-linux-gnu/libefivar.so.1"):
        shutil.copy(secureboot.files() / path, mokutil)
    for name in (UNSIGNED, FOREIGN):
        shutil.copy(folder / MODULE, folder / name)
    _sign(kernel, _make_key(keys, "mok"), folder / MODULE, folder / "hallway_vsock.ko")
    _sign(kernel, _make_key(keys, "foreign"), folder / FOREIGN)
    shutil.copy(keys / CERTIFICATE, folder)
    return folder


def _make_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Make a key and its certificate by DKMS' own command."""
    key, certificate = folder / f"{name}.key", folder / f"{name}.pub"
    words = ["openssl", "req", "-new", "-x509", "-nodes", "-days", "36500", "-newkey", "rsa:2048"]
    words += ["-subj", "/CN=DKMS module signing key", "-keyout", str(key)]
    run([*words, "-outform", "DER", "-out", certificate])
    return key, certificate


def _sign(kernel: str, key: tuple[Path, Path], *modules: Path) -> None:
    """Sign modules as DKMS does: by the kernel's own program, once they are stripped."""
    program = kernels.kernel(kernel).build_dir / "scripts/sign-file"
    for module in modules:
        run([program, "sha256", *key, module])


def import_key(vm: SecureVM) -> None:
    """Ask for the key to be enrolled, as docs/faq.md says."""
    vm.run(f"{MOKUTIL} --import /hallway/{CERTIFICATE}", stdin=f"{PASSWORD}\n" * 2)


def confirm_key(vm: SecureVM, timeout: float) -> None:
    """Boot, and answer MokManager on the console as its user does."""
    console = vm.console()
    vm.reset()
    for words, keys in (
        (["Press any key to perform MOK management"], ENTER),
        (["Continue boot", "Enroll MOK", "Enroll hash from disk"], DOWN + ENTER),
        (["View key 0", "Continue"], DOWN + ENTER),
        (["Enroll the key(s)?", "No", "Yes"], DOWN + ENTER),
        (["Password:"], PASSWORD + ENTER),
        (["Reboot", "Enroll hash from disk"], ENTER),
    ):
        for word in words:
            console.wait(word, timeout)
        console.type(keys)
    vm.wait_boot()
    settle_in(vm)  # the reset came before all files were on its disk
    _mount(vm)


def _mount(vm: SecureVM) -> None:
    """Mount what systemd mounts: mokutil and hallway read there."""
    vm.run("mount -t efivarfs efivarfs /sys/firmware/efi/efivars")
    vm.run("mount -t securityfs securityfs /sys/kernel/security")


@contextlib.contextmanager
def booted(kernel: str, share: Path, logs: Path, slow: float) -> Iterator[Pair]:
    """Boot a VM of the lab, and one with Secure Boot, for the length of the block."""
    site = topology.Site(topology.Daemon())
    first = site.vm(1, kernel, share=share, qemu=FAST, boot_timeout=120 * slow)
    guest = SecureVM(
        Config(
            number=NUMBER,
            kernel=kernel,
            share=lay_out(kernel, share),
            machine="q35",
            qemu=FAST,
            doorbell=site.daemon.socket,
            reboots=True,
            boot_timeout=240 * slow,
        )
    )
    with pair.running(site, [first, guest], logs):
        _mount(guest)
        yield Pair(site, first, guest, kernel, slow, logs, share)
