# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Guests as tests see them: the module, its counters, streams between them."""

from __future__ import annotations

import compileall
import contextlib
import json
import os
import py_compile
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hallway_lab import modbuild, paths
from hallway_lab.kernels import DEBUG
from hallway_lab.leaks import leaks
from hallway_lab.sh import LabError, run
from hallway_lab.vm import VM, Job

from .suite import PATIENCE, GuestLost, check, wait_for

TESTS = Path(__file__).resolve().parents[1]
REPO = TESTS.parent
# Parameters with which the module promotes a connection at its first byte.
AT_ONCE = {"promote_bytes": 0, "promote_ms": 0}
SLOWER = 4  # how much longer things may take on the debug kernel
STALL = 30  # seconds that a call of the stream program may take


def slowness(kernel: str) -> int:
    """Return how much longer things may take on a kernel."""
    return SLOWER if kernel in DEBUG else 1


def share_folder(kernel: str) -> Path:
    """Return the folder that guests of a kernel see as /hallway."""
    return paths.out("tests", f"share-{kernel}")


def share(kernel: str) -> Path:
    """Build what guests of a kernel need, and lay it out for them."""
    folder = share_folder(kernel)
    programs = paths.out("tests", "bin", "x").parent
    with paths.lock("test-programs"):
        run(["make", "-s", "-C", TESTS / "helpers", f"OUT={programs}"])
    source = os.environ.get("HALLWAY_TEST_SOURCE")  # another tree's module, to see tests fail
    module = modbuild.build(kernel, source=Path(source) if source else None)
    with paths.lock("host"):
        run(["cargo", "build", "--release", "--locked", "-q"], cwd=REPO / "host")
    folder.mkdir(parents=True, exist_ok=True)
    modules = module.parent.glob("*.ko")
    for path in (*modules, REPO / "host/target/release/hallway", *programs.iterdir()):
        _replace(path, folder / path.name)
    programs_of_guests = folder / "guest"
    for tree, target in (
        (REPO / "abi/hallway", folder / "abi"),
        (TESTS / "module/guest", folder / "tests"),
        (TESTS / "hallway_tests/guest", programs_of_guests),
    ):
        shutil.copytree(tree, target, dirs_exist_ok=True, copy_function=_replace)
    # A guest with another version of Python compiles them itself.
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(programs_of_guests, quiet=1, invalidation_mode=unchecked)
    return folder


def _replace(source: str | Path, target: str | Path) -> None:
    """Copy a file at once: guests of another run may be reading it."""
    fresh = f"{target}.new"
    shutil.copy(source, fresh)
    os.replace(fresh, target)


def settle_in(vm: VM) -> None:
    """Copy the programs to the guest's own disk: the shared folder is slow to run from."""
    vm.run("cp /hallway/hallway /hallway/stream /hallway/toggle /usr/local/bin/")


def insmod(vm: VM, *, file: str = "hallway.ko", **params: object) -> None:
    """Load the module."""
    words = " ".join(f"{name}={value}" for name, value in params.items())
    vm.run(f"insmod /hallway/{file} {words}", first=True)


def rmmod(vm: VM, timeout: float = 60) -> None:
    """Unload the module, and the one of tunnels if it is there."""
    words = "! test -d /sys/module/hallway_vsock || rmmod hallway_vsock; rmmod hallway"
    vm.run(words, timeout=timeout, first=True)


def loaded(vm: VM) -> bool:
    """Tell whether the module is loaded."""
    return vm.run("test -d /sys/module/hallway", check=False, first=True).code == 0


def counters(vm: VM) -> dict[str, int]:
    """Return the module's counters."""
    return json.loads(vm.run("hallway counters --json", first=True).out)


def connections(vm: VM) -> list[dict[str, Any]]:
    """Return the module's connections."""
    return json.loads(vm.run("hallway connections --json", first=True).out)


def status(vm: VM) -> dict[str, Any]:
    """Return the module's status: itself and its members."""
    return json.loads(vm.run("hallway status --guest --json", first=True).out)


def members(vm: VM) -> set[str]:
    """Return the addresses that are served."""
    return {str(a) for m in status(vm)["members"] for a in m["addresses"]}


def wait_members(*vms: VM, timeout: float = 30) -> None:
    """Wait until every VM knows the addresses of all the others."""
    for vm in vms:
        others = {address for other in vms if other is not vm for address in (other.ip4, other.ip6)}
        wait_for(lambda: others <= members(vm), f"{vm.name} serves {others}", timeout)  # noqa: B023


class Delta:
    """How much the counters moved since this was made."""

    def __init__(self, *vms: VM) -> None:
        self._before = {vm.name: counters(vm) for vm in vms}

    def of(self, vm: VM) -> dict[str, int]:
        """Return each counter's increase."""
        before = self._before[vm.name]
        return {name: value - before[name] for name, value in counters(vm).items()}


def odd(moved: dict[str, int], *, watchdog: bool = True) -> list[str]:
    """Corruption, or a sleeper that only the watchdog saved, among counters that moved.

    The watchdog's seconds are too short for the debug kernel: it is not asked there.
    """
    names = ["corrupt_rings", "corrupt_messages", "messages_lost"] + ["watchdog_wakes"] * watchdog
    return [f"{name} is {moved[name]}" for name in names if moved[name]]


@contextlib.contextmanager
def autopsy(*vms: VM) -> Iterator[None]:
    """Add what every task of the guests is doing to a failure in the block."""
    try:
        yield
    except (AssertionError, LabError) as error:
        said = "".join(f"\n--- {vm.name}: {_tasks(vm)}" for vm in vms)
        raise type(error)(f"{error}{said}") from error


def _tasks(vm: VM) -> str:
    script = (
        "hallway connections 2>&1 | head -40; hallway counters | grep -v ' 0$';"
        " for t in /proc/[0-9]*/task/[0-9]*; do grep -q hall $t/stack 2>/dev/null &&"
        " { cat $t/comm; cat $t/stack; }; done; ss -tneimo | head -40"
    )
    try:
        return vm.run(script, check=False, timeout=20, first=True).out[-6000:]
    except LabError as mute:
        return f"no answer: {mute}"


class Stream:
    """The stream program on two guests; every byte is checked by it."""

    port = 5000

    def __init__(
        self, server: VM, client: VM, to: str | None = None, both: str = "", **options: object
    ) -> None:
        Stream.port += 1
        self.port = Stream.port
        self.server_vm, self.client_vm = server, client
        self.conns = int(str(options.pop("conns", 1)))
        prefix_s, prefix_c = options.pop("prefix_server", ""), options.pop("prefix_client", "")
        client_words = f"{options.pop('client_only', '')}"
        stall = STALL * slowness(server.kernel.name)
        seed = random.getrandbits(32)
        shared = f"--port {self.port} --conns {self.conns} --seed {seed} --stall {stall} {both}"
        limits = "".join(f" --{name} {value}" for name, value in options.items())
        self.command = f"stream client {to or server.ip4} {shared}{limits} {client_words}"
        self.server = server.spawn(f"{prefix_s} stream server {shared}")
        self.client = client.spawn(f"{prefix_c} {self.command}")

    def stop(self) -> None:
        """Ask the client to send no more; both sides then drain and end."""
        ask = f"exec pkill -TERM -f '^stream client.*--port {self.port} '"
        self.client_vm.run(ask, check=False, timeout=120, first=True)

    def running(self) -> bool:
        """Tell whether both sides still run."""
        return self.client.poll() is None and self.server.poll() is None

    def check_running(self, when: str) -> None:
        """Fail if a side has ended, with what it said."""
        said = [job.poll() for job in (self.client, self.server)]
        check(said == [None, None], f"the stream ended {when}: {said}")

    def results(self, timeout: float = 90) -> tuple[dict[str, Any], dict[str, Any]]:
        """Wait for the end and return what client and server say."""
        timeout *= PATIENCE
        with autopsy(self.client_vm, self.server_vm):
            said = [self.client.wait(timeout), self.server.wait(timeout)]
        for result in said:
            check(result.out.startswith("{"), f"stream died: {result.code} {result.err[-500:]}")
        return json.loads(said[0].out), json.loads(said[1].out)

    def finish(self, timeout: float = 90) -> int:
        """Wait for the end; every byte must have come. Returns the bytes moved."""
        client, server = self.results(timeout)
        for result in (client, server):
            if "fatal" in result:
                raise AssertionError(f"{self.command}: {result}")
            check(not result["errors"], f"{self.command}: {result['role']}: " + "\n".join(result["reports"]))
        for i, (mine, theirs) in enumerate(zip(client["per"], server["per"], strict=True)):
            check(
                mine == theirs[::-1],
                f"{self.command}: connection {i}: client [sent, received] {mine}, server {theirs}",
            )
        return client["sent"] + client["received"]


def healthy(*vms: VM) -> None:
    """Fail if a guest is gone or its kernel complained."""
    for vm in vms:
        try:
            vm.run("true", timeout=30, first=True)
        except LabError as error:
            raise GuestLost(f"{error}\n{vm.verdict()}") from error
        health = vm.verdict()
        if not health.ok:
            raise GuestLost(f"{vm.name}'s kernel complained ({vm.log}): {health}")


def wait_listening(vm: VM, port: int, timeout: float = 20) -> None:
    """Wait until a program of the guest listens at a port of TCP."""
    wait_for(lambda: vm.run(f"ss -Hltn sport = :{port}").out, f"port {port} is open", timeout)


def no_leaks(*vms: VM) -> None:
    """Fail if the debug kernel finds memory that nothing points to; the module is unloaded."""
    for vm in vms:
        found = leaks(vm)
        check(not found, f"{vm.name} leaks memory:\n{found}")


def jobs_end(*jobs: Job, timeout: float = 60) -> None:
    """Wait for jobs and fail if one failed."""
    for job in jobs:
        result = job.wait(timeout * PATIENCE)
        check(result.code == 0, f"{job.command}: code {result.code}: {result.out[-500:]}{result.err[-500:]}")


def binaries() -> Path:
    """Return the folder of daemon and CLI."""
    return REPO / "host/target/release"


def call(*words: object) -> subprocess.CompletedProcess[str]:
    """Run a program on the host."""
    return subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False)
