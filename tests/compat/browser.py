"""Firefox."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

from .stage import MIB, Payload, Program, Stage, grouped
from .web import NGINX_PORT, PUT, nginx

# Firefox takes minutes to begin where a CPU is emulated: one of it does all.
TURNS, SIZE = 5, 8 * MIB
PATIENCE = 600
_names = (f"page-{n}" for n in itertools.count())


@contextlib.contextmanager
def _site(stage: Stage) -> Iterator[None]:
    page = f"cp /hallway/compat/page.html /data/ && head -c {SIZE} /data/large > /data/browsed"
    with nginx(PUT, page)(stage):
        yield


def _firefox(stage: Stage) -> Payload:
    """A page fetches a file and puts it back, several times; the server has the same files then."""
    name = next(_names)
    put = [f"/data/incoming/{name}-{turn}" for turn in range(TURNS)]
    url = f"http://{stage.server.ip4}:{NGINX_PORT}/page.html#{name},{TURNS}"
    with grouped(stage.client, "firefox") as joined:
        words = "--headless --new-instance --no-remote --profile $profile"
        profile = "profile=$(mktemp -d); cp /hallway/compat/user.js $profile"
        stage.client.spawn(f"{joined}; {profile}; exec firefox-esr {words} {url} > /tmp/firefox.log 2>&1")
        stage.server.run(f"until test -e {put[-1]}; do sleep 0.2; done", timeout=PATIENCE)
    for path in put:
        stage.server.run(f"cmp {path} /data/browsed && rm {path}")
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
