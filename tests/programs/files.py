# SPDX-License-Identifier: Apache-2.0 OR MIT
"""File servers: FTP, Samba, and the kernel's NFS and CIFS."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from hallway_tests.nfs import nfs_mount

from .program import LARGE, MIB, Payload, Program, Vms

# -- FTP -----------------------------------------------------------------------

VSFTPD = """
listen_ipv6=YES
listen_port=2121
background=NO
anonymous_enable=YES
anon_root=/data
anon_upload_enable=YES
anon_umask=022
write_enable=YES
no_anon_password=YES
"""
PROFTPD = """
ServerType standalone
Port 2121
UseIPv6 on
User nobody
Group nogroup
AuthOrder mod_auth_unix.c
WtmpLog off
TransferLog none
SystemLog none
PidFile /run/proftpd/pid
ScoreboardFile /run/proftpd/board
DelayEngine off
<Anonymous /data>
  User ftp
  Group nogroup
  UserAlias anonymous ftp
  RequireValidShell off
  AllowOverwrite on
</Anonymous>
"""
FTP_PORT = 2121


@contextlib.contextmanager
def _vsftpd(vms: Vms) -> Iterator[None]:
    vms.server.put(VSFTPD, "/etc/vsftpd-lab.conf")
    vms.server.run("mkdir -p /run/vsftpd/empty")
    with vms.serving("vsftpd /etc/vsftpd-lab.conf", FTP_PORT):
        yield


@contextlib.contextmanager
def _proftpd(vms: Vms) -> Iterator[None]:
    vms.server.put(PROFTPD, "/etc/proftpd-lab.conf")
    vms.server.run("mkdir -p /run/proftpd")
    with vms.serving("/opt/proftpd-core/usr/sbin/proftpd -n -q -c /etc/proftpd-lab.conf", FTP_PORT):
        yield


def _ftp(vms: Vms) -> Payload:
    """Passive and active, over IPv4 and IPv6: either side opens the data connection."""
    for host, words in ((vms.server.ip4, ""), (f"[{vms.server.ip6}]", "--ftp-port -")):
        base = f"ftp://{host}:{FTP_PORT}"
        vms.call(f"curl -sSf {words} -o /tmp/got {base}/large")
        vms.fetched("/tmp/got")
        vms.call(f"curl -sSf {words} -T /data/large {base}/incoming/got")
        vms.stored("/data/incoming/got")
    return Payload(2 * LARGE, 2 * LARGE)


# -- NFS and CIFS, in the kernel -----------------------------------------------


def _mounted(vms: Vms, other: str) -> None:
    """Files are the same there and back; the cache is dropped before each is read."""
    fresh = "sync /mnt; echo 3 > /proc/sys/vm/drop_caches"
    vms.call(f"cp /data/large /mnt/got && sync /mnt/got; {fresh}; cmp /data/large /mnt/got")
    vms.stored(f"{other}/got")
    vms.server.run(f"cp /data/large {other}/there")
    vms.call(f"{fresh}; cp /mnt/there /tmp/got; rm /mnt/there")
    vms.fetched("/tmp/got")


@contextlib.contextmanager
def _nfs(vms: Vms) -> Iterator[None]:
    with nfs_mount(vms.server, vms.client):
        yield


def _nfs_files(vms: Vms) -> Payload:
    _mounted(vms, "/srv/nfs")
    return Payload(LARGE, 2 * LARGE)


SMB = """
[global]
  server role = standalone
  log file = /run/samba/log
  load printers = no
  disable spoolss = yes
[share]
  path = /data/share
  read only = no
"""
PASSWORD = "hallway"


@contextlib.contextmanager
def _samba(vms: Vms) -> Iterator[None]:
    vms.server.put(SMB, "/etc/samba/smb.conf")
    vms.server.run("mkdir -p /run/samba /data/share")
    vms.server.run("smbpasswd -s -a root", stdin=f"{PASSWORD}\n{PASSWORD}\n")
    with vms.serving("exec smbd -F --no-process-group", 445):
        yield


def _smbclient(vms: Vms) -> Payload:
    """Signed, then encrypted."""
    for protect in ("sign", "encrypt"):
        login = f"smbclient //{vms.server.ip4}/share -U root%{PASSWORD} --client-protection={protect}"
        vms.call(f"{login} -c 'put /data/large got; get got /tmp/got'")
        vms.returned("/tmp/got")
        vms.stored("/data/share/got")
    return Payload(2 * LARGE, 2 * LARGE)


@contextlib.contextmanager
def _cifs(vms: Vms) -> Iterator[None]:
    with _samba(vms):
        login = f"username=root,password={PASSWORD},vers=3.1.1"
        vms.call(f"mount -t cifs //{vms.server.ip4}/share /mnt -o {login}")
        try:
            yield
        finally:
            vms.client.run("umount -f -l /mnt")


def _cifs_files(vms: Vms) -> Payload:
    _mounted(vms, "/data/share")
    return Payload(LARGE, 2 * LARGE)


# A user in the kernel is promoted only once it has read through our recvmsg.
PROOF_MS = 1500
FILE = f"{LARGE // MIB} MiB"
FTP = f"{FILE} each way, passive and active"
PROGRAMS = (
    Program("vsftpd", "vsftpd ↔ curl", FTP, _ftp, _vsftpd, "VSFTPD"),
    Program("proftpd", "ProFTPD ↔ curl", FTP, _ftp, _proftpd, "PROFTPD"),
    Program(
        "samba", "Samba ↔ smbclient", f"{FILE} each way, signed and encrypted", _smbclient, _samba, "SAMBA"
    ),
    Program(
        "cifs",
        "Samba ↔ the kernel's CIFS client",
        f"{FILE} there, twice back",
        _cifs_files,
        _cifs,
        "SAMBA",
        PROOF_MS,
    ),
    Program(
        "nfs", "NFS 4.2, both in the kernel", f"{FILE} there, twice back", _nfs_files, _nfs, pause_ms=PROOF_MS
    ),
)
