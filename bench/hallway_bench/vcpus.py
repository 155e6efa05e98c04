# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Benchmarks of one VM that sends to two others, with one, two and three CPUs, which hallwayd gives it.

Figure 8 of "IDTS: Inter-domain Tunnel Scheduling" (see docs/tunnels.md) is of this kind: there are two
connections to each receiver, writes have 64 bytes, and a receiver has one CPU. Before each run the VM sends
until hallwayd has given it as many CPUs as the configuration allows in that row.
"""

from __future__ import annotations

import contextlib
import functools
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hallway_lab import paths, tunnels
from hallway_lab.measure import Mesh
from hallway_lab.programs import Run
from hallway_lab.results import figure
from hallway_lab.sample import NOISE, Row, Samples
from hallway_lab.sh import LabError, run
from hallway_lab.topology import Daemon, Site, describe_vm
from hallway_lab.vm import VM, Job

from .group import Group
from .scenarios import STREAM_PORT
from .tunnels import KINDS

NUMBERS = (16, 17, 18)  # the first one sends
MOST = 3
CONNECTIONS = 2  # to each receiver
SIZE = 64
PATIENCE = 60  # seconds until the CPUs are given
LONG = 600  # seconds of what is sent meanwhile; it is killed
NEVER = 86400
# The machine may have no idle CPU: there the policy would give none. Between runs it changes nothing.
RULES = """
[cpus]
busy = 3
idle = 0
contended = 100
pause = 1
grow = {grow}
shrink = {shrink}

[[group]]
name = "all"
isolation = "shared"
size = "64M"
"""
LIMITS = """
[vm.cpus]
min = 1
max = {most}
"""


def _configure(site: Site, vms: Sequence[VM], count: int) -> None:
    """Have the first VM get as many CPUs, once it sends; or one, once it does not."""
    config = site.daemon.config
    assert config
    entries = [describe_vm(vm, "all") for vm in vms]
    entries[0] += LIMITS.format(most=max(count, 2))
    grow, shrink = (NEVER, 1) if count == 1 else (1, NEVER)
    config.write_text(RULES.format(grow=grow, shrink=shrink) + "".join(entries))


class Vcpus(Group):
    """The scenarios between these VMs; servers start when needed."""

    kind = "tunnels"
    stand: Mesh

    @contextlib.contextmanager
    def standing(self, kernel: str) -> Iterator[Mesh]:
        """Boot the VMs, with the modules."""
        with tempfile.TemporaryDirectory() as folder:
            site = Site(Daemon(host="vcpus", config=Path(folder) / "hallwayd.toml"))
            vms = [
                site.vm(
                    number,
                    kernel,
                    monitor=Path(f"/run/vm{number}.qmp"),
                    share=paths.out("share", kernel),
                    cpus=MOST if number == NUMBERS[0] else 1,
                )
                for number in NUMBERS
            ]
            _configure(site, vms, MOST)
            site.daemon.start()
            try:
                with site.join(*vms):
                    for vm in vms:
                        vm.run("insmod /hallway/hallway.ko")
                    self.stand = Mesh(site)
                    self.stand.await_members()
                    for vm in vms:
                        tunnels.load(vm)
                    yield self.stand
            finally:
                site.daemon.kill(15)

    def rows(self) -> list[Row]:
        """All scenarios, in the report's order."""
        return [
            Row(
                f"tunnel-cpus-{count}",
                f"one VM → two, {CONNECTIONS} streams to each, sender with {count} CPU{'s' * (count > 1)}",
                "MB/s",
                self._run,
                f"{CONNECTIONS} × stream -c vsock:CID PORT {SIZE} {self.seconds} to each, at once",
                1.0,
                settle=functools.partial(self._settle, count),
            )
            for count in range(1, MOST + 1)
        ]

    def is_met(self, samples: Samples, everything: Sequence[Samples]) -> bool:
        """Tell whether tunnels carry more than TCP, and with more CPUs not less than with one."""
        if not super().is_met(samples, everything):
            return False
        one = next((one for one in everything if one.row.key == "tunnel-cpus-1" and one.hallway), samples)
        return figure("", *samples.hallway).median >= (1 - NOISE) * figure("", *one.hallway).median

    def _settle(self, count: int, on: bool) -> None:
        """Have hallwayd give the sender as many CPUs: it sends by tunnels meanwhile, or nothing for one."""
        site = self.stand.site
        _configure(site, self.stand.vms, count)
        run([site.daemon.binaries / "hallwayd", *site.daemon.words, "--reload"])
        job = self._send("vsock", LONG) if count > 1 else None
        try:
            self._await(lambda: self._has(count), f"the sender does not get {count} CPUs")
        finally:
            if job:
                self.stand.client.run("pkill -KILL -x stream", check=False)
                job.wait()
        # What is left in rings would count as that of the next run.
        self._await(lambda: not self._count_tunnels(), "tunnels do not end")

    def _await(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            if time.monotonic() > deadline:
                daemon = self.stand.site.daemon
                shown = run([daemon.binaries / "hallway", "cpus", "--run-dir", daemon.run_dir])
                raise LabError(f"{what}:\n{shown}")
            time.sleep(0.5)

    def _has(self, count: int) -> bool:
        """Tell whether the sender is to have as many CPUs, and has them."""
        daemon = self.stand.site.daemon
        words = [daemon.binaries / "hallway", "cpus", "--json", "--run-dir", daemon.run_dir]
        try:
            said = run(words)
        except LabError:
            # It does not answer while it reads its configuration again.
            return False
        shown = json.loads(said).get(self.stand.client.name, {})
        online = int(self.stand.client.run("getconf _NPROCESSORS_ONLN", first=True).out)
        return shown.get("given") == shown.get("online") == online == count

    def _count_tunnels(self) -> int:
        said = json.loads(self.stand.client.run("hallway tunnels --json").out)
        return sum(one["tunnels"] for one in said["vms"])

    def _run(self) -> Run:
        job = self._send("vsock" if self.stand.on else "tcp", self.seconds)
        said = [json.loads(line) for line in job.result(self.seconds + 60).out.splitlines()]
        if len(said) != CONNECTIONS * len(self.stand.vms[1:]):
            raise LabError(f"not each stream has ended well: {said}")
        return Run(
            sum(one["megabytes_per_second"] for one in said), up=sum(int(one["bytes"]) for one in said)
        )

    def _send(self, kind: str, seconds: int) -> Job:
        """Start all streams at once. A server takes one at a time, so that each has its own."""
        more, sockets = KINDS[kind]
        words = []
        for vm in self.stand.vms[1:]:
            where = f"vsock:{tunnels.cid(vm)}" if kind == "vsock" else f"tcp:{vm.ip4}"
            for port in (STREAM_PORT + more + 50 + number for number in range(CONNECTIONS)):
                self._servers.need(vm, f"/hallway/stream -s {kind}:{port}", port, sockets)
                words.append(f"/hallway/stream -c {where} {port} {SIZE} {seconds} &")
        return self.stand.client.spawn(f"{' '.join(words)} wait")
