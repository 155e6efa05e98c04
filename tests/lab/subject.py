# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A run of the lab, to be ended: `subject.py PLACE` says where it is, and stays there."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lab"))

from hallway_lab import isolate  # noqa: E402
from hallway_lab.sh import guarded, run  # noqa: E402

# Three processes: in the command's group, out of it, and one that no signal but SIGKILL ends.
STUBBORN = "setsid sleep 1000 & (trap '' INT TERM HUP; sleep 1000) & sleep 1000"


def _at(place: str) -> None:
    isolate.enter()
    if place != "preparing":
        isolate.cut_off()
        isolate.add_tap("vm1")
    own = ("", "") if place == "preparing" else (os.readlink("/proc/self/ns/net"), "vm1")
    print("ready", *own, flush=True)
    if place == "failing":
        run(["sh", "-c", "(setsid sleep 1000 > /dev/null 2>&1 &); false"])
    if place == "broken":
        raise ZeroDivisionError
    try:
        run(["sh", "-c", STUBBORN])
    finally:
        if place == "cleaning":
            print("cleaning", flush=True)
            sys.stdin.readline()
            print("clean", flush=True)
        if place == "stuck":
            threading.Event().wait()


if sys.argv[1] == "stuck":
    isolate.GRACE = 0.3
sys.exit(guarded("subject", lambda: _at(sys.argv[1])))
