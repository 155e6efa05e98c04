# SPDX-License-Identifier: Apache-2.0 OR MIT
"""stress-ng's stressors of sockets, which check what they read."""

from __future__ import annotations

import json

from hallway_lab import paths

from .suite import Suite, lay_out

OPERATIONS = 300
STRESSORS = (
    *(
        f"--sock 2 --sock-ops {OPERATIONS} --sock-domain {domain} --sock-type stream --sock-opts {calls}"
        for domain in ("ipv4", "ipv6")
        for calls in ("send", "sendmsg", "sendmmsg")
    ),
    f"--sock 2 --sock-ops {OPERATIONS} --sock-domain ipv4 --sock-opts random --sock-nodelay",
    f"--sock 2 --sock-ops {OPERATIONS} --sock-domain ipv4 --sock-zerocopy",
    f"--sockmany 2 --sockmany-ops {OPERATIONS}",
    f"--sockabuse 2 --sockabuse-ops {OPERATIONS}",
    f"--epoll 2 --epoll-ops {OPERATIONS} --epoll-domain ipv4",
    f"--epoll 2 --epoll-ops {OPERATIONS} --epoll-domain ipv6",
)
COMMANDS = "stress.json"


def prepare(kernel: str) -> None:
    """Lay out the list of commands; the program is in the image."""
    path = paths.out("suites", COMMANDS)
    commands = [
        {"name": one, "command": f"stress-ng --verify --timeout 60 {one}", "tap": False} for one in STRESSORS
    ]
    path.write_text(json.dumps(commands))
    lay_out(kernel, path)


SUITES = (Suite("stress-ng", f"commands.py /hallway/suites/{COMMANDS}", 150),)
