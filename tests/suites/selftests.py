# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The kernel's own tests of its network, from Debian's source of the kernel."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path

from hallway_lab import kernelsource
from hallway_lab.sh import LabError, run
from hallway_tests.products import cached

from .suite import Suite, lay_out

TESTING = "tools/testing/selftests"
PARTS = (f"{TESTING}/net/*", f"{TESTING}/*.h", "tools/include/linux/*", "tools/include/uapi/*")
PROGRAMS = (
    *("tls", "tcp_inq", "tcp_mmap", "msg_zerocopy", "so_netns_cookie", "reuseport_addr_any"),
    *("reuseport_bpf", "reuseport_bpf_cpu", "reuseport_dualstack", "reuseaddr_conflict", "rxtimestamp"),
    *("sk_connect_zero_addr", "sk_bind_sendto_listen", "tcp_fastopen_backup_key"),
    *("io_uring_zerocopy_tx", "mptcp/mptcp_connect"),
)
ZEROCOPY = ("msg_zerocopy.sh", "io_uring_zerocopy_tx.sh")
SCRIPTS = ("in_netns.sh", "tcp_fastopen_backup_key.sh", *ZEROCOPY)
# Debian's 6.1 has tests of tls that use a macro which it lacks.
FLAGS = ("-O2", "-w", "-D_GNU_SOURCE", "-pthread", "-D__test_passed(test)=((test)->passed)")


def _listening(port: int, within: str = "") -> str:
    return f"until {within} ss -Htln sport = :{port} | grep -q .; do sleep 0.1; done"


# A file, a pattern in it, and what takes its place.
MENDS = (
    ("tls.c", r"(tls_crypto_info_init\([^;]*?&\w+), [01]\);", r"\1);"),
    # One cipher for each version of TLS: the carrier makes no difference to the other nine.
    ("tls.c", r"FIXTURE_VARIANT_ADD\(tls, (?!1[23]_aes_gcm\))\w+\)\s*\{[^}]*\};", ""),
    ("tcp_fastopen_backup_key.c", r"n_loops = 10000", "n_loops = 40"),  # of each of 16 kinds
    ("tcp_fastopen_backup_key.c", r"key_rotate_interval = 50", "key_rotate_interval = 5"),
    ("tcp_mmap.c", r"FILE_SZ \(1ULL << 35\)", "FILE_SZ (1ULL << 24)"),  # 16 MiB, not 32 GiB
    # More bytes may be there than it reads at once.
    (
        "tcp_mmap.c",
        r"assert\(zc.recv_skip_hint <= chunk_size\);",
        "if (zc.recv_skip_hint > chunk_size) zc.recv_skip_hint = chunk_size;",
    ),
    # It asks for a ULP, in vain; such a connection stays on TCP.
    ("mptcp/mptcp_connect.c", r"SOCK_TEST_TCPULP\(\w+, \w+\);", ""),
    # On a slow machine a server takes longer to listen.
    *((script, r"sleep 0\.2", _listening(8000, "ip netns exec $NS2")) for script in ZEROCOPY),
)
PLAIN = (
    *("tcp_inq -4", "tcp_inq -6", "so_netns_cookie", "reuseport_addr_any", "reuseport_bpf"),
    *("reuseport_bpf_cpu", "reuseport_dualstack", "reuseaddr_conflict"),
    *("sk_connect_zero_addr", "sk_bind_sendto_listen", "in_netns.sh ./tcp_inq -6"),
    "tcp_fastopen_backup_key.sh",
)


def _command(name: str, command: str, tap: bool = False) -> dict[str, object]:
    return {"name": name, "command": command, "tap": tap}


def _mmap(server: str, client: str) -> str:
    """Return a command with tcp_mmap's server, which never ends and prints what each connection brought."""
    return (
        f"stdbuf -oL ./tcp_mmap -4 -s {server} >mmap.out 2>&1 & server=$!; {_listening(8787)};"
        f" timeout 60 ./tcp_mmap -4 -H 127.0.0.1 {client}; code=$?;"
        " for try in $(seq 100); do grep -q received mmap.out && break; sleep 0.1; done;"
        " kill $server; cat mmap.out; [ $code = 0 ] && grep -q received mmap.out"
    )


def _transfer(server: str, client: str, address: str) -> str:
    """Return what mptcp_connect.sh does: send files both ways at once, and compare them."""
    shared = "./mptcp_connect -s TCP -t 60 -p 12000"
    return (
        "head -c 3000001 /dev/urandom >sin; head -c 2000003 /dev/urandom >cin;"
        f" timeout 100 {shared} -l {server} {address} <sin >sout & {_listening(12000)};"
        f" timeout 100 {shared} {client} {address} <cin >cout && wait $! && cmp sin cout && cmp cin sout"
    )


def _plain() -> list[dict[str, object]]:
    stamped = "python3 -B /tmp/suites/stamped.py"
    # Its ports are fixed, and in use for a minute after it: it gets a network namespace.
    found = [_command("rxtimestamp --tcp", f"{stamped} ./in_netns.sh ./rxtimestamp --tcp")]
    return [*(_command(one, f"./{one}") for one in PLAIN), *found]


def _zero_copies() -> list[dict[str, object]]:
    words = [f"{script} {version} tcp -t 1" for script in ZEROCOPY for version in (4, 6)]
    found = [_command(one, f"./{one}") for one in words]
    for server, client in itertools.product(("", "-z"), repeat=2):
        name = f"tcp_mmap: server {server or 'plain'}, client {client or 'plain'}"
        found.append(_command(name, _mmap(server, client)))
    return found


def _transfers() -> list[dict[str, object]]:
    modes = itertools.product(("poll", "mmap", "sendfile"), ("127.0.0.1", "::1"))
    words = [(f"-m {mode}", f"-m {mode}", address) for mode, address in modes]
    words += [(peek, peek, "127.0.0.1") for peek in ("-P saveWithPeek", "-P saveAfterPeek")]
    words += [("-R 8192", "-S 8192", "127.0.0.1"), ("-S 8192", "-R 8192", "::1")]
    found = []
    for server, client, address in words:
        six = "-6 " if ":" in address else ""
        name = f"mptcp_connect -s TCP: server {server}, client {client}, {address}"
        found.append(_command(name, _transfer(f"{six}{server}", f"{six}{client}", address)))
    return found


COMMANDS = {
    "plain.json": _plain(),
    "zerocopy.json": _zero_copies(),
    "transfers.json": _transfers(),
    "tls.json": [_command("tls", "stdbuf -oL ./tls", tap=True)],
}


def prepare(kernel: str) -> None:
    """Build the programs, and lay them out with their scripts and the lists of commands."""
    package, version = kernelsource.package()
    made_of = (version, PARTS, PROGRAMS, SCRIPTS, FLAGS, MENDS, COMMANDS)
    made = cached("selftests", made_of, lambda scratch: _build(scratch, f"{package}={version}"))
    lay_out(kernel, made)


def _build(scratch: Path, package: str) -> Path:
    tree = scratch / "linux"
    kernelsource.unpack(tree, package, "--wildcards", *(f"*/{part}" for part in PARTS))
    tests = tree / TESTING
    for name, pattern, mended in MENDS:
        path = tests / "net" / name
        text, found = re.subn(pattern, mended, path.read_text())
        if not found:
            raise LabError(f"{package}: {name} has nothing like {pattern!r} to mend")
        path.write_text(text)
    made = scratch / "selftests"
    made.mkdir()
    for name in PROGRAMS:
        words = ["gcc", *FLAGS, "-I", tests, "-I", tests / "net", "-o", made / Path(name).name]
        run([*words, tests / "net" / f"{name}.c"])
    for name in SCRIPTS:
        shutil.copy2(tests / "net" / name, made)
    for name, commands in COMMANDS.items():
        (made / name).write_text(json.dumps(commands, indent=1))
    return made


SETUP = "{ test -d /root/selftests || cp -r /hallway/suites/selftests /root/; } && cd /root/selftests"
SUITES = (
    Suite("kernel selftests", "commands.py plain.json", 120, setup=SETUP),
    Suite("kernel selftests of zero copies", "commands.py zerocopy.json", 120, setup=SETUP),
    Suite("kernel selftests' transfers", "commands.py transfers.json", 120, setup=SETUP),
    # They all begin with kTLS, which no ring can carry: what is tested is that it gets TCP.
    Suite("kernel selftests of tls", "commands.py tls.json", 60, setup=SETUP, rings=False),
)
