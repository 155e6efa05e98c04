"""File servers: FTP, and the kernel's clients and servers: NFS, CIFS."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from hallway_tests.nfs import nfs_mount

from .stage import LARGE, MIB, Payload, Program, Stage

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
def _vsftpd(stage: Stage) -> Iterator[None]:
    stage.server.put(VSFTPD, "/etc/vsftpd-lab.conf")
    stage.server.run("mkdir -p /run/vsftpd/empty")
    with stage.serving("vsftpd /etc/vsftpd-lab.conf", FTP_PORT):
        yield


@contextlib.contextmanager
def _proftpd(stage: Stage) -> Iterator[None]:
    stage.server.put(PROFTPD, "/etc/proftpd-lab.conf")
    stage.server.run("mkdir -p /run/proftpd")
    with stage.serving("/opt/proftpd-core/usr/sbin/proftpd -n -q -c /etc/proftpd-lab.conf", FTP_PORT):
        yield


def _ftp(stage: Stage) -> Payload:
    """Passive and active, over IPv4 and IPv6: the data connection is opened by either side."""
    for host, words in ((stage.server.ip4, ""), (f"[{stage.server.ip6}]", "--ftp-port -")):
        base = f"ftp://{host}:{FTP_PORT}"
        stage.call(f"curl -sSf {words} -o /tmp/got {base}/large")
        stage.fetched("/tmp/got")
        stage.call(f"curl -sSf {words} -T /data/large {base}/incoming/got")
        stage.stored("/data/incoming/got")
    return Payload(2 * LARGE, 2 * LARGE)


# -- NFS and CIFS, in the kernel -----------------------------------------------


def _mounted(stage: Stage, other: str) -> None:
    """Files survive the way there and back; the cache is dropped before each is read."""
    fresh = "sync /mnt; echo 3 > /proc/sys/vm/drop_caches"
    stage.call(f"cp /data/large /mnt/got && sync /mnt/got; {fresh}; cmp /data/large /mnt/got")
    stage.stored(f"{other}/got")
    stage.server.run(f"cp /data/large {other}/there")
    stage.call(f"{fresh}; cp /mnt/there /tmp/got; rm /mnt/there")
    stage.fetched("/tmp/got")


@contextlib.contextmanager
def _nfs(stage: Stage) -> Iterator[None]:
    with nfs_mount(stage.server, stage.client):
        yield


def _nfs_files(stage: Stage) -> Payload:
    _mounted(stage, "/srv/nfs")
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
def _samba(stage: Stage) -> Iterator[None]:
    stage.server.put(SMB, "/etc/samba/smb.conf")
    stage.server.run("mkdir -p /run/samba /data/share")
    stage.server.run("smbpasswd -s -a root", stdin=f"{PASSWORD}\n{PASSWORD}\n")
    with stage.serving("exec smbd -F --no-process-group", 445):
        yield


def _smbclient(stage: Stage) -> Payload:
    """Signed, then encrypted."""
    for protect in ("sign", "encrypt"):
        login = f"smbclient //{stage.server.ip4}/share -U root%{PASSWORD} --client-protection={protect}"
        stage.call(f"{login} -c 'put /data/large got; get got /tmp/got'")
        stage.returned("/tmp/got")
        stage.stored("/data/share/got")
    return Payload(2 * LARGE, 2 * LARGE)


@contextlib.contextmanager
def _cifs(stage: Stage) -> Iterator[None]:
    with _samba(stage):
        login = f"username=root,password={PASSWORD},vers=3.1.1"
        stage.call(f"mount -t cifs //{stage.server.ip4}/share /mnt -o {login}")
        try:
            yield
        finally:
            stage.client.run("umount -f -l /mnt")


def _cifs_files(stage: Stage) -> Payload:
    _mounted(stage, "/data/share")
    return Payload(LARGE, 2 * LARGE)


# A user in the kernel gets a ring only when it has been seen to read as one can.
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
