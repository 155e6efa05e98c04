# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Users of sockets in the guests' kernels."""

from __future__ import annotations

import pytest
from hallway_lab import nvme
from hallway_tests.guests import (
    AT_ONCE,
    Delta,
    connections,
    counters,
    insmod,
    jobs_end,
    rmmod,
    wait_members,
)
from hallway_tests.nfs import nfs_mount
from hallway_tests.pair import Pair, on_rings
from hallway_tests.suite import wait_for

pytestmark = [pytest.mark.xdist_group("e2e-streams"), pytest.mark.xen]

MEGABYTE = 1 << 20
FILE = 4 * MEGABYTE  # many times what sockets and rings hold
SWITCHES = 20  # off and on again, of a disk under load, at each end
WRITE = f"""
head -c {FILE} /dev/urandom > /tmp/written
cp /tmp/written /mnt/file && sync /mnt/file
"""
COMPARE = "echo 3 > /proc/sys/vm/drop_caches && cmp /tmp/written /mnt/file"


@pytest.mark.slow_on("6.1")
@pytest.mark.not_on("debug", "the kernel has no NFS")
def test_nfs(pair: Pair) -> None:
    """NFS's client and server are promoted; files survive off, on, and unloading under a live mount."""
    # A ring that grows is on TCP meanwhile.
    params = AT_ONCE | {"ring_bytes": 1 << 18, "ring_bytes_max": 1 << 18}
    pair.load(**params)
    delta = Delta(*pair.both)

    def copy() -> None:
        """Write a file to the server and read it back."""
        pair.a.run(WRITE, timeout=60)
        pair.a.run(COMPARE, timeout=60)

    def ringing() -> bool:
        pair.a.run("ls -l /mnt")
        return any(on_rings(c) for c in connections(pair.a))

    with nfs_mount(pair.b, pair.a):
        wait_for(ringing, "the mount is on rings both ways")
        for vm in pair.both:
            before = [counters(other)["tx_bytes_ring"] for other in pair.both]
            copy()
            for other, ringed in zip(pair.both, before, strict=True):
                moved = counters(other)["tx_bytes_ring"] - ringed
                assert moved >= FILE, f"{other.name} sent {moved} bytes of the file's {FILE} by ring"
            vm.run("hallway off")
            copy()
            vm.run("hallway on")
            wait_for(ringing, f"the mount is on rings again after off on {vm.name}")
        pair.check_counters(delta)
        for vm in pair.both:
            rmmod(vm)
            pair.a.run(COMPARE, timeout=60)
            insmod(vm, **params)
        wait_members(*pair.both)
        wait_for(ringing, "the mount is on rings with the module back")
        copy()
    pair.a.run("rm /tmp/written")


DISK = "iqn.2024-01.test:disk"
SERVE_DISK = f"""
set -e
truncate -s 32M /tmp/disk
mkdir -p /run/tgtd && tgtd
until tgtadm --lld iscsi --op show --mode target >/dev/null 2>&1; do sleep 0.1; done
tgtadm --lld iscsi --op new --mode target --tid 1 -T {DISK}
tgtadm --lld iscsi --op new --mode logicalunit --tid 1 --lun 1 -b /tmp/disk
tgtadm --lld iscsi --op bind --mode target --tid 1 -I ALL
"""
SERVE_DISK_NO_MORE = """
tgtadm --lld iscsi --op delete --force --mode target --tid 1
tgtadm --op delete --mode system; pkill -KILL -x tgtd; rm -f /tmp/disk
"""
LOG_IN = f"""
set -e
modprobe -a iscsi_tcp sd_mod
echo InitiatorName=iqn.2024-01.test:a > /etc/iscsi/initiatorname.iscsi
iscsid
iscsiadm -m discovery -t st -p %s
iscsiadm -m node -T {DISK} -l
"""
LOG_OUT = "iscsiadm -m node -u; iscsiadm -m node -o delete; pkill -KILL -x iscsid"
FIND_DISK = "for d in /sys/block/sd*; do grep -q VIRTUAL-DISK $d/device/model && echo /dev/${d##*/}; done"


@pytest.mark.slow_on("6.1")
@pytest.mark.not_on("debug", "the kernel has no iSCSI")
def test_iscsi(pair: Pair) -> None:
    """A daemon logs in and hands its connection to the kernel, which reads below every call."""
    pair.load(**AT_ONCE)
    delta = Delta(*pair.both)
    try:
        pair.b.run(SERVE_DISK)
        try:
            pair.a.run(LOG_IN % pair.b.ip4)
            found = wait_for(lambda: pair.a.run(FIND_DISK, check=False).out.split(), "the disk is there")
            disk = str(found[0])
            for switch in ("on", "off", "on"):
                pair.a.run(f"hallway {switch}")
                pair.a.run("dd if=/dev/urandom of=/tmp/written bs=1M count=8 status=none")
                pair.a.run(f"dd if=/tmp/written of={disk} bs=256k oflag=direct status=none")
                pair.a.run(f"dd if={disk} of=/tmp/read bs=256k count=32 iflag=direct status=none")
                pair.a.run("cmp /tmp/written /tmp/read")
            assert delta.of(pair.a)["rx_bytes_ring"] < MEGABYTE, "the kernel was given bytes by a ring"
        finally:
            pair.a.run(LOG_OUT, check=False)
    finally:
        pair.b.run(SERVE_DISK_NO_MORE, check=False)
    pair.check_counters(delta)


USE_DISK = f"""
set -e
dd if=/dev/urandom of=/tmp/written bs=1M count=4 status=none
dd if=/tmp/written of={nvme.DISK} bs=%s oflag=direct status=none
dd if={nvme.DISK} of=/tmp/read bs=%s count=4M iflag=direct,count_bytes status=none
cmp /tmp/written /tmp/read
"""


@pytest.mark.slow
@pytest.mark.not_on("debug", "the kernel has no NVMe")
def test_nvme(pair: Pair) -> None:
    """NVMe over TCP goes by rings. A disk under load keeps its content through off, on, and unloading."""
    pair.load(**AT_ONCE)

    def ringing() -> bool:
        pair.a.run(f"dd if={nvme.DISK} of=/dev/null bs=4k count=8 iflag=direct status=none")
        return any(on_rings(c) for c in connections(pair.a))

    with nvme.disk(pair.b, pair.a):
        for vm in pair.both:
            wait_for(ringing, "the disk is on rings both ways")
            delta = Delta(*pair.both)
            for block in ("4k", "128k"):
                pair.a.run(USE_DISK % (block, block), timeout=60)
            for other in pair.both:
                moved = delta.of(other)["tx_bytes_ring"]
                assert moved >= 2 * FILE, f"{other.name} sent only {moved} bytes by ring"
            busy = pair.a.spawn("while [ ! -e /tmp/stop ]; do" + USE_DISK % ("64k", "64k") + "done")
            for _ in range(SWITCHES):
                vm.run("hallway off", timeout=60)
                vm.run("hallway on")
                wait_for(lambda: any(on_rings(c) for c in connections(pair.a)), "the disk is on rings again")
            pair.check_counters(delta)
            rmmod(vm, 60)
            insmod(vm, **AT_ONCE)
            wait_members(*pair.both)
            pair.a.run("touch /tmp/stop")
            assert busy.wait(60).code == 0, "the disk gave other bytes than it got"
            pair.a.run("rm /tmp/stop /tmp/written /tmp/read")


MOUNT_9P = """
import socket, subprocess
with socket.create_connection(("%s", 5640)) as server:
    number = server.fileno()
    options = f"trans=fd,rfdno={number},wfdno={number},version=9p2000.L,aname=/tmp/9p,msize=65536"
    subprocess.run(["mount", "-t", "9p", "-o", options, "none", "/mnt"], check=True, pass_fds=[number])
"""


@pytest.mark.slow
@pytest.mark.not_on("debug", "the kernel's 9p has no descriptors as transport")
def test_9p(pair: Pair) -> None:
    """9p over a program's connection goes by rings; files survive off and on."""
    pair.load(**AT_ONCE)
    delta = Delta(*pair.both)
    pair.b.run("mkdir -p /tmp/9p")
    server = pair.b.spawn("exec diod -f -n -d 0 -l 0.0.0.0:5640 -e /tmp/9p")
    try:
        wait_for(lambda: pair.b.run("ss -Hltn sport = 5640").out, "the server listens")
        pair.a.run("modprobe -a 9p 9pnet_fd; python3 -", stdin=MOUNT_9P % pair.b.ip4)
        try:
            for switch in ("on", "off", "on"):
                pair.a.run(f"hallway {switch}")
                if switch == "on":
                    wait_for(
                        lambda: pair.a.run("ls /mnt").code == 0 and any(map(on_rings, connections(pair.a))),
                        "the mount is on rings both ways",
                    )
                pair.a.run(WRITE, timeout=60)
                pair.a.run(COMPARE, timeout=60)
            pair.check_counters(delta)
            moved = [delta.of(vm)["tx_bytes_ring"] for vm in pair.both]
            assert min(moved) >= FILE, f"rings carried only {moved} bytes"
        finally:
            pair.a.run("umount -f -l /mnt")
    finally:
        pair.b.run("pkill -x diod; rm -rf /tmp/9p", check=False)
    server.wait(20)


@pytest.mark.slow_on("6.1")
@pytest.mark.not_on("debug", "the kernel has neither family")
@pytest.mark.parametrize(("family", "ringed"), [("rds", False), ("smc", True)])
def test_family(pair: Pair, family: str, ringed: bool) -> None:
    """RDS and SMC, which the kernel carries over TCP, keep their messages."""
    pair.load(**AT_ONCE)
    delta = Delta(*pair.both)
    program = "python3 /hallway/guest/families.py"
    module = {"rds": "rds_tcp", "smc": "smc"}[family]
    for vm in pair.both:
        vm.run(f"modprobe {module}")
    try:
        server = pair.b.spawn(f"exec {program} answer {family} {pair.b.ip4} 4000 > /tmp/said")
        wait_for(lambda: pair.b.run("cat /tmp/said", check=False).out, "the server is ready")
        said = pair.a.run(f"{program} ask {family} {pair.b.ip4} 4000 {pair.a.ip4}", timeout=60).out.split()
        assert said[0] == said[1], "other bytes came back than were sent"
        jobs_end(server)
    finally:
        # RDS keeps its connections.
        for vm in pair.both:
            wait_for(lambda: not vm.run(f"modprobe -r {module}", check=False).code, "it is unloaded")  # noqa: B023
            vm.run("rm -f /tmp/said")
    pair.check_counters(delta)
    moved = [delta.of(vm)["tx_bytes_ring"] for vm in pair.both]
    assert [count > MEGABYTE for count in moved] == [ringed] * 2, f"{moved} bytes went by rings"
