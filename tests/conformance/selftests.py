"""The kernel's own tests of its network, from Debian's source of the kernel."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path

from hallway_lab import kernelsource
from hallway_lab.sh import run

from .suites import Family, Suite, cached

TESTING = "tools/testing/selftests"
PARTS = (f"{TESTING}/net/*", f"{TESTING}/*.h", "tools/include/linux/*", "tools/include/uapi/*")
PROGRAMS = (
    *("tls", "tcp_inq", "tcp_mmap", "msg_zerocopy", "so_netns_cookie", "reuseport_addr_any"),
    *("reuseport_bpf", "reuseport_bpf_cpu", "reuseport_dualstack", "reuseaddr_conflict", "rxtimestamp"),
    *("sk_connect_zero_addr", "sk_bind_sendto_listen", "tcp_fastopen_backup_key"),
    *("io_uring_zerocopy_tx", "mptcp/mptcp_connect"),
)
SCRIPTS = ("in_netns.sh", "msg_zerocopy.sh", "io_uring_zerocopy_tx.sh", "tcp_fastopen_backup_key.sh")
# Debian's 6.1 took tests of tls over whose callees it lacks.
FLAGS = ("-O2", "-w", "-D_GNU_SOURCE", "-pthread", "-D__test_passed(test)=((test)->passed)")
MENDS = {
    "tls.c": (r"(tls_crypto_info_init\([^;]*?&\w+), [01]\);", r"\1);"),
    "tcp_fastopen_backup_key.c": (r"n_loops = 10000", "n_loops = 100"),  # of each of 16 kinds
    "tcp_mmap.c": (r"FILE_SZ \(1ULL << 35\)", "FILE_SZ (1ULL << 24)"),  # 32 GiB are too many
    # The kernel begins to stamp some time after it is asked to, later on a slow machine.
    "rxtimestamp.c": (r"usleep\(20000\)", "usleep(400000)"),
}
PLAIN = (
    *("tcp_inq -4", "tcp_inq -6", "so_netns_cookie", "reuseport_addr_any", "reuseport_bpf"),
    *("reuseport_bpf_cpu", "reuseport_dualstack", "reuseaddr_conflict", "rxtimestamp --tcp"),
    *("sk_connect_zero_addr", "sk_bind_sendto_listen", "in_netns.sh ./tcp_inq -6"),
    *("tcp_fastopen_backup_key.sh", "msg_zerocopy.sh 4 tcp -t 1"),
    *(
        "msg_zerocopy.sh 6 tcp -t 1",
        "io_uring_zerocopy_tx.sh 4 tcp -t 1",
        "io_uring_zerocopy_tx.sh 6 tcp -t 1",
    ),
)


def _listening(port: int) -> str:
    return f"until ss -Htln sport = :{port} | grep -q .; do sleep 0.1; done"


def _mmap(server: str, client: str) -> str:
    """tcp_mmap's server never ends; it says for each connection what came."""
    return (
        f"stdbuf -oL ./tcp_mmap -4 -s {server} >mmap.out 2>&1 & server=$!; {_listening(8787)};"
        f" timeout 60 ./tcp_mmap -4 -H 127.0.0.1 {client}; code=$?;"
        " for try in $(seq 100); do grep -q received mmap.out && break; sleep 0.1; done;"
        " kill $server; cat mmap.out; [ $code = 0 ] && grep -q received mmap.out"
    )


def _transfer(server: str, client: str, address: str) -> str:
    """Do what mptcp_connect.sh does: files both ways at once, and compare them."""
    shared = "./mptcp_connect -s TCP -t 60 -p 12000"
    return (
        "head -c 3000001 /dev/urandom >sin; head -c 2000003 /dev/urandom >cin;"
        f" timeout 100 {shared} -l {server} {address} <sin >sout & {_listening(12000)};"
        f" timeout 100 {shared} {client} {address} <cin >cout && wait $! && cmp sin cout && cmp cin sout"
    )


def _commands() -> list[dict[str, object]]:
    found = [{"name": one, "command": f"./{one}", "tap": False} for one in PLAIN]
    for server, client in (("", ""), ("-z", ""), ("", "-z"), ("-z", "-z")):
        name = f"tcp_mmap: server {server or 'plain'}, client {client or 'plain'}"
        found.append({"name": name, "command": _mmap(server, client), "tap": False})
    modes = itertools.product(("poll", "mmap", "sendfile"), ("127.0.0.1", "::1"))
    words = [(f"-m {mode}", f"-m {mode}", address) for mode, address in modes]
    words += [(peek, peek, "127.0.0.1") for peek in ("-P saveWithPeek", "-P saveAfterPeek")]
    words += [("-R 8192", "-S 8192", "127.0.0.1"), ("-S 8192", "-R 8192", "::1")]
    for server, client, address in words:
        six = "-6 " if ":" in address else ""
        name = f"mptcp_connect -s TCP: server {server}, client {client}, {address}"
        command = _transfer(f"{six}{server}", f"{six}{client}", address)
        found.append({"name": name, "command": command, "tap": False})
    return found


COMMANDS = {
    "commands.json": _commands(),
    "tls.json": [{"name": "tls", "command": "stdbuf -oL ./tls", "tap": True}],
}


def fetch(_kernel: str) -> list[Path]:
    """Return a folder with the programs, their scripts, and the lists of commands."""
    package, version = kernelsource.package()
    made_of = (version, PARTS, PROGRAMS, SCRIPTS, FLAGS, MENDS, COMMANDS)
    return [cached("selftests", made_of, lambda scratch: _build(scratch, f"{package}={version}"))]


def _build(scratch: Path, package: str) -> Path:
    tree = scratch / "linux"
    kernelsource.unpack(tree, package, "--wildcards", *(f"*/{part}" for part in PARTS))
    tests = tree / TESTING
    for name, (pattern, mended) in MENDS.items():
        path = tests / "net" / name
        path.write_text(re.sub(pattern, mended, path.read_text()))
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


SETUP = "{ test -d /root/selftests || cp -r /hallway/conformance/selftests /root/; } && cd /root/selftests"
FAMILY = Family(
    "selftests",
    (
        Suite("kernel selftests", "commands.py commands.json", 120, setup=SETUP),
        # They all begin with kTLS, which no ring can carry: what is tested is that it gets TCP.
        Suite("kernel selftests of tls", "commands.py tls.json", 60, setup=SETUP, rings=False),
    ),
    fetch,
)
