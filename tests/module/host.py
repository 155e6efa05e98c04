"""The module tests as the host sees them: one guest, programs in it, their verdicts."""

from __future__ import annotations

import json
from pathlib import Path

from hallway_lab.sh import LabError
from hallway_lab.vm import VM
from hallway_tests import verdicts
from hallway_tests.guests import healthy, insmod, loaded, no_leaks, rmmod, settle_in
from hallway_tests.suite import Report, check

PARAMS = {"loopback": 1, "promote_bytes": 0, "promote_ms": 0, "ring_bytes": 16384}
PROGRAMS = ("calls", "moves", "budget", "compatibility")
# The debug kernel has no type information (BTF), for its build would take twice as long.
STOCK_ONLY = ("lsm",)


def run(report: Report, kernel: str, share: Path, logs: Path, slow: float) -> None:
    """Run every program in a guest of its own; a kernel that complains fails the run."""
    vm = VM(number=1, kernel=kernel, share=share, cpus=2, network=False, boot_timeout=120 * slow)
    logs.mkdir(parents=True, exist_ok=True)
    vm.log, vm.qemu_log = logs / "vm1.log", logs / "vm1.qemu.log"
    with vm:
        settle_in(vm)
        report.run("log_is_judged", lambda: _log_is_judged(vm))
        vm.run("cp -r /hallway/tests /tmp/tests; ip link set lo up")
        for program in PROGRAMS:
            insmod(vm, **PARAMS)
            _program(report, vm, program, slow, STOCK_ONLY if kernel == "debug" else ())
            if loaded(vm):
                rmmod(vm, 60 * slow)
        if kernel == "debug":
            report.run("no_leaks", lambda: no_leaks(vm))
        report.run("guest_log_clean", lambda: healthy(vm))


def _log_is_judged(vm: VM) -> None:
    """The kernel tells of tasks that hang before a test gives up, and the verdict listens."""
    verdicts.judged()
    seconds = int(vm.get("/proc/sys/kernel/hung_task_timeout_secs"))
    check(0 < seconds <= 30, f"tasks may hang for {seconds} s before the kernel says so")


def _program(report: Report, vm: VM, program: str, slow: float, left_out: tuple[str, ...]) -> None:
    """Run a program's tests; each of its lines is a test's verdict."""
    params = " ".join(f"{name}={value}" for name, value in PARAMS.items())
    command = f"python3 -B /tmp/tests/{program}.py {slow} '{params}' '{report.only}' {' '.join(left_out)}"
    try:
        result = vm.run(command, timeout=300 * slow, check=False)
    except LabError as error:
        report.tell(False, program, 300 * slow, f"{error}\n{vm.verdict()}")
        return
    for line in result.out.splitlines():
        said = json.loads(line)
        report.tell(said["ok"], said["name"], said["seconds"], said["why"])
    if result.code:
        report.tell(False, program, 0, f"code {result.code}: {result.err[-3000:]}")
