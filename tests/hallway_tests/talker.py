# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Tunnels with load, and what came of each."""

from __future__ import annotations

import json
from typing import Any

from hallway_lab.vm import VM

from .suite import check, wait_for
from .tunnels import PORT, PROGRAM, cid

CONNS = 4  # of each talker: as many of each type
ENOUGH = 10  # messages of a talker that show that bytes flow
STALL = 60  # seconds for which they may stand still


class Talker:
    """Connections of one VM to another one that follow each other, with messages of which each is checked.

    `refused`: nothing listens there at the start.
    """

    def __init__(self, vm: VM, to: VM, program: str = PROGRAM, *, refused: bool = False) -> None:
        self._vm, self._file = vm, f"/tmp/talk-to-{to.name}"
        vm.run(f"rm -f {self._file}")
        self.job = vm.spawn(f"exec {program} talk {cid(to)} {PORT} {CONNS} {self._file}")
        if refused:
            self.wait_failed(0)
        else:
            self.wait_progress("at the start")

    def counted(self) -> dict[str, Any]:
        """Return what the file of `talk` says."""
        said = self._vm.run(f"cat {self._file} 2>/dev/null", check=False, first=True).out
        return json.loads(said) if said else {"echoed": 0, "failed": 0, "wrong": 0}

    def wait_progress(self, when: str) -> None:
        """Wait until more messages are echoed."""
        before = self.counted()["echoed"]
        wait_for(
            lambda: self.counted()["echoed"] >= before + ENOUGH, f"{self._vm.name} goes on {when}", STALL
        )
        wrong = self.counted()["wrong"]
        check(not wrong, f"{self._vm.name}: {wrong} messages are not what was sent")

    def wait_failed(self, before: int) -> None:
        """Wait until each connection has failed since."""
        wait_for(lambda: self.counted()["failed"] >= before + CONNS, f"{self._vm.name} learns of it", STALL)

    def end(self) -> None:
        """Kill it."""
        self.job.kill(9)
        self.job.wait()
