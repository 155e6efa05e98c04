# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Benchmarks of two tiers: Apache httpd asks MariaDB for each page that a client outside fetches.

This is Fig. 8 of "Fast Networking with Socket-Outsourcing" (Eiraku et al., SAC 2009): there an application
server and a database run in one VM, and in two. The query is that of HTTP's basic authentication. With
outsourcing off, the bytes of clients, and those between the VMs, pass NICs. Within a VM they stay native.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import re
import shutil
from collections.abc import Iterator, Sequence

from hallway_lab import isolate, outsourcing, paths, prepare, programs, provision
from hallway_lab.aptbox import AptBox
from hallway_lab.outsourcing import HOST, NETNS, Stand
from hallway_lab.programs import Run
from hallway_lab.sample import Row
from hallway_lab.sh import LabError, run
from hallway_lab.vm import VM

from .group import Group

IMAGE, MEMORY_MIB = "programs", 1024
DATABASE = 3306
USERS = (4, 64)
PAGE = 4 << 10
NAME, PASSWORD = "lab", "lab"
# The driver by which Apache httpd asks MariaDB, which the image lacks, and the folder where it has to be.
DRIVER, DRIVERS = "libaprutil1-dbd-mysql", "usr/lib/x86_64-linux-gnu/apr-util-1"
MODULES = ("mpm_event", "dir", "dbd", "authn_core", "authn_dbd", "auth_basic", "authz_core", "authz_user")
APACHE = """
ServerRoot /etc/apache2
ServerName tiers
User www-data
Group www-data
PidFile /run/apache-tiers.pid
ErrorLog /run/apache-tiers.log
DocumentRoot /srv/tiers
KeepAlive On
MaxKeepAliveRequests 0
DirectoryIndex index.html
DBDriver mysql
"""
SITE = """
Listen {port}
<VirtualHost *:{port}>
    DBDParams "host={address} port={database} user=lab pass=lab dbname=lab"
    <Location />
        AuthType Basic
        AuthName tiers
        AuthBasicProvider dbd
        AuthDBDUserPWQuery "SELECT word FROM users WHERE name = %s"
        Require valid-user
    </Location>
</VirtualHost>
"""
SQL = """
GRANT ALL ON *.* TO lab@'%' IDENTIFIED BY 'lab';
CREATE OR REPLACE DATABASE lab;
USE lab;
CREATE TABLE users (name VARCHAR(32) PRIMARY KEY, word VARCHAR(64));
INSERT INTO users SELECT CONCAT('user', seq), 'none' FROM seq_1_to_10000;
INSERT INTO users VALUES ('{name}', '{{SHA}}{digest}');
"""
# Ports of the application server, by where its database is: in its VM; in another one, by host or NIC.
LOCAL, BY_HOST, BY_NIC = 8080, 8081, 8082
RULES = f'publish = ["tcp/{LOCAL}", "tcp/{BY_HOST}"]'
OF_DATABASE = f'publish = ["tcp/{DATABASE}"]'
PAPER = "≈ 1.45×, of an emulated NIC"


class Tiers(Group):
    """The scenarios with an application server in one VM, and a database in it and in another one."""

    stand: Stand

    def prepare(self, kernel: str) -> None:
        """Fetch what the VMs, and their clients, need besides."""
        prepare_tiers(kernel)

    @contextlib.contextmanager
    def standing(self, kernel: str) -> Iterator[Stand]:
        """Boot both VMs, and start the servers in them."""
        lay_driver(kernel)
        options = {"image": IMAGE, "memory_mib": MEMORY_MIB}
        with outsourcing.standing_pair(kernel, OF_DATABASE, RULES, **options) as self.stand:
            application, database = self.stand.client, self.stand.server
            assert database
            for vm in (application, database):
                serve_database(vm)
            serve_pages(application, {LOCAL: "127.0.0.1", BY_HOST: HOST, BY_NIC: database.ip4})
            yield self.stand

    def rows(self) -> list[Row]:
        """All scenarios, in the report's order."""
        return [
            Row(
                key=f"outsource-tiers-{count}-{users}",
                title=f"outside → Apache + MariaDB in {count} VM{'s' * (count > 1)}, {users} users",
                unit="1/s",
                command=describe_fetch(users, self.seconds),
                paper=PAPER,
                run=functools.partial(self._fetch, count, users),
            )
            for count in (1, 2)
            for users in USERS
        ]

    def _fetch(self, count: int, users: int) -> Run:
        on = self.stand.on
        port = LOCAL if count == 1 else BY_HOST if on else BY_NIC
        address = HOST if on else self.stand.client.ip4
        return Run(fetch_pages(f"{address}:{port}", users, self.seconds, isolate.on_host(NETNS)))


def prepare_tiers(kernel: str) -> None:
    """Fetch what VMs of this kernel, and their clients, need for two tiers."""
    provision.need("wrk")
    prepare.run_steps(prepare.guest_steps(kernel, IMAGE))
    AptBox("stable").unpack(paths.out("bench", "driver"), [DRIVER])


def lay_driver(kernel: str) -> None:
    """Lay out the driver for VMs of this kernel."""
    share = paths.out("share", kernel)
    shutil.copytree(paths.out("bench", "driver") / DRIVERS, share / "driver", dirs_exist_ok=True)


def describe_fetch(users: int, seconds: int) -> str:
    """Return what fetch_pages() runs, for people."""
    return f"wrk -t 1 -c {users} -d {seconds} -H 'Authorization: Basic …' http://ADDRESS/"


def fetch_pages(site: str, users: int, seconds: int, where: Sequence[str] = ()) -> float:
    """Have users of a site, ADDRESS:PORT, fetch its page all the time; return how many pages come a second.

    `where`: words that run their program elsewhere.
    """
    secret = base64.b64encode(f"{NAME}:{PASSWORD}".encode()).decode()
    words = ["wrk", "-t", "1", "-c", str(users), "-d", str(seconds), "--timeout", "20"]
    words += ["-H", f"Authorization: Basic {secret}", f"http://{site}/"]
    said = run([*where, *words], timeout=seconds + 60)
    rate = re.search(r"Requests/sec:\s*([\d.]+)", said)
    if not rate or "Non-2xx" in said or "Socket errors" in said:
        raise LabError(f"`{' '.join(words)}`: not each request had its page:\n{said}")
    return float(rate[1])


def serve_database(vm: VM) -> None:
    """Run MariaDB with the table of users."""
    vm.run("mkdir -p /run/mysqld && chown mysql /run/mysqld")
    words = "exec mariadbd --user=mysql --bind-address=0.0.0.0 --skip-name-resolve"
    programs.serve(vm, words, DATABASE, timeout=120)
    digest = base64.b64encode(hashlib.sha1(PASSWORD.encode()).digest()).decode()
    vm.run("mariadb", stdin=SQL.format(name=NAME, digest=digest), timeout=120)


def serve_pages(vm: VM, sites: dict[int, str]) -> None:
    """Run Apache httpd; `sites`: the addresses of databases, by port."""
    vm.run(f"cp /hallway/driver/* /{DRIVERS}/; mkdir -p /srv/tiers")
    vm.run(f"head -c {PAGE // 2} /dev/urandom | od -An -tx1 -v | tr -d ' \\n' >/srv/tiers/index.html")
    modules = (f"LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n" for name in MODULES)
    tiers = (SITE.format(port=port, address=address, database=DATABASE) for port, address in sites.items())
    vm.put("".join([*modules, APACHE, *tiers]), "/etc/apache2/tiers.conf")
    programs.serve(vm, "exec apache2 -f /etc/apache2/tiers.conf -DFOREGROUND", next(iter(sites)), timeout=60)
