"""OpenSSH, rsync and telnet."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .stage import LARGE, MIB, SMALL, Payload, Program, Stage

FORWARDED = 7100


def _ssh(stage: Stage) -> Payload:
    stage.call(f"ssh {stage.server.name} 'cat /data/large' > /tmp/got")
    stage.fetched("/tmp/got")
    stage.call(f"ssh {stage.server.name} 'cat > /tmp/got' < /data/large")
    stage.stored("/tmp/got")
    return Payload(LARGE, LARGE)


def _scp(stage: Stage) -> Payload:
    stage.call(f"scp '[{stage.server.ip6}]:/data/large' /tmp/got")
    stage.fetched("/tmp/got")
    stage.call(f"scp /data/large {stage.server.ip4}:/tmp/got")
    stage.stored("/tmp/got")
    return Payload(LARGE, LARGE)


def _sftp(stage: Stage) -> Payload:
    batch = "get /data/large /tmp/got\nput /data/large /tmp/got\n"
    stage.client.run(f"sftp -b - {stage.server.ip4}", timeout=120, stdin=batch)
    stage.fetched("/tmp/got")
    stage.stored("/tmp/got")
    return Payload(LARGE, LARGE)


@contextlib.contextmanager
def _echo(stage: Stage) -> Iterator[None]:
    listen = f"socat TCP-LISTEN:{FORWARDED},bind=127.0.0.1,fork,reuseaddr"
    with (
        stage.serving(f"{listen} EXEC:cat", FORWARDED),
        stage.serving(f"{listen} EXEC:cat", FORWARDED, stage.client),
    ):
        yield


def _forwarding(stage: Stage) -> Payload:
    """Bytes go through a forwarded port to the server's echo, then back from it to the client's."""
    port = FORWARDED + 1
    echo = f"socat -t 60 - TCP:127.0.0.1:{port}"
    for way, call in (("L", echo), ("R", f"ssh {stage.server.ip4} '{echo}'")):
        tunnel = f"ssh -M -S /tmp/tunnel -o ExitOnForwardFailure=yes -{way} {port}:127.0.0.1:{FORWARDED}"
        stage.call(f"{tunnel} -f -N {stage.server.ip4} > /dev/null 2>&1")
        stage.call(f"{call} < /data/large > /tmp/got")
        stage.call(f"ssh -S /tmp/tunnel -O exit {stage.server.ip4}")
        stage.returned("/tmp/got")
    return Payload(3 * LARGE, 3 * LARGE)


def _rsync(stage: Stage) -> Payload:
    """A folder of many small files and a large one; then one byte of that changes."""
    stage.call("rm -rf /tmp/tree && mkdir /tmp/tree && cp /data/large /tmp/tree")
    stage.call("split -n 200 -a 3 /data/large /tmp/tree/part-")
    stage.call(f"rsync -a --delete /tmp/tree {stage.server.ip4}:/tmp/", timeout=180)
    stage.call("printf x | dd of=/tmp/tree/large bs=1 seek=5000000 conv=notrunc status=none")
    stage.call(f"rsync -a --checksum --no-whole-file /tmp/tree {stage.server.ip4}:/tmp/", timeout=180)
    stage.call(f"rsync -a {stage.server.ip4}:/tmp/tree/ /tmp/back", timeout=180)
    stage.call("diff -r /tmp/tree /tmp/back && rm -r /tmp/tree /tmp/back")
    stage.server.run("rm -r /tmp/tree")
    return Payload(2 * LARGE, 2 * LARGE)


TELNET = 2323
LOGIN = """#!/bin/sh
stty -echo -onlcr
echo welcome
read -r command
sh -c "$command"
echo farewell
read -r answer
"""


@contextlib.contextmanager
def _inetd(stage: Stage) -> Iterator[None]:
    stage.server.put(LOGIN, "/root/login")
    stage.server.run("chmod +x /root/login")
    telnetd = "/usr/sbin/telnetd telnetd -E /root/login"
    stage.server.put(f"{TELNET} stream tcp nowait root {telnetd}\n", "/etc/inetd.conf")
    with stage.serving("inetd -i", TELNET):
        yield


def _telnet(stage: Stage) -> Payload:
    """A session that prints a file; telnetd would drop the end of it if the login ended at once."""
    open_ = "mkfifo /tmp/keys; exec 3<>/tmp/keys; echo 'base64 /data/small' >&3"
    close = "until grep -q ^farewell /tmp/screen; do sleep 0.1; done; echo >&3; wait; rm /tmp/keys"
    stage.call(f"{open_}; telnet {stage.server.ip4} {TELNET} < /tmp/keys > /tmp/screen & {close}")
    stage.call("sed '1,/^welcome/d;/^farewell/,$d' /tmp/screen | base64 -d -i > /tmp/got")
    stage.fetched("/tmp/got", "small")
    return Payload(down=SMALL)


FILE = f"{LARGE // MIB} MiB"
EACH = f"{FILE} each way"
PROGRAMS = (
    Program("ssh", "OpenSSH, ssh", f"{EACH} through a remote cat", _ssh, xway="SSH"),
    Program("scp", "OpenSSH, scp", f"{EACH}, IPv6 and IPv4", _scp, xway="SCP"),
    Program("sftp", "OpenSSH, sftp", EACH, _sftp),
    Program("ssh-forwarding", "OpenSSH, -L and -R", f"{FILE} to an echo and back", _forwarding, _echo),
    Program("rsync", "rsync over OpenSSH", "202 files there, a change, and back", _rsync),
    Program("telnet", "telnetd, inetd → telnet", "a session that prints 1.4 MB", _telnet, _inetd, "TELNET"),
)
