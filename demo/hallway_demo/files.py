# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Rows that carry a large file, checked by SHA-256 at both ends."""

from __future__ import annotations

import re

from hallway_lab.measure import Stand
from hallway_lab.programs import Run, serve
from hallway_lab.sh import LabError
from hallway_lab.vm import VM

from .watch import Watch

MIB = 1 << 20
SIZE = 32 * MIB
SCP_SIZE = 16 * MIB
FOLDER = "/var/www/html"  # where Debian's nginx looks
FILE, SMALL_FILE = f"{FOLDER}/large", f"{FOLDER}/small"
UNITS = {"B": 1e-6, "K": 1 / 1024 * 1.048576, "M": 1.048576, "G": 1024 * 1.048576}


class Files:
    """Large files on the server, and programs that fetch them."""

    def __init__(self, stand: Stand) -> None:
        self.stand = stand
        server = stand.server
        server.run(f"mount -t tmpfs tmpfs {FOLDER}")
        for path, size in ((FILE, SIZE), (SMALL_FILE, SCP_SIZE)):
            server.run(f"head -c {size} /dev/urandom > {path}", timeout=120)
        self.digests = {path: self._digest(server, path) for path in (FILE, SMALL_FILE)}
        serve(server, "nginx -g 'daemon off;'", 80)

    def _digest(self, vm: VM, path: str) -> str:
        return vm.run(f"sha256sum {path}", timeout=120).out.split()[0]

    def _check(self, path: str, original: str) -> None:
        arrived, sent = self._digest(self.stand.client, path), self.digests[original]
        self.stand.client.run(f"rm {path}")
        if arrived != sent:
            raise LabError(f"SHA-256 differs: {sent} on the server, {arrived} on the client")

    def wget(self, watch: Watch) -> Run:
        """Megabytes a second of wget from nginx."""
        command = f"wget --progress=dot:giga -O /tmp/wget http://{self.stand.server.ip4}/large"
        with watch.around():
            done = self.stand.client.run(f"LC_ALL=C {command}", timeout=120)
        hit = re.search(r"\(([\d.]+) ([KMG]?)B/s\) - .* saved", done.err)
        if not hit:
            raise LabError(f"`{command}` printed no rate:\n{done.err[-1000:]}")
        self._check("/tmp/wget", FILE)
        return Run(float(hit[1]) * UNITS[hit[2] or "B"], down=SIZE)

    def scp(self, watch: Watch) -> Run:
        """Megabytes a second of scp, by IPv6, as its ssh reports them."""
        command = f"scp -v 'root@[{self.stand.server.ip6}]:{SMALL_FILE}' /tmp/scp"
        with watch.around():
            done = self.stand.client.run(command, timeout=120)
        hit = re.search(r"Bytes per second: sent [\d.]+, received ([\d.]+)", done.err)
        if not hit:
            raise LabError(f"`{command}` printed no rate:\n{done.err[-1000:]}")
        self._check("/tmp/scp", SMALL_FILE)
        return Run(float(hit[1]) / 1e6, down=SCP_SIZE)
