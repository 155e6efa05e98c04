# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Busy connections between a VM that migrates and one that stays."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from hallway_lab.hosts import Host
from hallway_tests.guests import Delta, Stream, connections, jobs_end, wait_listening
from hallway_tests.record import Outcome
from hallway_tests.suite import check, wait_for
from hallway_tests.two_hosts import Hosts

from .bystander import held

STREAMS, IPERFS, CLIENTS = 8, 6, 4  # 20 connections, with the session and iperf3's control connection
BOTH_WAYS = STREAMS + CLIENTS + 2  # with the session and the probe; iperf3's go one way
IPERF_PORT, REDIS_PORT = 5201, 6379
RECEIVED = re.compile(r":\d+\s+\S+:(\d+)\s.*?bytes_received:(\d+)")


class Load:
    """20 busy connections from the VM that migrates to the one that stays, and a probe of pauses."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts, self._last = hosts, dict[int, int]()
        stays, moves = hosts.both
        # The probe is first: under this load a program starts slowly.
        self.probe = [moves.spawn("exec python3 -B /root/guest/pauses.py echo 4700")]
        wait_listening(moves, 4700, 60)
        ask = f"exec python3 -B /root/guest/pauses.py ask {moves.ip4} 4700 /tmp/pauses"
        self.probe.append(stays.spawn(f": > /tmp/pauses; {ask}"))
        self.stream = Stream(stays, moves, conns=STREAMS, stall=60)
        self.session = moves.spawn(
            f"rm -f /tmp/stop; python3 -B /root/guest/session.py {stays.name} /tmp/stop"
        )
        self.programs = [
            moves.spawn(f"exec iperf3 -c {stays.ip4} -t 36000 -P {IPERFS} > /tmp/iperf3 2>&1"),
            moves.spawn(
                f"exec redis-benchmark -h {stays.ip4} -c {CLIENTS} -n 100000000 -t set > /tmp/redis 2>&1"
            ),
        ]

    def check_running(self, when: str) -> None:
        """Fail if one of the programs has ended, with what it said, or a connection stands still."""
        self.stream.check_running(when)
        for job in (self.session, *self.programs, *self.probe):
            check(job.poll() is None, f"{job.command} ended {when}: {job.poll()}")
        self._wait_progress(when)

    def _wait_progress(self, when: str) -> None:
        """Wait until each connection of iperf3 and Redis has received more than at the last call."""

        def all_moved() -> bool:
            now = self._received()
            moved = [port for port in self._last if now.get(port, 0) > self._last[port]]
            if len(moved) < IPERFS + CLIENTS:
                return False
            self._last = {port: now[port] for port in moved}
            return True

        self._last = self._last or self._received()
        wait_for(all_moved, f"{IPERFS + CLIENTS} connections receive bytes {when}", 60)

    def _received(self) -> dict[int, int]:
        """Return the bytes received on each connection of iperf3 and Redis, by their clients' ports."""
        where = f"'( sport = :{IPERF_PORT} or sport = :{REDIS_PORT} )'"
        shown = self.hosts.stays.run(f"ss -HtniO state established {where}").out
        return {int(port): int(count) for port, count in RECEIVED.findall(shown)}

    def longest_pause(self) -> float:
        """Return the longest pause of the probe since the last call."""
        stays = self.hosts.stays

        def lines() -> list[str]:
            return stays.get("/tmp/pauses").split()

        before = len(lines())
        wait_for(lambda: len(lines()) > before, "a round trip", 90)
        said = stays.run("cat /tmp/pauses; : > /tmp/pauses").out.split()
        return max(map(float, said))

    def finish(self) -> None:
        """End the programs that check their bytes; every byte must have arrived."""
        self.hosts.moves.run("touch /tmp/stop")
        self.stream.stop()
        self.stream.finish(120)
        jobs_end(self.session)

    def kill(self) -> None:
        """End the rest. Their connections may be reset, with bytes unread: count no more from here on."""
        for job in (*self.programs, *self.probe):
            job.kill()
        for vm in self.hosts.both:
            wait_for(
                lambda: not vm.run("ss -Htn state established state close-wait").out,  # noqa: B023
                f"no program of {vm.name} has a connection",
                60,
            )

    def wait_carried(self, to: Host) -> None:
        """Wait until all connections have the right carrier for a VM on this host, iperf3's among them."""
        self.hosts.wait_carried(to, BOTH_WAYS)
        if to is self.hosts.here:
            wait_for(lambda: self._iperf_rings() >= IPERFS, f"{IPERFS} of iperf3's are on rings", 90)

    def _iperf_rings(self) -> int:
        shown = connections(self.hosts.stays)
        return sum(c["rx"]["carrier"] % 2 for c in shown if c["local_port"] == IPERF_PORT)


@contextlib.contextmanager
def loaded(hosts: Hosts, outcome: Outcome) -> Iterator[Load]:
    """Load both VMs in the block; afterwards no counter is odd, and as much is held as before."""
    # Heartbeats tell the daemons how many channels there are.
    wait_for(lambda: not _channels(hosts), "no channel of an earlier test is left")
    before, delta = held_by_both(hosts), Delta(*hosts.both)
    load = Load(hosts)
    yield load
    load.check_running("at last")
    outcome.add_ring_bytes(sum(delta.of(vm)["tx_bytes_ring"] for vm in hosts.both))
    load.finish()
    hosts.check_counters(delta)
    load.kill()
    wait_for(lambda: held_by_both(hosts) == before, f"as much is held as before: {before}", 60)


def _channels(hosts: Hosts) -> int:
    regions = [region for host in (hosts.here, hosts.there) for region in host.daemon.status()["regions"]]
    return sum(member["channels"] for region in regions for member in region["members"])


def held_by_both(hosts: Hosts) -> list[dict[str, object]]:
    """Return what the VMs, and the daemons of both hosts, hold."""
    return [held(host.daemon, *hosts.both) for host in (hosts.here, hosts.there)]
