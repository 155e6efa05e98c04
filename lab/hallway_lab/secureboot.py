# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A VM with firmware that enforces Secure Boot: OVMF, Debian's shim and grub, and the lab's kernel.

OVMF has Microsoft's keys, as machines have them; shim has Debian's, and starts MokManager. All of them
are Debian's files, as Debian signed them. OVMF and MokManager have the serial port as their only console.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from . import image, paths
from .aptbox import AptBox
from .sh import run, step
from .vm import VM, VMError, disk

PACKAGES = ("ovmf", "shim-signed", "shim-helpers-amd64-signed", "grub-efi-amd64-signed")
TOOLS = ("mtools", "mokutil", "libefivar1")  # mokutil and its library are for the guest
FIRMWARE = "usr/share/OVMF/OVMF_CODE_4M.secboot.fd"
VARIABLES = "usr/share/OVMF/OVMF_VARS_4M.ms.fd"
# What firmware starts on a disk for which it has no entry, and what that starts.
BOOT = {
    "BOOTX64.EFI": "usr/lib/shim/shimx64.efi.signed",
    "mmx64.efi": "usr/lib/shim/mmx64.efi.signed",
    "grubx64.efi": "usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed",
}
ESP_MIB = 48


def files() -> Path:
    """Return the folder of the unpacked packages, fetching them if need be."""
    wanted = (*PACKAGES, *TOOLS)
    with paths.lock("secureboot"):
        folder = paths.cache("secureboot", paths.key(wanted))
        if not folder.exists():
            with step("fetching firmware and boot loaders"), paths.workshop(folder) as parts:
                AptBox("stable").unpack(parts / "tree", list(wanted))
                (parts / "tree").rename(folder)
        return folder


class SecureVM(VM):
    """Such a VM. Its variables, and with them its keys, last from one boot to the next."""

    _keyboard: int | None = None

    def _scratch(self, name: str) -> Path:
        return Path(os.environ["TMPDIR"], f"{self.name}.{name}")

    def start(self) -> None:
        """Start QEMU with variables as they come from the factory."""
        shutil.copy(files() / VARIABLES, self._scratch("vars"))
        self._build_esp(self._scratch("esp"))
        keys = self._scratch("keys")
        keys.unlink(missing_ok=True)
        os.mkfifo(keys)
        # Open at both ends as long as the VM lives: QEMU waits for the one that writes.
        self._keyboard = os.open(keys, os.O_RDWR)
        super().start()

    def stop(self) -> None:
        """Kill the VM; harmless if it is not running."""
        super().stop()
        if self._keyboard is not None:
            os.close(self._keyboard)
            self._keyboard = None

    def _build_esp(self, esp: Path) -> None:
        """Make the disk that the firmware boots from."""
        config = self._scratch("grub.cfg")
        config.write_text(f"linux /vmlinuz {self._cmdline()}\ninitrd /initrd\nboot\n")
        assert self.kernel.vmlinuz
        content = {f"EFI/BOOT/{name}": files() / path for name, path in BOOT.items()}
        content["EFI/debian/grub.cfg"] = config
        content |= {"vmlinuz": self.kernel.vmlinuz, "initrd": image.initramfs(self.kernel)}
        esp.unlink(missing_ok=True)
        with esp.open("wb") as file:
            file.truncate(ESP_MIB << 20)
        mtools = [files() / "usr/bin/mtools", "-c"]
        run([*mtools, "mformat", "-i", esp, "-F", "::"])
        run([*mtools, "mmd", "-i", esp, "::EFI", "::EFI/BOOT", "::EFI/debian"])
        for name, path in content.items():
            run([*mtools, "mcopy", "-i", esp, path, f"::{name}"])

    def _system(self) -> list[str]:
        words = ["-machine", "smm=on", "-global", "driver=cfi.pflash01,property=secure,value=on"]
        for path, mode in ((files() / FIRMWARE, "on"), (self._scratch("vars"), "off")):
            words += ["-drive", f"if=pflash,format=raw,file={path},readonly={mode}"]
        words += disk("esp", self._scratch("esp"), "format=raw,snapshot=on")
        words[-1] += ",bootindex=0"
        return words

    def _serial(self) -> list[str]:
        # A file takes all at once: firmware drops what a serial port does not take within a second.
        words = super()._serial()
        words[1] += f",input-path={self._scratch('keys')}"
        return words

    def console(self) -> Console:
        """Return what is at the other end of the serial port, for all that comes from now on."""
        assert self._keyboard is not None, "this VM has not started"
        return Console(self.name, self.log, self._keyboard)


class Console:
    """What is at the other end of a VM's serial port."""

    def __init__(self, name: str, log: Path, keyboard: int) -> None:
        self._name, self._log, self._keyboard = name, log, keyboard
        self._read = log.stat().st_size

    def wait(self, words: str, timeout: float) -> None:
        """Wait until the machine has written these words, after those of the last wait."""
        deadline = time.monotonic() + timeout
        while (found := self._log.read_bytes().find(words.encode(), self._read)) < 0:
            if time.monotonic() > deadline:
                said = self._log.read_bytes()[self._read :]
                raise VMError(f"{self._name} does not say {words!r}:\n{said[-2000:]!r}")
            time.sleep(0.05)
        self._read = found + len(words)

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._keyboard, keys.encode())
