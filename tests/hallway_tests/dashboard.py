# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Prometheus, which scrapes hallwayd's metrics by a proxy before the socket of `hallway metrics`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hallway_lab import paths, provision
from hallway_lab.aptbox import AptBox
from hallway_lab.sh import step
from hallway_lab.topology import Daemon

from .suite import wait_for

PROXY, PORT = 9469, 9468
Ask = Callable[[str], list[dict[str, Any]]]


def prepare(_kernel: str) -> None:
    """Fetch Prometheus, which is not installed: it would start by itself."""
    provision.need("socat")
    if not _prometheus().exists():
        with step("fetching Prometheus"):
            AptBox("stable").unpack(_prometheus().parents[2], ["prometheus"])


def _prometheus() -> Path:
    return paths.cache("prometheus") / "usr/bin/prometheus"


@contextlib.contextmanager
def scraped(daemon: Daemon) -> Iterator[Ask]:
    """Have hallwayd's metrics scraped each second; yield what asks for the answer to a query, now."""
    folder = Path(os.environ["TMPDIR"]) / "prometheus"
    folder.mkdir()
    socket = folder / "metrics.sock"
    job = {"job_name": "hallway", "static_configs": [{"targets": [f"127.0.0.1:{PROXY}"]}]}
    config = folder / "prometheus.yml"  # JSON is YAML
    config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}))
    metrics = [daemon.binaries / "hallway", "metrics", "--run-dir", daemon.run_dir, "--listen", socket]
    proxy = ["socat", f"TCP-LISTEN:{PROXY},bind=127.0.0.1,reuseaddr,fork", f"UNIX-CONNECT:{socket}"]
    prometheus = [
        *(_prometheus(), f"--config.file={config}", f"--storage.tsdb.path={folder}/data"),
        *(f"--web.listen-address=127.0.0.1:{PORT}", "--log.level=warn"),
    ]

    def ask(query: str) -> list[dict[str, Any]]:
        words = urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/api/v1/query?{words}", timeout=10) as answer:
            return json.load(answer)["data"]["result"]

    def is_scraped() -> bool:
        with contextlib.suppress(OSError):
            return any(float(one["value"][1]) for one in ask("up"))
        return False

    with contextlib.ExitStack() as stack:
        for words in (metrics, proxy, prometheus):
            process = stack.enter_context(subprocess.Popen([str(word) for word in words]))
            stack.callback(process.kill)
        wait_for(is_scraped, "Prometheus scrapes the metrics", 120)
        yield ask
