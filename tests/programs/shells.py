# SPDX-License-Identifier: Apache-2.0 OR MIT
"""OpenSSH, rsync and telnet."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .program import LARGE, MIB, SMALL, Payload, Program, Vms

FORWARDED = 7100


def _ssh(vms: Vms) -> Payload:
    vms.call(f"ssh {vms.server.name} 'cat /data/large' > /tmp/got")
    vms.fetched("/tmp/got")
    vms.call(f"ssh {vms.server.name} 'cat > /tmp/got' < /data/large")
    vms.stored("/tmp/got")
    return Payload(LARGE, LARGE)


def _scp(vms: Vms) -> Payload:
    vms.call(f"scp '[{vms.server.ip6}]:/data/large' /tmp/got")
    vms.fetched("/tmp/got")
    vms.call(f"scp /data/large {vms.server.ip4}:/tmp/got")
    vms.stored("/tmp/got")
    return Payload(LARGE, LARGE)


def _sftp(vms: Vms) -> Payload:
    batch = "get /data/large /tmp/got\nput /data/large /tmp/got\n"
    vms.client.run(f"sftp -b - {vms.server.ip4}", timeout=120, stdin=batch)
    vms.fetched("/tmp/got")
    vms.stored("/tmp/got")
    return Payload(LARGE, LARGE)


@contextlib.contextmanager
def _echo(vms: Vms) -> Iterator[None]:
    listen = f"socat TCP-LISTEN:{FORWARDED},bind=127.0.0.1,fork,reuseaddr"
    with (
        vms.serving(f"{listen} EXEC:cat", FORWARDED),
        vms.serving(f"{listen} EXEC:cat", FORWARDED, vms.client),
    ):
        yield


def _forwarding(vms: Vms) -> Payload:
    """Send bytes through a port that ssh forwards to the server's echo, then to the client's."""
    port = FORWARDED + 1
    echo = f"socat -t 60 - TCP:127.0.0.1:{port}"
    for way, call in (("L", echo), ("R", f"ssh {vms.server.ip4} '{echo}'")):
        tunnel = f"ssh -M -S /tmp/tunnel -o ExitOnForwardFailure=yes -{way} {port}:127.0.0.1:{FORWARDED}"
        vms.call(f"{tunnel} -f -N {vms.server.ip4} > /dev/null 2>&1")
        vms.call(f"{call} < /data/large > /tmp/got")
        vms.call(f"ssh -S /tmp/tunnel -O exit {vms.server.ip4}")
        vms.returned("/tmp/got")
    return Payload(3 * LARGE, 3 * LARGE)


def _rsync(vms: Vms) -> Payload:
    """Copy a folder of many small files and a large one; then change one byte of that, and copy again."""
    vms.call("rm -rf /tmp/tree && mkdir /tmp/tree && cp /data/large /tmp/tree")
    vms.call("split -n 200 -a 3 /data/large /tmp/tree/part-")
    vms.call(f"rsync -a --delete /tmp/tree {vms.server.ip4}:/tmp/", timeout=180)
    vms.call("printf x | dd of=/tmp/tree/large bs=1 seek=5000000 conv=notrunc status=none")
    vms.call(f"rsync -a --checksum --no-whole-file /tmp/tree {vms.server.ip4}:/tmp/", timeout=180)
    vms.call(f"rsync -a {vms.server.ip4}:/tmp/tree/ /tmp/back", timeout=180)
    vms.call("diff -r /tmp/tree /tmp/back && rm -r /tmp/tree /tmp/back")
    vms.server.run("rm -r /tmp/tree")
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
def _inetd(vms: Vms) -> Iterator[None]:
    vms.server.put(LOGIN, "/root/login")
    vms.server.run("chmod +x /root/login")
    telnetd = "/usr/sbin/telnetd telnetd -E /root/login"
    vms.server.put(f"{TELNET} stream tcp nowait root {telnetd}\n", "/etc/inetd.conf")
    with vms.serving("inetd -i", TELNET):
        yield


def _telnet(vms: Vms) -> Payload:
    """Run a session that prints a file; it waits, for telnetd drops the end of a session that is over."""
    open_ = "mkfifo /tmp/keys; exec 3<>/tmp/keys; echo 'base64 /data/small' >&3"
    close = "until grep -q ^farewell /tmp/screen; do sleep 0.1; done; echo >&3; wait; rm /tmp/keys"
    vms.call(f"{open_}; telnet {vms.server.ip4} {TELNET} < /tmp/keys > /tmp/screen & {close}")
    vms.call("sed '1,/^welcome/d;/^farewell/,$d' /tmp/screen | base64 -d -i > /tmp/got")
    vms.fetched("/tmp/got", "small")
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
