# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Unmodified programs that demo and benchmarks run between two VMs.

Each function runs one program once and returns the number that the program
reports, and the bytes that it says it moved. A server's function starts it;
it runs until the VMs are stopped.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from . import paths
from .aptbox import AptBox
from .measure import Stand
from .sh import LabError, run, step
from .vm import VM, Job


@dataclass(frozen=True)
class Run:
    """One run of a program: its number, and the bytes it says it moved.

    `up` and `down` are the payload from and to the client; None where the
    program does not say. `more` are other figures, by name.
    """

    value: float
    up: int | None = None
    down: int | None = None
    more: Mapping[str, float] = field(default_factory=dict)


def build_go(source: Path, target: Path, **env: str) -> None:
    """Build a static Go program; `env` adds to the settings of go."""
    go = shutil.which("go") or shutil.which("/usr/lib/go/bin/go")
    if not go:
        raise LabError("go is not installed: run `./lab/run setup`")
    settings = {
        "CGO_ENABLED": "0",
        "GOCACHE": str(paths.cache("go-build")),
        "GOFLAGS": "-trimpath",
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "XDG_CONFIG_HOME": str(paths.cache("go-config")),  # where go keeps its telemetry
    }
    with paths.lock(target.name), step(f"building the static Go program {target.name}"):
        run([go, "build", "-o", target, "."], cwd=source, env=settings | env)


def build_rawstream() -> Path:
    """Build the demo's Go program."""
    target = paths.out("demo", "rawstream")
    build_go(paths.REPO / "demo/go", target)
    return target


# As guests see it.
LIBRARIES = "/hallway/ncat/usr/lib/x86_64-linux-gnu:/hallway/ncat/lib/x86_64-linux-gnu"
NCAT = f"env LD_LIBRARY_PATH={LIBRARIES} /hallway/ncat/usr/bin/ncat"

# Its option for each protocol.
SOCKPERF = {"tcp": "--tcp", "udp": ""}


def unpack_ncat(share: Path) -> None:
    """Lay out ncat, of Nmap, in a folder that guests share: their image has another netcat."""
    if not (share / "ncat/usr/bin/ncat").exists():
        with step("fetching ncat"):
            AptBox("stable").unpack(share / "ncat", ["ncat", "libpcap0.8", "liblua5.3-0", "libdbus-1-3"])


def serve(vm: VM, command: str, port: int, timeout: float = 20, sockets: str = "--tcp") -> Job:
    """Start a server that listens on a port, and wait until `ss` lists it among those sockets.

    "": it lists none of them, and clients of the server wait for it.
    """
    job = vm.spawn(command)
    deadline = time.monotonic() + timeout
    while sockets and not re.search(rf"[:-]{port} ", vm.run(f"ss -Hln {sockets}").out):
        ended = job.poll()
        if ended or time.monotonic() > deadline:
            said = f"\n{ended.out}{ended.err}" if ended else ""
            raise LabError(f"{vm.name}: `{command}` does not listen on port {port}{said}")
        time.sleep(0.1)
    return job


class Servers:
    """Servers in VMs, each started when it is first needed, and again if it has ended."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[str, str], Job] = {}

    def need(self, vm: VM, command: str, port: int, sockets: str = "--tcp") -> None:
        """Have a server run that listens on a port, as `serve` does."""
        job = self._jobs.get((vm.name, command))
        if not job or job.poll():
            self._jobs[vm.name, command] = serve(vm, command, port, sockets=sockets)


def iperf3_server(stand: Stand) -> Job:
    """Start iperf3's server."""
    return serve(stand.server, "iperf3 -s", 5201)


def iperf3(client: VM, address: str, write: str, seconds: int) -> Run:
    """Megabytes a second from client to server, in writes of one size."""
    command = f"iperf3 -c {address} -l {write} -t {seconds} -J"
    done = client.run(command, timeout=seconds + 45, check=False)
    try:
        report = json.loads(done.out)
    except ValueError:
        raise LabError(f"`{command}` ended with code {done.code}: {done.out}{done.err}") from None
    if "error" in report:
        raise LabError(f"`{command}`: {report['error']}")
    sent, received = report["end"]["sum_sent"], report["end"]["sum_received"]
    return Run(received["bits_per_second"] / 8e6, up=sent["bytes"])


def sockperf_server(stand: Stand, protocol: str = "tcp") -> Job:
    """Start sockperf's server."""
    command = f"sockperf server {SOCKPERF[protocol]} -i {stand.server.ip4} -p 11111"
    return serve(stand.server, command, 11111, sockets=f"--{protocol}")


def sockperf(stand: Stand, seconds: int, size: int = 14, protocol: str = "tcp") -> Run:
    """Median of the latency in microseconds: half a round trip of `size` bytes."""
    address = f"{SOCKPERF[protocol]} -i {stand.server.ip4} -p 11111"
    command = f"sockperf ping-pong {address} -m {size} -t {seconds}"
    said = stand.client.run(command, timeout=seconds + 45).out
    said = re.sub(r"\x1b\[[0-9;]*m", "", said)
    p50 = re.search(r"percentile 50\.000\s*=\s*([\d.]+)", said)
    count = re.search(r"\[Total Run\].*SentMessages=(\d+); ReceivedMessages=(\d+)", said)
    if not p50 or not count:
        raise LabError(f"`{command}` printed no latency:\n{said}")
    return Run(float(p50[1]), up=int(count[1]) * size, down=int(count[2]) * size)
