# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A guest with UEFI and Secure Boot: its kernel takes the module once DKMS' key is confirmed at boot."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hallway_lab.emulator import FAST
from hallway_lab.vm import VM
from hallway_tests import secureboot
from hallway_tests.guests import AT_ONCE, insmod, wait_members
from hallway_tests.pair import Pair
from hallway_tests.secureboot import FOREIGN, MODULE, MOKUTIL, UNSIGNED
from hallway_tests.streams import plain_tcp

from .conftest import Site

pytestmark = [
    *(pytest.mark.xdist_group("e2e-secure-boot"), pytest.mark.kernel("6.1")),
    pytest.mark.needs(f"qemu {FAST}", "hallway_tests.secureboot:prepare"),
]


@pytest.fixture
def secure_pair(site: Site, kernel: str, share: Path, slow: float) -> Pair:
    """Return a VM of the lab, and one with Secure Boot."""
    return site(lambda logs: secureboot.booted(kernel, share, logs, slow))


def test_key_confirmed(secure_pair: Pair, slow: float) -> None:
    """The kernel takes the module once MokManager has enrolled its key; doctor says all that is to do."""
    other, vm = secure_pair.both
    insmod(other, **AT_ONCE)
    assert vm.run(f"{MOKUTIL} --sb-state").out == "SecureBoot enabled\n"
    # Debian's kernel does this by itself.
    assert "[integrity]" in vm.get("/sys/kernel/security/lockdown")
    _check_refused(vm, UNSIGNED, "Loading of unsigned module is rejected")
    for file in (FOREIGN, MODULE):
        _check_refused(vm, file, "Loading of module with unavailable key is rejected")
    said = _advice(vm)
    assert "this kernel takes signed modules only (Secure Boot)" in said, said
    assert "mokutil --import /var/lib/dkms/mok.pub, reboot, and confirm it on the console" in said, said
    plain_tcp(other, vm)

    secureboot.import_key(vm)
    secureboot.confirm_key(vm, 120 * slow)
    _check_refused(vm, UNSIGNED, "Loading of unsigned module is rejected")
    _check_refused(vm, FOREIGN, "Loading of module with unavailable key is rejected")
    # UEFI has an MTRR by which ring memory would be uncached.
    assert re.search(r"base=0x[0-9a-f]{10,} .*uncachable", vm.get("/proc/mtrr"))
    insmod(vm, **AT_ONCE)
    wait_members(other, vm)
    secure_pair.stream_on_rings(other, vm, conns=2, enough=300_000)
    assert "all is well" in vm.run("hallway doctor").out


def _check_refused(vm: VM, file: str, reason: str) -> None:
    """The kernel does not take this module, and says why."""
    vm.run("dmesg -C")
    result = vm.run(f"insmod /hallway/{file}", check=False)
    assert result.code and "Key was rejected by service" in result.err, result
    assert reason in vm.run("dmesg").out


def _advice(vm: VM) -> str:
    """Return what doctor finds; it finds something."""
    result = vm.run("hallway doctor", check=False)
    assert result.code, result
    return result.out
