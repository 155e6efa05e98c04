# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The library for programs: each language's example with another one's, over TCP."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hallway_tests import library

pytestmark = pytest.mark.needs("hallway_tests.library:prepare")

PATIENCE = 60


def call(words: list[str], given: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program with that input to its end."""
    return subprocess.run(words, input=given, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.parametrize(("listener", "sender"), library.PAIRS)
def test_languages(listener: str, sender: str, tmp_path: Path) -> None:
    """Messages of one language's program arrive whole at another one's, and one comes back."""
    sent = "".join(f"{line}\n" for line in library.lines())
    commands = [library.example(one, library.folder()).split() for one in (listener, sender)]
    with (
        (tmp_path / "got").open("w+") as got,
        subprocess.Popen(
            [*commands[0], "listen", "tcp://127.0.0.1:0"], stdout=got, stderr=subprocess.PIPE, text=True
        ) as server,
    ):
        try:
            assert server.stderr is not None
            address = server.stderr.readline().removeprefix("listening at ").strip()
            done = call([*commands[1], "send", f"vsock://vm2:1,{address}"], sent)
            assert done.stdout == f"{len(library.lines())} messages\n", done
            assert done.stderr == f"connected to {address}\n"
            assert server.wait(PATIENCE) == 0
        finally:
            server.kill()
        got.seek(0)
        assert got.read() == sent


@pytest.mark.parametrize("language", ["rust", "c", "python"])
def test_errors(language: str) -> None:
    """A program is given the reasons why no address of a list is reached."""
    command = library.example(language, library.folder()).split()
    done = call([*command, "send", "vm2,tcp://127.0.0.1:1"])
    assert done.returncode and not done.stdout
    assert "NAME:PORT" in done.stderr and "is not reached by TCP" in done.stderr, done


CALLS = """
import errno, hallway, select, signal

def failed(call, *words):
    try:
        call(*words)
    except (OSError, ValueError) as error:
        return type(error), getattr(error, "errno", None)

listener = hallway.listen("tcp://127.0.0.1:0")
listener.setblocking(False)
assert failed(listener.accept) == (BlockingIOError, errno.EAGAIN)
one = hallway.connect(listener.address)
select.select([listener], [], [])
other = listener.accept()
assert other.peer.startswith("tcp://127.0.0.1:")
one.setblocking(False)
assert failed(one.recv) == (BlockingIOError, errno.EAGAIN)
assert failed(one.send, b"") == (OSError, errno.EINVAL)
assert failed(one.send, bytes(hallway.MESSAGE_MAX + 1)) == (OSError, errno.EMSGSIZE)
sent = 0
while not failed(one.send, bytes([sent % 256]) * 100_000):
    sent += 1
for number in range(sent):
    if number == sent - 1:  # there is room for the rest of it
        one.setblocking(True)
        one.flush()
    assert other.recv() == bytes([number % 256]) * 100_000
one.shutdown()
assert other.recv() is None
other.send(memoryview(b"a\\0b"))
select.select([one], [], [])
assert list(iter(one.recv, b"a\\0b")) == []
other.close()
assert failed(other.recv) == (ValueError, None)

def late(*_):
    raise TimeoutError

def send_all():
    while True:
        held.send(bytes(100_000))

# A signal ends a send to a peer that does not read, and one's handler may close what is in use.
listener.setblocking(True)
held = hallway.connect(listener.address)
kept = listener.accept()
signal.signal(signal.SIGALRM, late)
signal.setitimer(signal.ITIMER_REAL, 0.5)
assert failed(send_all) == (TimeoutError, None)
signal.signal(signal.SIGALRM, lambda *_: listener.close())
signal.setitimer(signal.ITIMER_REAL, 0.5)
assert failed(listener.accept) == (ValueError, None)
assert failed(hallway.connect, "caf\\udce9:1")[0] is OSError
print("all")
"""


def test_calls() -> None:
    """Python's calls do what they say, and the C library beneath them."""
    words = library.example("python", library.folder()).split()[:3]
    done = call([*words, sys.executable, "-B", "-c", CALLS])
    assert done.stdout == "all\n", done.stderr
