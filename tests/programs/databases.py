# SPDX-License-Identifier: Apache-2.0 OR MIT
"""MariaDB, PostgreSQL and Redis."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .program import LARGE, MIB, Payload, Program, Vms

ROWS = 20_000
# A table as text: a number, and 200 hexadecimal digits.
TABLE = f"od -An -v -w100 -tx1 /data/large | tr -d ' ' | head -n {ROWS} | nl -w1 > /tmp/table"
TABLE_BYTES = ROWS * 200
SAME = "cmp /tmp/table /tmp/got && rm /tmp/got"
THREADS = 8


# -- MariaDB -------------------------------------------------------------------


@contextlib.contextmanager
def _mariadb(vms: Vms) -> Iterator[None]:
    vms.server.run("mkdir -p /run/mysqld && chown mysql /run/mysqld")
    with vms.serving("exec mariadbd --user=mysql --bind-address=0.0.0.0", 3306):
        vms.server.run(
            "mariadb",
            stdin="GRANT ALL ON *.* TO lab@'%' IDENTIFIED BY 'lab'; CREATE OR REPLACE DATABASE lab;",
        )
        vms.call(TABLE)
        yield


def _sql(vms: Vms, statement: str) -> str:
    return f'mariadb -h {vms.server.ip4} -u lab -plab --local-infile -BN lab -e "{statement}"'


def _mariadb_client(vms: Vms) -> Payload:
    """Move a table there and back, and its dump there and back."""
    vms.call(_sql(vms, "CREATE OR REPLACE TABLE t (n INT PRIMARY KEY, x CHAR(200))"))
    vms.call(_sql(vms, "LOAD DATA LOCAL INFILE '/tmp/table' INTO TABLE t"))
    vms.call(f"{_sql(vms, 'SELECT * FROM t ORDER BY n')} > /tmp/got && {SAME}")
    dump = f"mariadb-dump -h {vms.server.ip4} -u lab -plab --skip-dump-date lab"
    vms.call(f"{dump} > /tmp/dump && mariadb -h {vms.server.ip4} -u lab -plab lab < /tmp/dump")
    vms.call(f"{dump} | cmp - /tmp/dump && rm /tmp/dump")
    return Payload(2 * TABLE_BYTES, 3 * TABLE_BYTES)


def _mariadb_slap(vms: Vms) -> Payload:
    words = "--auto-generate-sql --auto-generate-sql-load-type=mixed --number-char-cols=20"
    load = f"--concurrency={THREADS} --number-of-queries=800 --auto-generate-sql-write-number=100"
    vms.call(f"mariadb-slap -h {vms.server.ip4} -u lab -plab {words} {load}")
    return Payload()


# -- PostgreSQL ----------------------------------------------------------------

CLUSTER = "pg_createcluster $(ls /usr/lib/postgresql) main"
POSTGRES = "/etc/postgresql/*/main"
TRUST = "host all all 10.77.0.0/24 trust\nhost all all fd77::/64 trust\n"


@contextlib.contextmanager
def _postgresql(vms: Vms) -> Iterator[None]:
    vms.server.run(f"test -e {POSTGRES} || {CLUSTER}", timeout=120)
    vms.server.run(f"cat >> $(echo {POSTGRES}/pg_hba.conf)", stdin=TRUST)
    vms.server.run("mkdir -p /run/postgresql && chown postgres /run/postgresql")
    postgres = f"$(echo /usr/lib/postgresql/*/bin/postgres) -D $(echo {POSTGRES}) -c listen_addresses=*"
    with vms.serving(f'exec su postgres -c "{postgres}"', 5432):
        vms.call(TABLE)
        yield


def _psql(vms: Vms, command: str) -> str:
    return f'psql -h {vms.server.ip4} -U postgres -v ON_ERROR_STOP=1 -XAtqc "{command}"'


def _psql_copy(vms: Vms) -> Payload:
    vms.call(_psql(vms, "DROP TABLE IF EXISTS t"))
    vms.call(_psql(vms, "CREATE TABLE t (n int PRIMARY KEY, x text)"))
    vms.call(_psql(vms, "\\copy t FROM /tmp/table"))
    vms.call(f"{_psql(vms, 'COPY (SELECT * FROM t ORDER BY n) TO STDOUT')} > /tmp/got && {SAME}")
    return Payload(TABLE_BYTES, TABLE_BYTES)


def _pgbench(vms: Vms) -> Payload:
    """Transfer money; the accounts then hold what the history says."""
    bench = f"$(echo /usr/lib/postgresql/*/bin/pgbench) -h {vms.server.ip4} -U postgres"
    vms.call(f"{bench} -i -q -I dtgvp postgres")  # the client sends the accounts' rows
    vms.call(f"{bench} -c {THREADS} -t 40 -n postgres")
    sums = "(SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(delta) FROM pgbench_history)"
    said = vms.call(_psql(vms, f"SELECT {sums}, (SELECT count(*) FROM pgbench_history)"))
    accounts, history, count = said.split("|")
    if accounts != history or int(count) != THREADS * 40:
        raise AssertionError(f"accounts sum to {accounts}, the history of {count} rows to {history}")
    return Payload()


# -- Redis ---------------------------------------------------------------------


@contextlib.contextmanager
def _redis(vms: Vms) -> Iterator[None]:
    words = "--bind 0.0.0.0 --protected-mode no --save '' --appendonly no"
    with vms.serving(f"exec redis-server {words}", 6379):
        yield


def _redis_cli(vms: Vms) -> Payload:
    redis = f"redis-cli -h {vms.server.ip4}"
    vms.call(f"{redis} -x SET large < /data/large")
    vms.call(f"{redis} --raw GET large | head -c {LARGE} > /tmp/got")
    vms.returned("/tmp/got")
    return Payload(LARGE, LARGE)


def _redis_benchmark(vms: Vms) -> Payload:
    """It checks that every answer comes; afterwards no item is missing."""
    redis = f"-h {vms.server.ip4}"
    requests, size = 4000, 1000
    vms.call(f"redis-cli {redis} FLUSHALL")
    vms.call(f"redis-benchmark {redis} -t set,get,lpush,lrange_100 -c 20 -n {requests} -d {size} -P 4 -q")
    pushed = int(vms.call(f"redis-cli {redis} LLEN mylist"))
    if pushed < requests:
        raise AssertionError(f"{pushed} of {requests} items are in the list")
    return Payload(2 * requests * size, requests * 100 * size)


VALUE = f"a value of {LARGE // MIB} MiB, there and back"
REDIS = Program("redis", "Redis ↔ redis-cli", VALUE, _redis_cli, _redis)
PROGRAMS = (
    Program(
        "mariadb",
        "MariaDB ↔ its client",
        "a table and a dump, there and back",
        _mariadb_client,
        _mariadb,
        "MYSQL",
    ),
    Program("mariadb-slap", "MariaDB ↔ mariadb-slap", f"{THREADS} clients", _mariadb_slap, _mariadb),
    Program("postgresql", "PostgreSQL ↔ psql", "COPY of a table, there and back", _psql_copy, _postgresql),
    Program("pgbench", "PostgreSQL ↔ pgbench", f"{THREADS} clients; the sums agree", _pgbench, _postgresql),
    REDIS,
    Program("redis-benchmark", "Redis ↔ redis-benchmark", "20 clients, pipelined", _redis_benchmark, _redis),
)
