# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A VM's outsourcer, its guest, its module or hallwayd ends under load, while the host executes sockets."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hallway_lab import isolate
from hallway_lab.outsourcing import HOST, NETNS, OUTSIDE, route_outside, serving
from hallway_lab.sh import run
from hallway_lab.vm import VM
from hallway_tests.guests import connections, rmmod, settle_in, wait_listening
from hallway_tests.outsourced import ECHO, TALKER, Outsourced, is_published, wait_published
from hallway_tests.record import Outcome
from hallway_tests.suite import check, wait_for

from .ends import panic

pytestmark = [pytest.mark.record("faults"), pytest.mark.xdist_group("faults-outsourcing")]

PORT, AWAY = 8080, 7100  # published; of the server outside
ENOUGH = 10  # messages of each talker that show that bytes flow
HEALTHY = 10  # seconds after which a process that ends has not failed: the next one comes at once
SOON = 1  # seconds from the outsourcer's return until listeners are published
SLAB_KIB = 4096  # that the guest's kernel may hold more than before: what it caches


class Load:
    """Busy connections: to outside, from there to a published port, and native ones to it."""

    def __init__(self, outsourced: Outsourced) -> None:
        self._outsourced, self._vm = outsourced, outsourced.vm
        self._inside = Path(os.environ["TMPDIR"]) / "talked"
        self._inside.unlink(missing_ok=True)
        self.begin()
        words = ["python3", "-B", "-c", TALKER, HOST, str(PORT), str(self._inside)]
        self._client = subprocess.Popen([*isolate.on_host(NETNS), *words])

    def begin(self) -> None:
        """Start what runs in the guest."""
        vm = self._vm
        vm.put(ECHO, "/tmp/echo.py")
        vm.put(TALKER, "/tmp/talker.py")
        vm.run("rm -f /tmp/outwards /tmp/native")
        self._jobs = [vm.spawn(f"exec python3 -B /tmp/echo.py 0.0.0.0 {PORT} poll")]
        wait_listening(vm, PORT, 60)
        for address, port, file in ((OUTSIDE, AWAY, "outwards"), ("127.0.0.1", PORT, "native")):
            self._jobs.append(vm.spawn(f"exec python3 -B /tmp/talker.py {address} {port} /tmp/{file}"))

    def end(self) -> None:
        """End all of it."""
        self._client.kill()
        self._client.wait()
        for job in self._jobs:
            job.kill()

    def talked(self) -> dict[str, tuple[int, int]]:
        """Return how many messages each talker has echoed, and how many of its connections failed."""
        said = {
            name: self._vm.run(f"cat /tmp/{name} 2>/dev/null || echo 0 0", first=True).out
            for name in ("outwards", "native")
        }
        said["inside"] = self._inside.read_text() if self._inside.exists() else "0 0"
        return {name: tuple(map(int, text.split())) for name, text in said.items()}

    def wait_progress(self, when: str) -> None:
        """Wait until each talker has echoed more."""
        before = self.talked()

        def have_talked() -> bool:
            now = self.talked()
            return all(now[name][0] >= before[name][0] + ENOUGH for name in now)

        wait_for(have_talked, f"all talkers go on {when}", 60)

    def check_native(self) -> None:
        """Fail if a native connection at the published listener has failed."""
        check(not self.talked()["native"][1], "a native connection to the listener failed")


@contextlib.contextmanager
def loaded(outsourced: Outsourced) -> Iterator[Load]:
    """Run the load in the block. Afterwards all is held that was before, and no more."""
    outsourced.load()
    assert outsourced.vm.qmp  # a connection that QEMU holds
    wait_for(keeps_outsourcer, "the holder keeps what the outsourcer has")
    start, slab = held(outsourced), slab_kib(outsourced.vm)
    with serving(["python3", "-B", "-c", ECHO, OUTSIDE, str(AWAY)], AWAY):
        load = Load(outsourced)
        try:
            wait_published(PORT)
            load.wait_progress("at the start")
            yield load
            load.wait_progress("at the end")
        finally:
            load.end()
    wait_for(lambda: not is_published(PORT), "the port is free")
    wait_for(lambda: not connections(outsourced.vm), "the guest has no outsourced socket left", 60)
    with contextlib.suppress(AssertionError):
        wait_for(lambda: not grown(start, held(outsourced)), "as much is held as before")
    found = grown(start, held(outsourced))
    check(not found, f"more is held than before: {found}")
    more = slab_kib(outsourced.vm) - slab
    check(more < SLAB_KIB, f"the guest's kernel holds {more} KiB more than before")
    rmmod(outsourced.vm)
    outsourced.healthy()


def keeps_outsourcer() -> bool:
    """Tell whether the holder has the memory of an outsourcer's region, its process, and its doorbell."""
    folder = Path(f"/proc/{_find_holder()}/fd")
    names = [os.readlink(one) for one in folder.iterdir()]
    # Two doorbells are QEMU's.
    doorbells = sum("eventfd" in name for name in names)
    return doorbells == 3 and all(
        any(word in name for name in names) for word in ("memfd:hallway-out.", "pidfd")
    )


def held(outsourced: Outsourced) -> dict[str, int]:
    """Return what the processes of the host, and the guest's sockets, hold."""
    status = outsourced.site.daemon.status()
    report = outsourced.report()
    pids = {
        "hallwayd": status["pid"],
        "holder": _find_holder(),
        "outsourcer": report["pid"],
        "QEMU": outsourced.vm.pid,
    }
    members = [member for region in status["regions"] for member in region["members"]]
    counted = outsourced.vm.run("cat /proc/net/sockstat", first=True).out
    return {
        **{f"descriptors of {name}": len(os.listdir(f"/proc/{pid}/fd")) for name, pid in pids.items()},
        "bytes of regions": sum(region["size"] for region in status["regions"]),
        "channels": sum(member["channels"] for member in members),
        "sockets of the host": report["sockets"] + report["listeners"],
        "sockets of the guest": int(re.findall(r"sockets: used (\d+)", counted)[0]),
        "TCP sockets of the guest": int(re.findall(r"TCP: .* alloc (\d+)", counted)[0]),
    }


def grown(start: dict[str, int], now: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Return what is more than it was."""
    return {name: (start.get(name, 0), count) for name, count in now.items() if count > start.get(name, 0)}


def _find_holder() -> int:
    return next(pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_holder(pid))


def _is_holder(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"hallwayd-holder\0")
    except OSError:
        return False


def slab_kib(vm: VM) -> int:
    """Return what the guest's kernel holds of slabs that it can't reclaim."""
    said = vm.run("echo 3 > /proc/sys/vm/drop_caches; grep SUnreclaim /proc/meminfo").out
    return int(said.split()[1])


def has_sockets() -> bool:
    """Tell whether the host has a connection of the guest's."""
    shown = run(["ss", "-Htn", "state", "established", f"( dport = :{AWAY} or sport = :{PORT} )"])
    return bool(shown.strip())


def wait_free(outcome: Outcome) -> None:
    """Wait until the host has none of the guest's sockets, and the port is free."""
    with outcome.timed("the host's sockets are closed after"):
        wait_for(lambda: not has_sockets() and not is_published(PORT), "sockets and ports are free")


@pytest.mark.fault("kill -9 of an outsourcer")
def test_outsourcer_killed(outsourcing: Outsourced, outcome: Outcome, rounds: Iterator[int]) -> None:
    """An outsourcer is killed: its connections fail, and the next one has the listeners at once."""
    with loaded(outsourcing) as load:
        for number in rounds:
            begin = time.monotonic()
            load.wait_progress(f"in round {number}")
            wait_for(lambda: time.monotonic() > begin + HEALTHY, "it has lived for a while")  # noqa: B023
            with outcome.timed("another one runs after"):
                outsourcing.kill_outsourcer()
            with outcome.timed("listeners are published after its return in"):
                wait_for(lambda: is_published(PORT), "the port is published again", SOON)
            load.check_native()
        wait_for(lambda: load.talked()["outwards"][1], "connections have failed")


@pytest.mark.fault("kill -9 of hallwayd, while its outsourcer works")
def test_outsourcing_goes_on(outsourcing: Outsourced, outcome: Outcome, rounds: Iterator[int]) -> None:
    """The daemon is killed: connections go on without it, and with the next one."""
    daemon = outsourcing.site.daemon
    with loaded(outsourcing) as load:
        pid = outsourcing.outsourcer()
        failed = {name: one[1] for name, one in load.talked().items()}
        for number in rounds:
            daemon.kill(signal.SIGKILL)
            load.wait_progress(f"without hallwayd in round {number}")
            with outcome.timed("back after"):
                daemon.start()
            check(outsourcing.outsourcer() == pid, "there is another outsourcer")
            load.wait_progress(f"with hallwayd in round {number}")
            now = {name: one[1] for name, one in load.talked().items()}
            check(now == failed, f"connections failed: {now}, {failed} before")


@pytest.mark.fault("rmmod of a guest with outsourced sockets")
def test_outsourced_unloading(outsourcing: Outsourced, outcome: Outcome, rounds: Iterator[int]) -> None:
    """The module is unloaded: the host's sockets are closed, and native connections notice nothing."""
    with loaded(outsourcing) as load:
        for number in rounds:
            load.wait_progress(f"in round {number}")
            with outcome.timed("unloaded in"):
                rmmod(outsourcing.vm)
            wait_free(outcome)
            outsourcing.load()
            with outcome.timed("listeners are published after the outsourcer's arrival in"):
                wait_for(lambda: is_published(PORT), "the port is published again", SOON)
            load.check_native()


@pytest.mark.fault("reset of a guest with outsourced sockets")
@pytest.mark.machine(reboots=True)
@pytest.mark.xdist_group("faults-outsourcing-reset")
def test_outsourced_guest_reset(outsourcing: Outsourced, outcome: Outcome, rounds: Iterator[int]) -> None:
    """A guest is reset, and boots again in its QEMU."""
    vm = outsourcing.vm

    def reset() -> None:
        vm.reset()
        wait_free(outcome)
        vm.wait_boot()

    _boot_each_round(outsourcing, outcome, rounds, reset)


@pytest.mark.fault("panic of a guest with outsourced sockets, its QEMU ends")
@pytest.mark.xdist_group("faults-outsourcing-panic")
def test_outsourced_guest_panics(outsourcing: Outsourced, outcome: Outcome, rounds: Iterator[int]) -> None:
    """A guest panics, its QEMU ends with it, and another one boots."""
    vm = outsourcing.vm

    def end() -> None:
        panic(vm)
        wait_free(outcome)
        vm.stop()
        vm.start()
        vm.wait_boot()

    _boot_each_round(outsourcing, outcome, rounds, end)


def _boot_each_round(
    outsourced: Outsourced, outcome: Outcome, rounds: Iterator[int], boot: Callable[[], None]
) -> None:
    with loaded(outsourced) as load:
        for number in rounds:
            load.wait_progress(f"in round {number}")
            boot()
            settle_in(outsourced.vm)
            route_outside(outsourced.vm)
            outsourced.load()
            load.begin()
            with outcome.timed("published after listen() in"):
                wait_for(lambda: is_published(PORT), "the port is published again", SOON)
