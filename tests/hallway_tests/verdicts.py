# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The verdict on a guest's log, put to the test: what it must see, and what it must not."""

from __future__ import annotations

from hallway_lab import verdict

# As kernels 6.1 and 6.12 say it, each the first line of its report.
TROUBLE = (
    "[  242.6] INFO: task rmmod:412 blocked for more than 30 seconds.",
    "[   31.4] BUG: unable to handle page fault for address: ffffffffa001671f",
    "[   31.4] BUG: kernel NULL pointer dereference, address: 0000000000000028",
    "[   31.4] Oops: 0010 [#1] PREEMPT SMP KASAN",
    "[   12.0] BUG: KASAN: slab-use-after-free in hall_recvmsg+0x12/0x40 [hallway]",
    "[   12.0] UBSAN: array-index-out-of-bounds in kmod/sock/rx.c:12:3",
    "[   12.0] WARNING: CPU: 0 PID: 9 at net/core/stream.c:208 sk_stream_kill_queues+0xee/0x130",
    "[   12.0] WARNING: possible circular locking dependency detected",
    "[   12.0] WARNING: inconsistent lock state",
    "[   12.0] WARNING: suspicious RCU usage",
    "[   12.0] BUG: sleeping function called from invalid context at mm/slab.h:494",
    "[   12.0] BUG: scheduling while atomic: iperf3/312/0x00000002",
    "[   12.0] refcount_t: underflow; use-after-free.",
    "[   12.0] list_del corruption. prev->next should be ffff888, but was dead000",
    "[   12.0] ODEBUG: free active (active state 0) object type: work_struct hint: work+0x0/0x40",
    "[   70.0] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
    "[   70.0] watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [kworker/0:1:13]",
    "[   70.0] kmemleak: 3 new suspected memory leaks (see /sys/kernel/debug/kmemleak)",
    "[   70.0] general protection fault, probably for non-canonical address 0xdead: 0000 [#1]",
    "[   70.0] Kernel panic - not syncing: Fatal exception in interrupt",
    "[   70.0] iperf3: page allocation failure: order:0, mode:0x40a20",
)
HARMLESS = (
    "[    0.0] Linux version 6.1.0-56-amd64 (debian-kernel@lists.debian.org)",
    "[    0.0] tsc: Marking TSC unstable due to TSCs unsynchronized",
    "[    3.3] hallway: loading out-of-tree module taints kernel.",
    "[    3.3] hallway: unloading waits for 2 sockets",
    "[    9.1] hallway: ivshmem: member 2 (vm2) left",
    "lab: guest is up after 2.86 s",
)


def judged() -> None:
    """Each bad line alone makes a log bad, and nothing else does."""
    good = "\n".join(HARMLESS)
    assert verdict.scan(good).ok, f"a good log is bad: {verdict.scan(good)}"
    for line in TROUBLE:
        found = verdict.scan(f"{good}\r\n{line}\r\n{good}")
        assert found.lines == (line,), f"not seen: {line}"
