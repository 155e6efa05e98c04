# SPDX-License-Identifier: Apache-2.0 OR MIT
"""hallwayd: what it refuses, what guests learn from it, and what its death costs."""

from __future__ import annotations

import mmap
import shutil
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hallway_lab.vm import VM, Plain
from hallway_tests.guests import (
    AT_ONCE,
    REPO,
    Delta,
    Stream,
    call,
    counters,
    insmod,
    status,
    wait_members,
)
from hallway_tests.pair import TINY, Pair
from hallway_tests.streams import CALM
from hallway_tests.suite import wait_for

pytestmark = pytest.mark.xdist_group("e2e-peers")

MIB = 1 << 20
WRITING = 4  # seconds; a guest that is not let in asks once a second


@pytest.mark.slow_on("6.12")
def test_status_names_all(pair: Pair) -> None:
    """Each guest's status lists the host, itself and the other as hallwayd does."""
    pair.load()
    region = pair.site.daemon.status()["regions"][0]
    listed = {m["slot"]: (m["name"], m["uuid"], m["generation"], m["host"]) for m in region["members"]}
    for vm in pair.both:
        shown = status(vm)["members"]
        seen = {m["slot"]: (m["name"], m["uuid"], m["generation"], m["host"]) for m in shown}
        assert len(shown) == 3, vm.name
        assert seen == {slot: listed[slot] for slot in seen}, vm.name
        own = [m for m in shown if m["self"]]
        assert [m["uuid"] for m in own] == [vm.uuid], vm.name
        assert {vm.ip4, vm.ip6} <= set(own[0]["addresses"]), vm.name


@pytest.mark.slow
def test_daemon_restart(pair: Pair) -> None:
    """hallwayd is killed and restarted: streams continue, and a VM that boots then is promoted with both."""
    pair.load(**AT_ONCE)
    delta = Delta(*pair.both)
    stream = Stream(pair.b, pair.a, conns=4, both=CALM)
    pair.wait_on_rings(4)
    pair.site.daemon.kill(9)
    moved = counters(pair.a)["tx_bytes_ring"]
    wait_for(
        lambda: counters(pair.a)["tx_bytes_ring"] > moved + 100_000, "rings carry bytes without a daemon"
    )
    stream.check_running("without a daemon")
    pair.site.daemon.start()
    third = pair.third()
    with pair.site.join(third):
        insmod(third, **AT_ONCE)
        wait_members(*pair.both, third)
        for other in pair.both:
            before = Delta(third, other)
            two = Stream(other, third, conns=2, both=CALM)
            for vm in (third, other):

                def promoted() -> bool:
                    two.check_running("before it was promoted")  # noqa: B023
                    return before.of(vm)["tx_promoted"] >= 2  # noqa: B023

                wait_for(
                    promoted, f"{vm.name} promotes, between {other.name} and {third.name}", 60 * pair.slow
                )
            two.stop()
            two.finish(60 * pair.slow)
        pair.healthy()
    stream.check_running("when the third VM went")
    stream.stop()
    stream.finish(60 * pair.slow)
    pair.check_counters(delta)


@pytest.mark.slow_on("6.12")
def test_region_full(pair: Pair) -> None:
    """A guest that finds a region full says so once, asks seldom, and joins when another one has left."""
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
    assert b.uuid not in inside()
    requests = _count_requests(pair, b)
    _write_changes(tiny.path, WRITING)
    assert _count_requests(pair, b) - requests <= 2 * WRITING, "others have it ask all the time"
    a.unplug(TINY)
    wait_for(lambda: b.uuid in inside(), f"{b.name} is a member", 20 * pair.slow)
    b.unplug(TINY)
    assert b.run("dmesg").out.count("no slot is left") == 1


def _count_requests(pair: Pair, vm: VM) -> int:
    connections = pair.site.daemon.status()["vms"]
    return next(one["requests"] for one in connections if one["uuid"] == vm.uuid)


def _write_changes(region: Path, seconds: int) -> None:
    """Have a region say without end that its table has changed, as any member can."""
    until = time.monotonic() + seconds
    with open(region, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        while time.monotonic() < until:
            (change,) = struct.unpack_from("<I", memory, 60)
            struct.pack_into("<I", memory, 60, (change + 1) % (1 << 32))


@pytest.mark.slow_on("6.1")
def test_region_twice(pair: Pair) -> None:
    """A region that is plugged in a second time is refused, and its streams go on."""
    pair.load(**AT_ONCE)
    delta = Delta(*pair.both)
    stream = Stream(pair.b, pair.a, conns=3)
    pair.wait_on_rings(3)
    region = pair.site.daemon.region
    again = Plain(region.path, region.size, "again")
    pair.a.run("dmesg -C")
    pair.a.plug(again)
    wait_for(lambda: "plugged in already" in pair.a.run("dmesg").out, "the second is refused", 20 * pair.slow)
    pair.a.unplug("again")
    stream.check_running("with its region plugged in twice")
    assert "no longer a member" not in pair.a.run("dmesg").out
    stream.stop()
    stream.finish(60 * pair.slow)
    pair.check_counters(delta)


@pytest.mark.slow_on("6.12")
def test_host(pair: Pair) -> None:
    """The daemon and its CLI refuse what they cannot do well, and say what to do."""
    for words, said in _refused(pair):
        result = call(*words)
        assert result.returncode, words
        assert said in result.stderr, words
    assert pair.site.daemon.status()


def _refused(pair: Pair) -> Iterator[tuple[tuple[object, ...], str]]:
    """Yield commands that must fail, and what each must say."""
    daemon = pair.site.daemon
    folder = Path("/run/errors")
    folder.mkdir(exist_ok=True)
    hallwayd, hallway = (
        shutil.copy(REPO / "host/target/release" / name, folder) for name in ("hallwayd", "hallway")
    )
    nobody = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
    shared, own = folder / "shared", folder / "own"
    shared.mkdir(exist_ok=True)
    shared.chmod(0o777)
    yield (hallwayd,), f"hallwayd runs already for {daemon.socket.parent} (pid "
    yield (
        (hallwayd, "--run-dir", own, "--socket", daemon.socket),
        f"--socket {daemon.socket}: another program listens there: end it, or give another path",
    )
    yield (hallwayd, "--run-dir", shared), f"{shared}: others may write there (owner 0, mode 0777)"
    yield (
        (hallwayd, "--run-dir", own, "--region", "small:4M"),
        "a region of 4194304 bytes gives each of its 4 members less than 2 MiB: make it larger",
    )
    yield (*nobody, hallwayd, "--run-dir", folder / "new"), "cannot be made: run as root"
    yield (*nobody, hallwayd), "run as root, or give a --run-dir of your own"
    yield (*nobody, hallway, "status"), "not permitted: run as the user that hallwayd runs as"
    yield (hallway, "status", "--host", "--run-dir", folder), "start hallwayd, or give the directory"
