# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What counts as a complaint of a guest's kernel."""

from __future__ import annotations

import pytest
from hallway_lab.verdict import scan

FLUSH = "workqueue: WQ_MEM_RECLAIM iscsi_ctrl_0:1:__iscsi_unbind_session [scsi_transport_iscsi] is flushing"
STOCK = f"""\
[  141.58] ------------[ cut here ]------------
[  141.58] {FLUSH} !WQ_MEM_RECLAIM pm:pm_runtime_work
[  141.59] WARNING: CPU: 0 PID: 31 at kernel/workqueue.c:3765 check_flush_dependency.part.0+0xbe/0x130
[  141.60] Call Trace:
[  141.60]  pm_runtime_remove+0x20/0x30
[  141.61] ---[ end trace 0000000000000000 ]---
"""
OTHER = "[  142.00] WARNING: CPU: 0 PID: 32 at net/ipv4/tcp.c:1 tcp_close+0x1/0x2\n"


def test_stock_fault() -> None:
    """A fault that stock kernels are known for is none of ours, with the words that a console adds."""
    assert scan(f"up\n{STOCK}down\n").ok
    assert scan(STOCK.replace("\n", "\r\n")).ok


@pytest.mark.parametrize(
    "log",
    [
        STOCK + OTHER,
        OTHER + STOCK,
        STOCK.replace("iscsi_ctrl_", "hallway_"),
        STOCK.replace("[  141.60]  pm", "[  141.60] BUG: KASAN: use-after-free in pm"),
        STOCK.replace("[  141.60]  pm", "[  141.60] Oops: general protection fault, in pm"),
        STOCK.replace("[  141.60]  pm", "[  141.60] refcount_t: underflow; use-after-free.\n pm"),
        STOCK.replace("Call Trace", "------------[ cut here ]------------\nCall Trace"),
        STOCK.partition("[  141.61]")[0],
    ],
    ids=["after", "before", "similar", "within", "oops", "refcount", "nested", "cut-off"],
)
def test_other_faults(log: str) -> None:
    """It hides no other one."""
    assert not scan(log).ok
