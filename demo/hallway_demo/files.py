"""Rows that carry one large file, checked by SHA-256 at both ends."""

from __future__ import annotations

import re

from hallway_lab.measure import Stand
from hallway_lab.programs import Run, serve
from hallway_lab.sh import LabError

MIB = 1 << 20
SIZE = 128 * MIB
FOLDER = "/var/www/html"  # where Debian's nginx looks
FILE = f"{FOLDER}/large"
UNITS = {"B": 1e-6, "K": 1 / 1024 * 1.048576, "M": 1.048576, "G": 1024 * 1.048576}


class Files:
    """A large file on the server, and programs that fetch it."""

    def __init__(self, stand: Stand) -> None:
        self.stand = stand
        server = stand.server
        server.run(f"mount -t tmpfs tmpfs {FOLDER} && head -c {SIZE} /dev/urandom > {FILE}", timeout=120)
        self.digest = self._digest(FILE, on_server=True)
        serve(server, "nginx -g 'daemon off;'", 80)

    def _digest(self, path: str, on_server: bool = False) -> str:
        vm = self.stand.server if on_server else self.stand.client
        return vm.run(f"sha256sum {path}", timeout=120).out.split()[0]

    def _check(self, path: str) -> None:
        arrived = self._digest(path)
        self.stand.client.run(f"rm {path}")
        if arrived != self.digest:
            raise LabError(f"SHA-256 differs: {self.digest} on the server, {arrived} on the client")

    def wget(self) -> Run:
        """Megabytes a second of wget from nginx."""
        command = f"wget --progress=dot:giga -O /tmp/wget http://{self.stand.server.ip4}/large"
        done = self.stand.client.run(f"LC_ALL=C {command}", timeout=120)
        hit = re.search(r"\(([\d.]+) ([KMG]?)B/s\) - .* saved", done.err)
        if not hit:
            raise LabError(f"`{command}` printed no rate:\n{done.err[-1000:]}")
        self._check("/tmp/wget")
        return Run(float(hit[1]) * UNITS[hit[2] or "B"], down=SIZE)

    def scp(self) -> Run:
        """Megabytes a second of scp, by IPv6, as its ssh reports them."""
        command = f"scp -v 'root@[{self.stand.server.ip6}]:{FILE}' /tmp/scp"
        done = self.stand.client.run(command, timeout=120)
        hit = re.search(r"Bytes per second: sent [\d.]+, received ([\d.]+)", done.err)
        if not hit:
            raise LabError(f"`{command}` printed no rate:\n{done.err[-1000:]}")
        self._check("/tmp/scp")
        return Run(float(hit[1]) / 1e6, down=SIZE)
