# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Running programs and telling the person what goes on.

One place decides how a failed command is reported: its command line, its exit
code and the end of what it said, never a Python traceback.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

Arg = str | Path


class LabError(Exception):
    """A failure with a message for the person at the keyboard."""


def say(text: str) -> None:
    """Print one progress line."""
    print(f"lab: {text}", file=sys.stderr, flush=True)


def guarded(name: str, action: Callable[[], int | None]) -> int:
    """Run a whole program; a failure or an interruption is printed, and decides the exit code."""
    try:
        return action() or 0
    except LabError as failure:
        print(f"{name}: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130


@contextlib.contextmanager
def step(text: str) -> Iterator[None]:
    """Announce a long step, and tell how long it took."""
    say(f"{text} ...")
    begin = time.monotonic()
    yield
    say(f"{text}: done in {time.monotonic() - begin:.1f} s")


def run(
    command: Sequence[Arg],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = True,
    text: str | None = None,
    timeout: float | None = None,
) -> str:
    """Run `command` and return what it printed on both channels.

    `env` is added to the environment, `text` is given on standard input.
    Raises LabError when it fails and `check` is set.
    """
    words = [str(word) for word in command]
    try:
        process = subprocess.Popen(
            words,
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C.UTF-8", **(env or {})},
            stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            process_group=0,
        )
        with end_group(process):
            said, _ = process.communicate(text, timeout)
    except FileNotFoundError:
        raise LabError(f"{words[0]} is not installed: run `./lab/run setup`") from None
    except subprocess.TimeoutExpired as late:
        raise LabError(f"{' '.join(words)}: not done after {late.timeout:.0f} s") from None
    if check and process.returncode:
        tail = "\n".join(said.splitlines()[-40:])
        raise LabError(f"{' '.join(words)}: exit code {process.returncode}\n{tail}")
    return said


@contextlib.contextmanager
def end_group(process: subprocess.Popen[str]) -> Iterator[None]:
    """End a process, and all of its group, when the block fails or is interrupted."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
