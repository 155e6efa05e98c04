"""A private network, process and mount namespace for everything a run starts.

The lab re-executes itself as PID 1 of new namespaces. When that process ends,
for any reason including SIGKILL and Ctrl-C, the kernel ends every process in
them, and bridge, taps and the private /run vanish with the last one. There is
no clean-up code that could be skipped. (util-linux' unshare is close, but its
parent blocks SIGTERM, so a `timeout` around it would hang.)
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys

from .sh import LabError, run

CLONE_NEWNS = 0x00020000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1
MARK = "HALLWAY_LAB_INSIDE"
BRIDGE = "hall0"


def inside() -> bool:
    """Tell whether this process runs in the lab's namespaces."""
    return MARK in os.environ


def enter() -> None:
    """Continue this program inside fresh namespaces; the original only waits.

    Returns in the inner process. The outer one never returns: it forwards
    signals and exits with the inner one's code.
    """
    if inside():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() != 0:
        raise LabError("the lab needs root: it makes a private network and runs VMs on it")
    if libc.unshare(CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWNS):
        raise LabError(f"cannot make namespaces: {os.strerror(ctypes.get_errno())}")
    reading, writing = os.pipe()  # the outer process holds the writing end while it lives
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        _wait_for(child)
    os.close(writing)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if _hung_up(reading):
        os._exit(1)
    os.environ[MARK] = "1"
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where it came ignored
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGHUP, lambda *_: sys.exit(129))
    _furnish()


def _hung_up(end: int) -> bool:
    """Tell whether the waiting process ended before we could ask to be told."""
    waiter = select.poll()
    waiter.register(end, 0)
    return bool(waiter.poll(0))


def _wait_for(child: int) -> None:
    def forward(number: int, _frame: object) -> None:
        os.kill(child, number)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal tells the inner one itself
    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGHUP, forward)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _furnish() -> None:
    run(["mount", "--make-rprivate", "/"])
    run(["mount", "-t", "proc", "proc", "/proc"])
    run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run"])
    run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm"])
    os.makedirs("/run/hallway-lab")
    run(["ip", "link", "set", "lo", "up"])
    run(["ip", "link", "add", BRIDGE, "type", "bridge", "forward_delay", "0", "mcast_snooping", "0"])
    run(["ip", "addr", "add", "10.77.0.254/24", "dev", BRIDGE])
    run(["ip", "-6", "addr", "add", "fd77::254/64", "dev", BRIDGE, "nodad"])
    run(["ip", "link", "set", BRIDGE, "up"])


def add_tap(name: str) -> None:
    """Make a tap on the bridge for one VM."""
    if not inside():
        raise LabError("not inside the lab's namespaces: call isolate.enter() first")
    run(["ip", "tuntap", "add", "dev", name, "mode", "tap", "vnet_hdr"])
    run(["ip", "link", "set", name, "master", BRIDGE, "up"])


def drop_tap(name: str) -> None:
    """Remove a VM's tap."""
    run(["ip", "link", "del", name], check=False)
