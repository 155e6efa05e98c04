"""Running programs and telling the person what goes on.

One place decides how a failed command is reported: its command line, its exit
code and the end of what it said, never a Python traceback.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

Arg = str | Path


class LabError(Exception):
    """A failure with a message for the person at the keyboard."""


def say(text: str) -> None:
    """Print one progress line."""
    print(f"lab: {text}", file=sys.stderr, flush=True)


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
        done = subprocess.run(
            words,
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C.UTF-8", **(env or {})},
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
        )
    except FileNotFoundError:
        raise LabError(f"{words[0]} is not installed: run `./lab/run setup`") from None
    except subprocess.TimeoutExpired as late:
        raise LabError(f"{' '.join(words)}: not done after {late.timeout:.0f} s") from None
    if check and done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-40:])
        raise LabError(f"{' '.join(words)}: exit code {done.returncode}\n{tail}")
    return done.stdout
