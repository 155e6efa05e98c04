# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A private world for everything a run starts: processes, mounts, network.

A run that begins goes on as PID 1 of a new PID namespace. When that process
ends, for any reason including SIGKILL and Ctrl-C, the kernel ends every process
in it, and bridge, taps and the private /run vanish with the last one: nothing
depends on clean-up code that could be skipped. (util-linux' unshare is close,
but its parent blocks SIGTERM, so a `timeout` around it would hang.)
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from . import paths
from .sh import LabError, run

CLONE_NEWNS = 0x00020000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WATCHED = (*ENDING, signal.SIGCHLD)
GRACE = 10  # seconds that a run may take to end after a signal
BRIDGE = "hall0"

_cut_off = False


def enter() -> None:
    """Continue this program in a PID namespace of its own; the original only waits.

    Returns in the inner process. The outer one never returns: it forwards
    signals and exits with the inner one's code.
    """
    _unshare(CLONE_NEWPID | CLONE_NEWNS)
    scratch = _scratch()
    reading, writing = os.pipe()  # the outer process holds the writing end while it lives
    sys.stdout.flush()
    sys.stderr.flush()
    # A signal to a PID 1 that has no handler yet would be lost; blocked, it waits.
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    child = os.fork()
    if child:
        _wait_for(child, scratch)
    os.close(writing)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if _hung_up(reading):
        os._exit(1)
    end_on_signals()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
    os.environ["TMPDIR"] = scratch
    run(["mount", "--make-rprivate", "/"])
    run(["mount", "-t", "proc", "proc", "/proc"])


def _scratch() -> str:
    """Make a folder for temporary files; folders of killed runs are removed."""
    folder = paths.cache("tmp", "x").parent
    with paths.lock("tmp"):
        for old in folder.glob("run-*"):
            with contextlib.suppress(OSError), _opened(old) as handle:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(old, ignore_errors=True)
        made = tempfile.mkdtemp(prefix="run-", dir=folder)
        fcntl.flock(os.open(made, os.O_RDONLY), fcntl.LOCK_EX)  # until this run is no more
    return made


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)


def end_on_signals() -> None:
    """Unwind at the first signal; what comes later must not disturb the end."""

    def end(number: int, _frame: object) -> None:
        for other in ENDING:
            signal.signal(other, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    for number in ENDING:
        signal.signal(number, end)


@contextlib.contextmanager
def put_off() -> Iterator[None]:
    """Let signals that end a run wait for the end of the block."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda *words: came.append(words[0])) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def _unshare(flags: int) -> None:
    if os.geteuid() != 0:
        raise LabError("please run as root: the lab makes private networks and runs VMs on them")
    if ctypes.CDLL(None, use_errno=True).unshare(flags):
        raise LabError(f"cannot make namespaces: {os.strerror(ctypes.get_errno())}")


def _hung_up(end: int) -> bool:
    """Tell whether the waiting process ended before the death signal was set."""
    waiter = select.poll()
    waiter.register(end, 0)
    return bool(waiter.poll(0))


def _wait_for(child: int, scratch: str) -> None:
    """Forward signals until the child has ended, and with it all that it started."""
    deadline = None
    ended = 0
    while not ended:
        came = _next_signal(deadline)
        if came is None:
            os.kill(child, signal.SIGKILL)
        elif came in ENDING:
            os.kill(child, came)
            deadline = deadline or time.monotonic() + GRACE
        ended, status = os.waitpid(child, 0 if came is None else os.WNOHANG)
    shutil.rmtree(scratch, ignore_errors=True)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _next_signal(deadline: float | None) -> int | None:
    """Wait for a signal; None if none came in time."""
    if deadline is None:
        return signal.sigwait(WATCHED)
    came = signal.sigtimedwait(WATCHED, max(0.0, deadline - time.monotonic()))
    return came.si_signo if came else None


def cut_off() -> None:
    """Leave the machine's network, /run and shared memory for private ones."""
    global _cut_off
    _unshare(CLONE_NEWNET | CLONE_NEWNS)
    run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run"])
    run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm"])
    os.makedirs("/run/hallway-lab")
    run(["ip", "link", "set", "lo", "up"])
    run(["ip", "link", "add", BRIDGE, "type", "bridge", "forward_delay", "0", "mcast_snooping", "0"])
    run(["ip", "addr", "add", "10.77.0.254/24", "dev", BRIDGE])
    run(["ip", "-6", "addr", "add", "fd77::254/64", "dev", BRIDGE, "nodad"])
    run(["ip", "link", "set", BRIDGE, "up"])
    _cut_off = True


def need_private() -> None:
    """Refuse to touch the machine's own network."""
    if not _cut_off:
        raise LabError("not in a private network: call isolate.cut_off() first")


def add_host(name: str) -> None:
    """Make a network namespace with a bridge of its own, one wire away from ours."""
    need_private()
    run(["ip", "netns", "add", name])
    run(["ip", "link", "add", name, "type", "veth", "peer", "name", "uplink", "netns", name])
    run(["ip", "link", "set", name, "master", BRIDGE, "up"])
    inside = ["ip", "-n", name, "link"]
    run([*inside, "set", "lo", "up"])
    run([*inside, "add", BRIDGE, "type", "bridge", "forward_delay", "0", "mcast_snooping", "0"])
    run([*inside, "set", "uplink", "master", BRIDGE, "up"])
    run([*inside, "set", BRIDGE, "up"])


def drop_host(name: str) -> None:
    """Remove such a namespace, once nothing runs in it."""
    run(["ip", "link", "del", name], check=False)
    run(["ip", "netns", "del", name], check=False)


def on_host(name: str | None) -> list[str]:
    """Return what a command begins with that is to run on that host; None: our own."""
    return ["nsenter", f"--net=/run/netns/{name}"] if name else []


def add_tap(name: str, host: str | None = None) -> None:
    """Make a tap for one VM, on the bridge of its host."""
    need_private()
    run([*on_host(host), "ip", "tuntap", "add", "dev", name, "mode", "tap", "vnet_hdr"])
    run([*on_host(host), "ip", "link", "set", name, "master", BRIDGE, "up"])


def drop_tap(name: str, host: str | None = None) -> None:
    """Remove a VM's tap."""
    run([*on_host(host), "ip", "link", "del", name], check=False)
