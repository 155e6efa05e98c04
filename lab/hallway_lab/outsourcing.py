# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A VM whose sockets the host executes, and a network outside of its host.

The outsourcer works in the host's own network namespace, one wire away from the
namespace "outside". The VM's NIC reaches that namespace as well: the host forwards.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from . import isolate, paths
from .measure import SPIN, Direction, Traffic, set_spin
from .sh import LabError, run
from .topology import Daemon, Site, describe_vm
from .vm import VM

NUMBER, SIBLING = 11, 12
NETNS = "outside"
# Where the host's own network namespace is mounted.
OWN = Path("/run/netns/own")
# Ends of the wire: of the host, and outside.
WIRE = "wan"
HOST, OUTSIDE = "10.78.0.1", "10.78.0.2"
HOST6, OUTSIDE6 = "fd78::1", "fd78::2"
OUTSOURCE = """
[vm.outsource]
netns = "{netns}"
connect = ["10.78.0.1", "fd78::1", "10.78.0.0/24", "fd78::/64"]
{rules}
"""


@contextlib.contextmanager
def serving(words: list[str], port: int, netns: str | None = NETNS, timeout: float = 60) -> Iterator[None]:
    """Run a server outside, or on the host, in the block, from when it listens on that port on."""
    inside = isolate.on_host(netns)
    with subprocess.Popen([*inside, *words], stdout=subprocess.DEVNULL) as server:
        try:
            deadline = time.monotonic() + timeout
            while not run([*inside, "ss", "-Hltn", f"sport = :{port}"]).strip():
                if server.poll() is not None or time.monotonic() > deadline:
                    raise LabError(f"`{' '.join(words)}` does not listen on port {port}")
                time.sleep(0.05)
            yield
        finally:
            server.kill()


@contextlib.contextmanager
def outside() -> Iterator[None]:
    """Make the network namespace outside."""
    isolate.need_private()
    run(["ip", "netns", "add", NETNS])
    try:
        run(["ip", "link", "add", WIRE, "type", "veth", "peer", "name", "lan", "netns", NETNS])
        for words in (
            f"addr add {HOST}/24 dev {WIRE}",
            f"addr add {HOST6}/64 dev {WIRE} nodad",
            f"link set {WIRE} up",
        ):
            run(["ip", *words.split()])
        for words in (
            "link set lo up",
            f"addr add {OUTSIDE}/24 dev lan",
            f"addr add {OUTSIDE6}/64 dev lan nodad",
            "link set lan up",
            f"route add default via {HOST}",
            f"route add default via {HOST6}",
        ):
            run(["ip", "-n", NETNS, *words.split()])
        run(["sysctl", "-q", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"])
        yield
    finally:
        # By itself it goes some time after its other end's namespace.
        run(["ip", "link", "del", WIRE], check=False)
        run(["ip", "netns", "del", NETNS], check=False)


def describe(folder: Path, kernel: str, **options: object) -> tuple[Site, VM]:
    """Describe a daemon, with its configuration in that folder, and its VM. More options go to the VM."""
    site = Site(Daemon(host="outsourced", config=folder / "hallwayd.toml"))
    return site, site.vm(NUMBER, kernel, monitor=Path(f"/run/vm{NUMBER}.qmp"), **options)


def describe_pair(folder: Path, kernel: str, **options: object) -> tuple[Site, VM, VM]:
    """Describe the same, and a sibling of that VM."""
    site, vm = describe(folder, kernel, **options)
    return site, vm, site.vm(SIBLING, kernel, monitor=Path(f"/run/vm{SIBLING}.qmp"), **options)


@contextlib.contextmanager
def running(
    site: Site,
    vm: VM,
    rules: str = "",
    beside: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    siblings: Mapping[VM, str] | None = None,
) -> Iterator[None]:
    """Run what `describe` returned, without the module; rules: more of its [vm.outsource].

    `beside` runs from before the VM boots, when the network outside is there. Siblings are other VMs of
    that site, with outsourcers and rules of their own.
    """
    with outside(), contextlib.ExitStack() as stack:
        OWN.touch()
        run(["mount", "--bind", "/proc/self/ns/net", OWN])
        stack.callback(run, ["umount", OWN], check=False)
        assert site.daemon.config
        vms = {vm: rules} | dict(siblings or {})
        entries = [
            describe_vm(one, more=OUTSOURCE.format(netns=OWN, rules=more)) for one, more in vms.items()
        ]
        site.daemon.config.write_text("".join(entries))
        site.daemon.start()
        stack.callback(site.daemon.kill, 15)
        stack.enter_context(beside())
        stack.enter_context(site.join(*vms))
        for one in vms:
            route_outside(one)
        yield


def route_outside(vm: VM) -> None:
    """Have the guest reach the network outside by its NIC."""
    vm.run("ip route add default via 10.77.0.254; ip -6 route add default via fd77::254")


def has_arrived(vm: VM) -> bool:
    """Tell whether the module has met the outsourcer, since dmesg was cleared."""
    return "(outsourcer) arrived" in vm.run("dmesg").out


def await_arrival(vm: VM, arrived: Callable[[VM], bool], what: str) -> None:
    """Wait until the guest has met what the host runs for it."""
    deadline = time.monotonic() + 60
    while not arrived(vm):
        if time.monotonic() > deadline:
            said = vm.run("dmesg | grep hallway", check=False).out
            raise LabError(f"no {what} has arrived:\n{said}")
        time.sleep(0.2)


class Stand:
    """The VM with the module loaded, and peers on the host and outside; what is on or off is outsourcing.

    Its folder and the servers outside last as long as the stand.
    """

    def __init__(
        self, site: Site, vm: VM, folder: Path, servers: contextlib.ExitStack, server: VM | None = None
    ) -> None:
        self.site, self.client, self.folder = site, vm, folder
        self.server = server  # the VM that the client calls, if it calls one: it has published ports
        self.on = True
        self.spin_default = int(vm.get(SPIN))
        self._servers = servers
        self._vms = [vm, server] if server else [vm]

    def serve(self, words: list[str], port: int, netns: str | None = NETNS) -> None:
        """Run a server outside, or on the host, until the stand's end."""
        self._servers.enter_context(serving(words, port, netns))

    def switch(self, on: bool) -> None:
        """Turn outsourcing on or off: without it, bytes go by the NIC."""
        for vm in self._vms:
            vm.run(f"hallway outsource {'on' if on else 'off'}")
        self.on = on

    def spin(self, microseconds: int | None = None) -> None:
        """Set how long readers in the guests spin before they sleep; None is the default."""
        set_spin(self._vms, self.spin_default if microseconds is None else microseconds)

    def configure(self, rules: str) -> None:
        """Have hallwayd serve the client's VM by other rules: its outsourcer, and connections, stay."""
        config, daemon = self.site.daemon.config, self.site.daemon
        assert config and not self.server
        config.write_text(describe_vm(self.client, more=OUTSOURCE.format(netns=OWN, rules=rules)))
        daemon.kill(15)
        daemon.start()

    @contextlib.contextmanager
    def meter(self) -> Iterator[Traffic]:
        """Count the bytes of what happens in the block: those of the NIC are TCP's, with their headers."""
        traffic = Traffic()
        before = self._counters()
        yield traffic
        moved = {name: value - before[name] for name, value in self._counters().items()}
        traffic.up, traffic.down = (
            Direction(
                sent_ring=moved[f"{way}_bytes_outsourced"] + moved[f"{way}_bytes_tunnel"],
                received_ring=moved[f"{way}_bytes_outsourced"] + moved[f"{way}_bytes_tunnel"],
                sent_tcp=moved[f"{way}_nic"],
                received_tcp=moved[f"{way}_nic"],
                unread=0,
            )
            for way in ("tx", "rx")
        )

    def _counters(self) -> dict[str, int]:
        statistics = "/sys/class/net/eth0/statistics"
        command = f"cat {statistics}/tx_bytes {statistics}/rx_bytes; hallway counters --json"
        said = self.client.run(command).out
        sent, received, counters = said.split("\n", 2)
        return json.loads(counters) | {"tx_nic": int(sent), "rx_nic": int(received)}


@contextlib.contextmanager
def standing(
    kernel: str,
    rules: str = "",
    beside: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    **options: object,
) -> Iterator[Stand]:
    """Boot the VM, and wait for its outsourcer; measure.make_ready() comes before.

    `beside` is as in `running`; more options go to the VM.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = stack.enter_context(contextlib.ExitStack())
        site, vm = describe(folder, kernel, share=paths.out("share", kernel), **options)
        stack.enter_context(running(site, vm, rules, beside))
        _load(vm)
        yield Stand(site, vm, folder, servers)


@contextlib.contextmanager
def standing_pair(kernel: str, rules: str, of_client: str = "", **options: object) -> Iterator[Stand]:
    """Boot a VM as `standing` does, and a sibling that calls it: the client, with rules of its own."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = stack.enter_context(contextlib.ExitStack())
        options["share"] = paths.out("share", kernel)
        site, server, client = describe_pair(folder, kernel, **options)
        stack.enter_context(running(site, server, rules, siblings={client: of_client}))
        for vm in (server, client):
            _load(vm)
        yield Stand(site, client, folder, servers, server)


def _load(vm: VM) -> None:
    vm.run("insmod /hallway/hallway.ko")
    await_arrival(vm, has_arrived, "outsourcer")
