"""Firefox."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

from .stage import LARGE, MIB, Payload, Program, Stage, grouped
from .web import NGINX_PORT, PUT, nginx

_names = (f"page-{n}" for n in itertools.count())


@contextlib.contextmanager
def _site(stage: Stage) -> Iterator[None]:
    with nginx(PUT, "cp /hallway/compat/page.html /data/")(stage):
        yield


def _firefox(stage: Stage) -> Payload:
    """A page fetches a file and puts it back; the server has the same file then."""
    name = next(_names)
    put = f"/data/incoming/{name}"
    url = f"http://{stage.server.ip4}:{NGINX_PORT}/page.html#{name}"
    with grouped(stage.client, "firefox") as joined:
        words = "--headless --new-instance --no-remote --profile $(mktemp -d)"
        stage.client.spawn(f"{joined}; exec firefox-esr {words} {url} > /tmp/firefox.log 2>&1")
        stage.server.run(f"until test -e {put}; do sleep 0.2; done", timeout=280)
    stage.server.run(f"cmp {put} /data/large && rm {put}")
    return Payload(LARGE, LARGE)


PROGRAMS = (
    Program(
        "firefox",
        "nginx ↔ Firefox, headless",
        f"a page GETs {LARGE // MIB} MiB and PUTs it back",
        _firefox,
        _site,
        "FIREFOX",
    ),
)
