# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Firefox."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

from .program import MIB, Payload, Program, Vms, grouped
from .web import NGINX_PORT, PUT, nginx

# Firefox takes minutes to start on an emulated CPU: one start serves all turns.
TURNS, SIZE = 5, 8 * MIB
PATIENCE = 600
_names = (f"page-{n}" for n in itertools.count())


@contextlib.contextmanager
def _site(vms: Vms) -> Iterator[None]:
    page = f"cp /hallway/programs/page.html /data/ && head -c {SIZE} /data/large > /data/browsed"
    with nginx(PUT, page)(vms):
        yield


def _firefox(vms: Vms) -> Payload:
    """A page fetches a file and puts it back, several times; the server then has as many copies."""
    name = next(_names)
    put = [f"/data/incoming/{name}-{turn}" for turn in range(TURNS)]
    url = f"http://{vms.server.ip4}:{NGINX_PORT}/page.html#{name},{TURNS}"
    with grouped(vms.client, "firefox") as joined:
        words = "--headless --new-instance --no-remote --profile $profile"
        profile = "profile=$(mktemp -d); cp /hallway/programs/user.js $profile"
        vms.client.spawn(f"{joined}; {profile}; exec firefox-esr {words} {url} > /tmp/firefox.log 2>&1")
        vms.server.run(f"until test -e {put[-1]}; do sleep 0.2; done", timeout=PATIENCE)
    for path in put:
        vms.server.run(f"cmp {path} /data/browsed && rm {path}")
    return Payload(TURNS * SIZE, TURNS * SIZE)


PROGRAMS = (
    Program(
        "firefox",
        "nginx ↔ Firefox, headless",
        f"a page GETs {SIZE // MIB} MiB and PUTs them back, {TURNS} times",
        _firefox,
        _site,
        "FIREFOX",
    ),
)
