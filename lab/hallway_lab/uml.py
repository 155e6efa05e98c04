# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A kernel of User Mode Linux that runs: a process of this machine, on one CPU of it.

Its root is this machine's, which it can only read, so its programs are this
machine's. Commands reach it by a console of its own; its log is what it says on
standard error.
"""

from __future__ import annotations

import base64
import contextlib
import os
import select
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from . import kernels, paths, verdict
from .sh import LabError
from .vm import Result, VMError

INIT = paths.LAB / "guest/uml"
MEMORY_MIB = 512


class Uml:
    """A running kernel; use it as a context manager.

    >>> with Uml() as uml:
    ...     print(uml.run("uname -r").out)
    """

    name = "uml"

    def __init__(self, log: Path | None = None) -> None:
        self.kernel = kernels.kernel("uml")
        self.cpu = max(os.sched_getaffinity(0))
        self.log = log or paths.out("vm", f"{self.name}.log")
        self._ending = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            log = stack.enter_context(open(self.log, "wb"))
            self._process = subprocess.Popen(
                self._words(Path(folder)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # Its memory is a file there: on a disk that would be written.
                env={**os.environ, "TMPDIR": "/dev/shm"},
                process_group=0,
            )
            stack.callback(self._end)
            while self._line(60) != b"ready":
                pass
            self._ending = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.close()

    def run(self, command: str, timeout: float = 60, check: bool = True) -> Result:
        """Run a shell command and wait for it."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(base64.b64encode(command.encode()) + b"\n")
            self._process.stdin.flush()
        code, *said = self._line(timeout).split(b" ")
        result = Result(int(code), *(base64.b64decode(one).decode(errors="replace") for one in said))
        if check and result.code:
            raise VMError(f"{self.name}: `{command}`: exit code {result.code}\n{result.out}{result.err}")
        return result

    def judge(self) -> None:
        """Raise if the kernel complained."""
        health = verdict.scan_file(self.log)
        if not health.ok:
            raise LabError(f"{self.name}'s kernel complained ({self.log}): {health}")

    def _words(self, folder: Path) -> list[str]:
        words = ["taskset", "-c", str(self.cpu), str(self.kernel.boot), f"mem={MEMORY_MIB}M"]
        words += ["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", f"init={INIT}"]
        words += ["con=null", "con0=null,fd:2", "con1=fd:0,fd:1", "seccomp=auto"]
        return [*words, f"umid={self.name}", f"uml_dir={folder}/"]

    def _line(self, timeout: float) -> bytes:
        """Return the next line of the console."""
        assert self._process.stdout
        end = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            ready = left > 0 and select.select([end], [], [], left)[0]
            more = os.read(end, 1 << 16) if ready else b""
            if not more:
                why = "has ended" if ready else f"says nothing for {timeout:.0f} s"
                tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])
                raise VMError(f"{self.name} {why} ({self.log}):\n{tail}")
            line += more
        return line.removesuffix(b"\n")

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
