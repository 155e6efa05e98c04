# SPDX-License-Identifier: Apache-2.0 OR MIT
"""One virtual machine: its command line, its life, and commands inside it.

Commands reach the guest through the guest agent over virtio-serial, never
through the network, because the network is what is being tested. Everything
a VM needs is prepared before QEMU starts; when the `with` block ends, QEMU is
killed: nothing in a guest is worth a clean shutdown.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shlex
import signal
import subprocess
import threading
import time
import uuid as uuids
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from . import accel, emulator, image, isolate, kernels, paths, verdict, wire
from .sh import LabError, say

ROOT_PORTS = 4
LONG = 180  # seconds that a command may take on a busy machine, if nothing else is said
# Seconds that a task may be stuck in the kernel before the log says so. With lockdep and KASAN the
# holder of a lock on the only CPU needs many times as long for each call.
HUNG, HUNG_DEBUG = 30, 120
NAMESPACE = uuids.UUID("6b0e8f0a-5a0c-4f5e-9d8e-48616c6c7761")


class VMError(LabError):
    """A guest did not boot, died, or a command in it failed."""


@dataclass(frozen=True)
class Result:
    """What a command in the guest said, and how it ended."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Plain:
    """An ivshmem-plain device over a shared file on the host."""

    path: Path
    size: int
    id: str = "ring0"


@dataclass
class Config:
    """How to start a VM; the defaults suit a test."""

    number: int = 1
    kernel: str = "6.1"
    share: Path | None = None
    image: str = "basic"  # which of image.KINDS the root disk is
    cpus: int = 1
    memory_mib: int = 1024
    machine: str | None = None  # the one that suits the kernel
    port_room: str = "4G"  # for hot-plugged memory, at each root port of a q35
    qemu: str | None = None
    doorbell: Path | None = None
    monitor: Path | None = None  # another QMP socket, which is hallwayd's own
    plain: list[Plain] = field(default_factory=list)
    network: bool = True
    reboots: bool = False  # a guest that reboots stays in its QEMU; else it ends it
    cmdline: str = ""
    kmemleak: bool = False  # on the debug kernel: see leaks.py; guests are half as fast with it
    extra: list[str] = field(default_factory=list)
    boot_timeout: float = 120
    host: str | None = None  # the lab's host that it runs on: see hosts.py
    disk: Path | None = None  # a disk of its own over the root image, instead of a throw-away one
    moves: int = 0  # how often the guest has migrated: its QEMU waits for it


class VM:
    """A running guest; use it as a context manager.

    >>> with VM(number=1, kernel="6.1") as vm:
    ...     print(vm.run("uname -r").out)
    """

    network = "virtio-net, tap and bridge"  # what its packets go through

    def __init__(self, config: Config | None = None, **options: Any) -> None:
        self.config = config or Config(**options)
        self.name = f"vm{self.config.number}"
        self.ip4 = f"10.77.0.{self.config.number}"
        self.ip6 = f"fd77::{self.config.number}"
        self.uuid = str(uuids.uuid5(NAMESPACE, self.name))
        self.kernel = kernels.kernel(self.config.kernel)
        self.machine = self.config.machine or self.kernel.machine
        self.log = paths.out("vm", f"{self.name}.log")
        self.qemu_log = paths.out("vm", f"{self.name}.qemu.log")
        # Of this QEMU alone; another one of the guest may still run on the same host.
        self._tap = f"{self.name}.{self.config.moves}" if self.config.moves else self.name
        self._sockets = paths.RUN / self._tap
        self._boots = 1
        self._ports: dict[str, int] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._qmp: wire.Wire | None = None
        self._agent: wire.Wire | None = None
        self._agent_lock = threading.Lock()

    # -- life ---------------------------------------------------------------

    def __enter__(self) -> VM:
        self.start()
        try:
            self.wait_boot()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start QEMU and return at once: several VMs then boot side by side."""
        self._sockets.mkdir(parents=True, exist_ok=True)
        if not self.config.moves:
            self.log.write_bytes(b"")
        chosen = self.emulator
        if self.config.network:
            isolate.add_tap(self._tap, self.config.host)
        command = [*isolate.on_host(self.config.host), *chosen.command, *self._arguments()]
        with open(self.qemu_log, "wb") as log:
            log.write((shlex.join(command) + "\n").encode())
            log.flush()
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **chosen.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C is for the lab alone: it ends its VMs itself
            )

    def stop(self) -> None:
        """Kill the VM; harmless if it is not running."""
        for connection in (self._qmp, self._agent):
            if connection:
                connection.close()
        self._qmp = self._agent = None
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None
            if self.config.network:
                isolate.drop_tap(self._tap, self.config.host)

    def reset(self) -> None:
        """Press the machine's reset button; `wait_boot` then waits for the guest to be back."""
        assert self.config.reboots, "this QEMU ends when its guest reboots"
        self.expect_boot()
        self.qmp.command("system_reset")

    def expect_boot(self) -> None:
        """Expect the guest to boot again; `wait_boot` then waits for that."""
        self._boots += 1
        if self._agent:
            self._agent.close()
            self._agent = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Have the machine stand still for the length of the block."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    @property
    def emulator(self) -> emulator.Emulator:
        """The QEMU that it runs on."""
        named = self.config.qemu
        return emulator.emulator(named) if named else emulator.for_kernel(self.kernel.name)

    @property
    def pid(self) -> int:
        """QEMU's process id."""
        assert self._process is not None
        return self._process.pid

    def wait_boot(self) -> None:
        """Wait until the guest agent answers."""
        deadline = time.monotonic() + self.config.boot_timeout
        while self.log.read_bytes().count(b"lab: guest is up") < self._boots:
            self._check_alive()
            if time.monotonic() > deadline:
                raise VMError(
                    f"{self.name} did not boot within {self.config.boot_timeout:.0f} s\n{self._tail()}"
                )
            time.sleep(0.05)
        self._find_agent(deadline)

    def _find_agent(self, deadline: float) -> None:
        self._agent = wire.Wire(self._sockets / "agent", 10)
        while not wire.agent_sync(self._agent, 1):
            self._check_alive()
            if time.monotonic() > deadline:
                raise VMError(f"{self.name}: the guest agent does not answer\n{self._tail()}")

    def double(self, **options: Any) -> Self:
        """Describe the QEMU that this guest may migrate to, with other options."""
        other = type(self)(replace(self.config, moves=self.config.moves + 1, **options))
        other.log, other.qemu_log = self.log, self.qemu_log.with_name(f"{other._tap}.qemu.log")
        return other

    def become(self, other: VM) -> None:
        """Go on in the QEMU that this guest has migrated to; the one of before ends."""
        self.stop()
        self.config, self.qemu_log = other.config, other.qemu_log
        self._tap, self._sockets, self._ports = other._tap, other._sockets, other._ports
        self._process, self._qmp, other._process, other._qmp = other._process, other._qmp, None, None
        self._find_agent(time.monotonic() + 60)

    @property
    def qmp(self) -> wire.Wire:
        """The monitor connection, opened at first use."""
        if self._qmp is None:
            self._check_alive()
            self._qmp = wire.monitor(self._sockets / "qmp")
        return self._qmp

    def _check_alive(self) -> None:
        if self._process is None:
            raise VMError(f"{self.name} is not running")
        code = self._process.poll()
        if code is not None:
            said = self.qemu_log.read_text(errors="replace")[-2000:]
            raise VMError(f"{self.name}: QEMU ended with code {code}\n{said}\n{self._tail()}")

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-25:])

    def verdict(self) -> verdict.Verdict:
        """Judge what the kernel said so far."""
        return verdict.scan_file(self.log)

    # -- command line ---------------------------------------------------------

    def _arguments(self) -> list[str]:
        cfg = self.config
        words = ["-name", self.name, "-uuid", self.uuid, "-nodefaults", "-no-user-config", "-display", "none"]
        words += ["-machine", self.machine, "-m", str(cfg.memory_mib)]
        # With room for one CPU alone, TCG takes every barrier and LOCK prefix for
        # needless, and memory shared with another QEMU would not be coherent.
        words += [*accel.arguments(), "-smp", f"{cfg.cpus},maxcpus={cfg.cpus + 1}"]
        words += [] if cfg.reboots else ["-no-reboot"]
        if cfg.moves:
            words += ["-incoming", "defer"]
        return words + self._devices() + self._shared_memory() + cfg.extra

    def _devices(self) -> list[str]:
        """What a VM of the lab consists of, but for its machine and its shared memory."""
        cfg = self.config
        words = self._bridges() + self._system()
        words += self._serial()
        for monitor in (self._sockets / "qmp", cfg.monitor):
            words += ["-qmp", f"unix:{monitor},server=on,wait=off"] if monitor else []
        if cfg.disk:
            words += disk("root", cfg.disk, "format=qcow2")
        else:
            words += disk("root", image.root_image(cfg.image), "format=raw,snapshot=on")
        # systemd comes with packages that add modules: see guest/initramfs.
        mode = "snapshot=on" if "lab.systemd" in cfg.cmdline else "read-only=on"
        words += disk("modules", image.modules_image(self.kernel), f"format=raw,{mode}")
        words += ["-device", "virtio-rng-pci", "-device", "virtio-serial-pci"]
        words += ["-chardev", f"socket,id=agent,path={self._sockets}/agent,server=on,wait=off"]
        words += ["-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0"]
        share = cfg.share or paths.out("share", "x").parent
        share.mkdir(parents=True, exist_ok=True)
        words += ["-virtfs", f"local,path={share},mount_tag=hallway,security_model=none,readonly=on"]
        return words + self._network()

    def _system(self) -> list[str]:
        """What the machine boots."""
        words = ["-kernel", str(self.kernel.boot), "-initrd", str(image.initramfs(self.kernel))]
        return [*words, "-append", self._cmdline()]

    def _serial(self) -> list[str]:
        return ["-chardev", f"file,id=log,path={self.log},append=on", "-serial", "chardev:log"]

    def _bridges(self) -> list[str]:
        """Make room above 4 GiB, and on q35 root ports, for hot-plugged memory."""
        host = "q35-pcihost" if self.machine == "q35" else "i440FX-pcihost"
        words = ["-global", f"{host}.pci-hole64-size=64G"]
        if self.machine == "q35":
            for slot in range(ROOT_PORTS):
                port = f"pcie-root-port,id=port{slot},chassis={slot + 1},bus=pcie.0"
                words += ["-device", f"{port},pref64-reserve={self.config.port_room}"]
        return words

    def _cmdline(self) -> str:
        is_debug = self.kernel.name in kernels.DEBUG
        hung = HUNG_DEBUG if is_debug else HUNG
        words = (
            "console=ttyS0 loglevel=7 panic=-1 no_timer_check net.ifnames=0 rcupdate.rcu_cpu_stall_timeout=60"
            f" possible_cpus={self.config.cpus} sysctl.kernel.hung_task_timeout_secs={hung}"
        )
        if is_debug and not self.config.kmemleak:
            words += " kmemleak=off"
        words += f" lab.host={self.name} lab.ip4={self.ip4}/24 lab.ip6={self.ip6}/64"
        return f"{words} {self.config.cmdline}".strip()

    def _network(self) -> list[str]:
        if not self.config.network:
            return []
        mac = f"52:54:00:77:00:{self.config.number:02x}"
        vhost = "on" if accel.name() == "kvm" else "off"
        return [
            "-netdev", f"tap,id=net0,ifname={self._tap},script=no,downscript=no,vhost={vhost}",
            "-device", f"virtio-net-pci,netdev=net0,mac={mac},romfile=",
        ]  # fmt: skip

    def _shared_memory(self) -> list[str]:
        words: list[str] = []
        if self.config.doorbell:
            words += ["-chardev", f"socket,path={self.config.doorbell},id=hd"]
            words += ["-device", "ivshmem-doorbell,id=door,chardev=hd,vectors=1,master=on"]
        for plain in self.config.plain:
            words += [
                "-object",
                f"memory-backend-file,id=mem-{plain.id},share=on,mem-path={plain.path},size={plain.size}",
            ]
            words += ["-device", f"ivshmem-plain,id={plain.id},memdev=mem-{plain.id}"]
        return words

    def plug(self, plain: Plain) -> None:
        """Hot-plug a shared memory device."""
        backend = {"share": True, "mem-path": str(plain.path), "size": plain.size}
        self.qmp.command("object-add", qom_type="memory-backend-file", id=f"mem-{plain.id}", **backend)
        device = {"driver": "ivshmem-plain", "id": plain.id, "memdev": f"mem-{plain.id}"}
        if self.machine == "q35":
            device["bus"] = self._free_port(plain.id)
        self.qmp.command("device_add", **device)

    def _free_port(self, device: str) -> str:
        for slot in range(ROOT_PORTS):
            if slot not in self._ports.values():
                self._ports[device] = slot
                return f"port{slot}"
        raise VMError(f"{self.name}: all {ROOT_PORTS} root ports are taken")

    def unplug(self, device: str, timeout: float = 30) -> None:
        """Unplug a shared memory device; returns when guest and QEMU have let go of it."""
        deadline = time.monotonic() + timeout
        self.qmp.command("device_del", id=device)
        self.qmp.wait_event("DEVICE_DELETED", timeout, device=device)
        self.qmp.command("object-del", id=f"mem-{device}")
        self._ports.pop(device, None)
        while f"/mem-{device} " in self.qmp.command("human-monitor-command", command_line="info ramblock"):
            if time.monotonic() > deadline:
                raise VMError(f"{self.name}: QEMU keeps the memory of {device}")
            time.sleep(0.01)

    # -- commands in the guest -------------------------------------------------

    def run(
        self,
        command: str,
        timeout: float = LONG,
        check: bool = True,
        stdin: str | None = None,
        first: bool = False,
    ) -> Result:
        """Run a shell command in the guest and wait for it.

        `first`: ahead of all that keeps the guest's CPU busy; for commands that observe, not for what is
        under test.
        """
        job = self.spawn(command, stdin, first)
        return job.result(timeout) if check else job.wait(timeout)

    def spawn(self, command: str, stdin: str | None = None, first: bool = False) -> Job:
        """Start a shell command in the guest in the background."""
        # The agent itself has the highest priority (guest/init), and hands it on.
        words = [*([] if first else ["nice", "-n", "20"]), "sh", "-c", command]
        options: dict[str, Any] = {"path": words[0], "arg": words[1:], "capture-output": True}
        options["env"] = [
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/hallway",
            "HOME=/root",
        ]
        if stdin is not None:
            options["input-data"] = base64.b64encode(stdin.encode()).decode()
        answer = self.ask("guest-exec", **options)
        return Job(self, answer["pid"], command)

    def put(self, text: str, path: str) -> None:
        """Write a small file in the guest."""
        self.run(f"cat > {shlex.quote(path)}", stdin=text)

    def get(self, path: str) -> str:
        """Read a small file from the guest."""
        return self.run(f"cat {shlex.quote(path)}").out

    def ask(self, name: str, timeout: float = 30, **arguments: Any) -> Any:
        """Send one command to the guest agent."""
        self._check_alive()
        if self._agent is None:
            raise VMError(f"{self.name} has not booted")
        with self._agent_lock:
            return self._agent.command(name, timeout, **arguments)


class Job:
    """A command that runs in a guest."""

    def __init__(self, vm: VM, pid: int, command: str) -> None:
        self.vm, self.pid, self.command = vm, pid, command
        self._result: Result | None = None

    def poll(self) -> Result | None:
        """Return the result if the command has ended."""
        if self._result is None:
            status = self.vm.ask("guest-exec-status", pid=self.pid)
            if status["exited"]:
                code = status.get("exitcode", 128 + status.get("signal", 0))
                self._result = Result(code, _text(status, "out-data"), _text(status, "err-data"))
        return self._result

    def wait(self, timeout: float = LONG) -> Result:
        """Wait for the end; a command that takes too long is killed."""
        deadline = time.monotonic() + timeout
        pause = 0.005
        while (result := self.poll()) is None:
            if time.monotonic() > deadline:
                self.kill()
                raise VMError(
                    f"{self.vm.name}: `{self.command}` not done after {timeout:.0f} s\n{self.vm._tail()}"
                )
            # asking costs the guest's only CPU time: ask ever less often
            time.sleep(pause)
            pause = min(pause * 1.5, 0.25)
        return result

    def result(self, timeout: float = LONG) -> Result:
        """Wait for the end; a command that fails is an error."""
        result = self.wait(timeout)
        if result.code:
            said = (result.out + result.err)[-4000:]
            raise VMError(f"{self.vm.name}: `{self.command}` ended with code {result.code}\n{said}")
        return result

    def kill(self, number: int = 15) -> None:
        """Signal the command and its children."""
        script = f"pkill -{number} -P {self.pid}; kill -{number} {self.pid}"
        self.vm.ask("guest-exec", path="/bin/sh", arg=["-c", script])


def _text(status: dict[str, Any], name: str) -> str:
    return base64.b64decode(status.get(name, "")).decode(errors="replace")


def disk(name: str, path: Path, mode: str) -> list[str]:
    """Return QEMU's words for a disk, which the guest finds by the name."""
    drive = f"if=none,id={name},file={path},cache=unsafe,{mode}"
    return ["-drive", drive, "-device", f"virtio-blk-pci,drive={name},serial={name}"]


@contextlib.contextmanager
def boot_all(*machines: VM) -> Iterator[None]:
    """Boot several VMs side by side; all are stopped at the end of the block."""
    begin = time.monotonic()
    try:
        for machine in machines:
            machine.start()
        for machine in machines:
            machine.wait_boot()
        say(f"{len(machines)} VMs up after {time.monotonic() - begin:.1f} s ({accel.name()})")
        yield
    finally:
        for machine in machines:
            machine.stop()
