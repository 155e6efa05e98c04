# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The kernel's own tests of AF_VSOCK, tools/testing/vsock, from Debian's source of the kernel."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection
from pathlib import Path

from hallway_lab import kernels, kernelsource, paths
from hallway_lab.sh import run, step
from hallway_lab.vm import VM

from .guests import share_folder
from .suite import wait_for
from .tunnels import cid

TESTING = "tools/testing/vsock"
PARTS = (f"{TESTING}/*", "tools/include/*")
FLAGS = "-O2 -w -D_GNU_SOURCE -I. -I../../include"  # its own make an error of each warning
PATIENCE = 100  # seconds in place of 10: of each step, on a busy machine
CONTROL = 7200  # port of TCP by which both ends keep step


def prepare(kernel: str) -> None:
    """Build the program of this kernel's source and lay it out for guests: see `needs`."""
    box, suite, _ = kernels.STOCK.get(kernel, kernels.STOCK["6.1"])
    package, version = kernelsource.package(box, suite)
    program = paths.cache("suites", f"vsock_test-{paths.key(version, PARTS, FLAGS, PATIENCE)}")
    with paths.lock("vsock_test"):
        if not program.exists():
            with step(f"making vsock_test of {package} (140 MB, once)"), paths.workshop(program) as scratch:
                kernelsource.unpack(
                    scratch, f"{package}={version}", "--wildcards", *(f"*/{part}" for part in PARTS), box=box
                )
                _build(scratch / TESTING).rename(program)
    share_folder(kernel).mkdir(parents=True, exist_ok=True)
    shutil.copy2(program, share_folder(kernel) / "vsock_test")


def _build(tests: Path) -> Path:
    header = tests / "timeout.h"
    text, found = re.subn(r"\bTIMEOUT = 10\b", f"TIMEOUT = {PATIENCE}", header.read_text())
    assert found == 1, "vsock_test waits in another way"
    header.write_text(text)
    run(["make", "-s", "-C", tests, f"CFLAGS={FLAGS}", "vsock_test"])
    return tests / "vsock_test"


def listed(vm: VM) -> list[str]:
    """Return the names of its tests."""
    # It exits with 1 once it has listed them.
    lines = vm.run("/hallway/vsock_test --list", check=False).out.splitlines()
    return [line.split("\t", 1)[1] for line in lines[1:]]


def outcomes(client: VM, server: VM, timeout: float, skipped: Collection[str]) -> dict[str, str]:
    """Run all tests but some; return what the client said of each: one that fails ends it."""
    skip = "".join(f" --skip={number}" for number, name in enumerate(listed(client)) if name in skipped)
    words = f"/hallway/vsock_test --control-port={CONTROL}{skip}"
    job = server.spawn(f"{words} --mode=server --peer-cid={cid(client)} >/tmp/vsock_test 2>&1")
    wait_for(lambda: server.run(f"ss -Hltn sport = :{CONTROL}").out, "the server listens")
    said = client.run(
        f"{words} --control-host={server.ip4} --mode=client --peer-cid={cid(server)} 2>&1",
        timeout=timeout,
        check=False,
    ).out
    job.kill(15)
    job.wait()
    print(said, server.get("/tmp/vsock_test"), sep="\n-- the server:\n")
    return dict(re.findall(r"^\d+ - (.*?)\.\.\.(.*)", said, re.M))
