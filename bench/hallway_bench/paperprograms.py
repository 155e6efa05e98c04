# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Benchmarks of a paper's programs, between two VMs.

The rows are those of Figures 13 and 15 of "Inter-domain Socket Communications" (XWAY, VEE 2008): programs
that carry a large file; and users outside that fetch pages of an application server in one VM, which
asks a database in the other one for each. For domains of Xen see domains.py.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager

from hallway_lab import measure
from hallway_lab.measure import Stand
from hallway_lab.programs import Run
from hallway_lab.sample import Row
from hallway_lab.sh import LabError

from . import tiers
from .group import Group

MEMORY_MIB = 1024
SIZE = 48 << 20  # bytes of the file, which is in memory at both ends: the paper's has 1 GB
FOLDER, FILE, COPY = "/srv/lab", "/srv/lab/large", "/run/copy"
HTTP_PORT, FTP_PORT, PAGES_PORT = 80, 2100, 8083
VSFTPD = f"""
listen=YES
listen_port={FTP_PORT}
anonymous_enable=YES
no_anon_password=YES
anon_root={FOLDER}
secure_chroot_dir=/run/vsftpd/empty
seccomp_sandbox=NO
background=NO
"""
NGINX = f"""
daemon off;
error_log stderr;
pid /run/nginx-lab.pid;
events {{}}
http {{ access_log off; sendfile on; server {{ listen {HTTP_PORT}; root {FOLDER}; }} }}
"""
# How a client fetches the file, ADDRESS being the server's, and with what server: a command, and its port.
FETCHES = {
    "scp": (f"scp -q root@ADDRESS:{FILE} {COPY}", "", 0),
    "ftp": (f"curl -sSf -o {COPY} ftp://ADDRESS:{FTP_PORT}/large", "vsftpd /run/vsftpd-lab.conf", FTP_PORT),
    "wget": (f"wget -q -O {COPY} http://ADDRESS/large", "nginx -c /run/nginx-lab.conf", HTTP_PORT),
}
USERS = (4, 64)
XWAY_FILES, XWAY_USERS = "XWAY: 5.3 to 13.1×", "XWAY: 1.13×, 800 users"


class PaperPrograms(Group):
    """Programs between two VMs; servers start when needed."""

    kind = "papers"
    stand: Stand

    def prepare(self, kernel: str) -> None:
        """Fetch what the programs need."""
        tiers.prepare_tiers(kernel)

    def boot(self, kernel: str) -> AbstractContextManager[Stand]:
        """Boot the VMs."""
        return measure.standing(kernel, image=tiers.IMAGE, memory_mib=MEMORY_MIB)

    def address(self) -> str:
        """Return the address by which users outside reach the first VM."""
        return self.stand.client.ip4

    @contextlib.contextmanager
    def standing(self, kernel: str) -> Iterator[Stand]:
        """Boot the VMs, and lay out the file."""
        tiers.lay_driver(kernel)
        with self.boot(kernel) as self.stand:
            server = self.stand.server
            server.run(f"mkdir -p {FOLDER} /run/vsftpd/empty; mount -t tmpfs -o mode=755 tmpfs {FOLDER}")
            server.run(f"head -c {SIZE} /dev/urandom >{FILE}", timeout=120)
            server.put(VSFTPD, "/run/vsftpd-lab.conf")
            server.put(NGINX, "/run/nginx-lab.conf")
            self._digest = server.run(f"sha256sum <{FILE}", timeout=120).out
            yield self.stand

    def rows(self) -> list[Row]:
        """All scenarios, in the report's order."""
        files = [
            Row(
                key=f"{self.kind}-file-{name}",
                title=f"{name}, {SIZE >> 20} MiB",
                unit="MB/s",
                command=command,
                paper=XWAY_FILES,
                target=1.0,
                run=functools.partial(self._fetch, command, server, port),
            )
            for name, (command, server, port) in FETCHES.items()
        ]
        pages = [
            Row(
                key=f"{self.kind}-tiers-{users}",
                title=f"Apache → MariaDB, {users} users outside",
                unit="1/s",
                command=tiers.describe_fetch(users, self.seconds),
                paper=XWAY_USERS,
                target=1.0,
                # Of what goes between the VMs; what users outside fetch is on no ring.
                share=0.8,
                run=functools.partial(self._fetch_pages, users),
            )
            for users in USERS
        ]
        return files + pages

    def _fetch(self, command: str, server: str, port: int) -> Run:
        """Fetch the file; its bytes are those that were sent."""
        client = self.stand.client
        if server:
            self._servers.need(self.stand.server, server, port)
        words = command.replace("ADDRESS", self.stand.server.ip4)
        said = client.run(f"begin=$(date +%s%N); {words} && echo $(($(date +%s%N) - begin))", timeout=180)
        arrived = client.run(f"sha256sum <{COPY} && rm {COPY}", timeout=120).out
        if arrived != self._digest:
            raise LabError(f"`{words}`: SHA-256 differs: {self._digest} on the server, {arrived} here")
        return Run(SIZE * 1e3 / int(said.out), down=SIZE)

    def _fetch_pages(self, users: int) -> Run:
        assert self._pages
        return Run(tiers.fetch_pages(f"{self.address()}:{PAGES_PORT}", users, self.seconds))

    @functools.cached_property
    def _pages(self) -> bool:
        tiers.serve_database(self.stand.server)
        tiers.serve_pages(self.stand.client, {PAGES_PORT: self.stand.server.ip4})
        return True
