# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A VM and its host as the two ends of tunnels: on the host programs have Unix sockets."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from . import paths, tunnels
from .outsourcing import NUMBER, Stand, await_arrival
from .sh import LabError
from .topology import Daemon, Site, describe_vm
from .vm import VM

# The host, to each guest.
CID = 0x40000002
FOLDER = Path("/run/hallway-tunnels")
PATH = FOLDER / "vm.sock"
TUNNELS = f"""
[vm.tunnels]
socket = "{PATH}"
sockets = 64
"""


def packets() -> Path:
    """Return the path of SOCK_SEQPACKET, by which the host reaches the guest."""
    return PATH.with_name(f"{PATH.name}.packets")


def listened(port: int) -> Path:
    """Return the path at which a program of the host listens for guests that connect to that port."""
    return PATH.with_name(f"{PATH.name}_{port}")


def knows_host(vm: VM) -> bool:
    """Tell whether the guest reaches the host."""
    members = json.loads(vm.run("hallway status --guest --json").out)["members"]
    return any(member["cid"] == CID for member in members)


@contextlib.contextmanager
def serving(words: list[str], path: Path, timeout: float = 60) -> Iterator[None]:
    """Run a server on the host in the block, from when it listens at that path on."""
    path.unlink(missing_ok=True)
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as server:
        try:
            deadline = time.monotonic() + timeout
            while not path.exists():
                if server.poll() is not None or time.monotonic() > deadline:
                    raise LabError(f"`{' '.join(words)}` does not listen at {path}")
                time.sleep(0.05)
            # The host end is of another user.
            path.chmod(0o777)
            yield
        finally:
            server.kill()


class HostStand(Stand):
    """What is on or off is the way that the rows take: tunnels, or TCP by the NIC."""

    def switch(self, on: bool) -> None:
        """Have rows go by tunnels or by TCP."""
        self.on = on

    def spin(self, microseconds: int | None = None) -> None:
        """Leave it to the module: the host end does not spin."""

    def listen(self, words: list[str], path: Path) -> None:
        """Run a server on the host that listens at a path, until the stand's end."""
        self._servers.enter_context(serving(words, path))


@contextlib.contextmanager
def standing(kernel: str) -> Iterator[HostStand]:
    """Boot the VM, and wait for the host end; measure.make_ready() comes before."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = stack.enter_context(contextlib.ExitStack())
        FOLDER.mkdir(exist_ok=True)
        site = Site(Daemon(host="hostend", config=folder / "hallwayd.toml"))
        vm = site.vm(NUMBER, kernel, monitor=Path(f"/run/vm{NUMBER}.qmp"), share=paths.out("share", kernel))
        assert site.daemon.config
        site.daemon.config.write_text(describe_vm(vm, more=TUNNELS))
        site.daemon.start()
        stack.callback(site.daemon.kill, 15)
        stack.enter_context(site.join(vm))
        vm.run("insmod /hallway/hallway.ko")
        tunnels.load(vm)
        await_arrival(vm, knows_host, "host end")
        yield HostStand(site, vm, folder, servers)
