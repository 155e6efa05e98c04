# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Several VMs on one host: the daemon, its VMs, and the memory they share.

This is the arrangement that demo, tests, benchmarks and `make lab` share. The
region reaches a guest by hot-plug after boot rather than on QEMU's command
line: the firmware puts a 256 MiB device below 4 GiB, where guests map it
uncached, while Linux puts a hot-plugged one above.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import image, isolate, modbuild, paths, prepare
from .sh import LabError, run, say
from .vm import VM, Config, Plain, boot_all

RUN_DIR = Path("/run/hallway")
REGION_DIR = Path("/dev/shm/hallway")
SIZE_MIB = 256
SLOTS = 4


def share_folder(kernel_name: str) -> Path:
    """Return the folder that guests see as /hallway."""
    return paths.out("share", kernel_name, "x").parent


def lay_share(kernel_name: str, *more: Path) -> Path:
    """Lay out module, CLI and more programs as guests see them at /hallway; builds what is not current."""
    share = share_folder(kernel_name)
    binaries = prepare.build_host()
    for path in (*modbuild.build(kernel_name).parent.glob("*.ko"), binaries / "hallway", *more):
        if not path.exists():
            raise LabError(f"{path} was not built")
        shutil.copy(path, share / path.name)
    return share


def describe_vm(vm: VM, *groups: str, more: str = "") -> str:
    """Return the [[vm]] of hallwayd's configuration for a VM in these groups, with `more` at its end."""
    words: dict[str, Any] = {"name": vm.name, "uuid": vm.uuid, "groups": groups}
    if vm.config.monitor:
        words["monitor"] = str(vm.config.monitor)
    lines = ["[[vm]]", *(f"{key} = {json.dumps(value)}" for key, value in words.items()), more]
    return "\n" + "\n".join(lines) + "\n"


class Daemon:
    """hallwayd in the lab's namespaces, with its default paths; for a host of its own, with others.

    With a configuration it plugs regions in by itself, and the lab plugs none. `enter`: words before
    those of a program that is to find what this one finds.
    """

    def __init__(
        self,
        *words: str,
        region_mib: int = SIZE_MIB,
        slots: int = SLOTS,
        host: str = "",
        config: Path | None = None,
        region: Path | None = None,
        enter: Sequence[str | Path] = (),
    ) -> None:
        self.enter = enter
        self.run_dir = RUN_DIR.with_name(f"{RUN_DIR.name}-{host}") if host else RUN_DIR
        region_dir = REGION_DIR.with_name(f"{REGION_DIR.name}-{host}") if host else REGION_DIR
        self.config = config
        self.region = Plain(region or region_dir / "default", region_mib << 20)
        served = f"--region={self.region.path.name}:{region_mib}M:{slots}"
        self.words = [f"--config={config}" if config else served, *words]
        self.words += [f"--run-dir={self.run_dir}", f"--region-dir={self.region.path.parent}"]
        self.socket = self.run_dir / "hallwayd.sock"
        self.log = paths.out("vm", f"hallwayd{host and f'-{host}'}.log")
        self.log.write_bytes(b"")
        self.binaries = paths.REPO / "host/target/release"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, timeout: float = 60) -> None:
        """Start it and wait until it answers."""
        with open(self.log, "ab") as log:
            command = [*self.enter, self.binaries / "hallwayd", *self.words]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
            )
        deadline = time.monotonic() + timeout
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise LabError(f"hallwayd does not answer ({self.log}):\n{self.log.read_text()[-2000:]}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        return subprocess.run(self._asking(), capture_output=True, check=False).returncode == 0

    def _asking(self) -> list[str | Path]:
        return [self.binaries / "hallway", "status", "--json", "--run-dir", self.run_dir]

    def signal(self, number: int) -> None:
        """Send it a signal."""
        assert self._process
        self._process.send_signal(number)

    def kill(self, number: int = 9) -> None:
        """Signal it and wait for its end; what it holds for the VMs lives on."""
        if self._process:
            self.signal(number)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End it, and what it holds for the VMs."""
        run([self.binaries / "hallwayd", *self.words, "--stop"])
        if self._process:
            self._process.wait()
            self._process = None

    def memory(self, region: str) -> Path:
        """Return a path by which root can open a region that is in no file."""
        assert self._process
        folder = Path(f"/proc/{self._process.pid}/fd")
        return next(fd for fd in folder.iterdir() if f"memfd:hallway-{region} " in os.readlink(fd))

    def status(self) -> Any:
        """Return what `hallway status --json` tells."""
        return json.loads(run(self._asking()))

    def machine(self, vm: VM) -> dict[str, Any]:
        """Return what that tells of a VM of the configuration."""
        machines: list[dict[str, Any]] = self.status()["machines"]
        return next(machine for machine in machines if machine["uuid"] == vm.uuid)


@dataclass
class Site:
    """A daemon and the VMs that it serves."""

    daemon: Daemon
    vms: list[VM] = field(default_factory=list)

    def judge(self) -> None:
        """Raise if any guest's kernel complained."""
        for vm in self.vms:
            health = vm.verdict()
            if not health.ok:
                raise LabError(f"{vm.name}'s kernel complained ({vm.log}): {health}")

    @contextlib.contextmanager
    def join(self, *vms: VM) -> Iterator[None]:
        """Boot more VMs of this site for the length of the block."""
        with boot_all(*vms):
            for vm in vms:
                if not self.daemon.config:
                    vm.plug(self.daemon.region)
            self.vms += vms
            try:
                yield
            finally:
                self.vms = [vm for vm in self.vms if vm not in vms]

    def vm(self, number: int, kernel: str, **options: Any) -> VM:
        """Describe a VM of this site; `join` boots it."""
        return VM(Config(number=number, kernel=kernel, doorbell=self.daemon.socket, **options))


@contextlib.contextmanager
def pair(
    kernel: str = "6.1",
    *,
    load: bool = True,
    count: int = 2,
    each: Callable[[int], dict[str, Any]] = lambda _: {},
    **options: Any,
) -> Iterator[Site]:
    """Run a daemon and `count` VMs; with `load` the module is in each of them.

    Call `lay_share()` and `isolate.cut_off()` before. More options go to Config; `each` has those of a
    VM's number.
    """
    options.setdefault("share", paths.out("share", kernel))
    site = Site(Daemon(slots=max(SLOTS, count + 1)))
    site.daemon.start()
    try:
        vms = [site.vm(number, kernel, **options, **each(number)) for number in range(1, count + 1)]
        with site.join(*vms):
            if load:
                for vm in vms:
                    vm.run("insmod /hallway/hallway.ko")
            yield site
    finally:
        site.daemon.kill(15)


def shells(site: Site) -> None:
    """Hand a person a shell in each VM: panes of tmux, or one after the other."""
    isolate.need_private()
    if shutil.which("tmux"):
        _panes([vm.ip4 for vm in site.vms])
        return
    names = {vm.name: vm.ip4 for vm in site.vms}
    while True:
        say(f"type one of {', '.join(names)} for a shell in it, or q to end")
        try:
            word = input("> ").strip()
        except EOFError:
            return
        if word == "q":
            return
        if word in names:
            subprocess.run(_ssh(names[word]), check=False)


def _ssh(address: str) -> list[str]:
    quiet = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]
    return ["ssh", "-t", "-i", str(image.ssh_key()), *quiet, f"root@{address}"]


def _panes(addresses: list[str]) -> None:
    tmux = ["tmux", "-f", "/dev/null", "-S", "/run/hallway-lab/tmux"]
    first, *others = (" ".join(_ssh(address)) for address in addresses)
    run([*tmux, "new-session", "-d", "-s", "lab", first])
    for words in others:
        run([*tmux, "split-window", "-v", "-t", "lab", words])
    run([*tmux, "set-option", "-g", "mouse", "on"])
    subprocess.run([*tmux, "attach", "-t", "lab"], check=False)
