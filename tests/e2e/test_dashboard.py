# SPDX-License-Identifier: Apache-2.0 OR MIT
"""packaging/grafana.json: each panel's query has an answer of Prometheus.

Debian has no Grafana, so nothing here draws the panels.
"""

from __future__ import annotations

import json

import pytest
from hallway_lab.paths import REPO
from hallway_tests.cpus import Cpus
from hallway_tests.dashboard import scraped
from hallway_tests.guests import Stream
from hallway_tests.streams import CALM
from hallway_tests.suite import wait_for

pytestmark = [
    *(pytest.mark.xdist_group("e2e-cpus"), pytest.mark.slow, pytest.mark.kernel("6.1")),
    pytest.mark.needs("hallway_tests.dashboard:prepare"),
]

DASHBOARD = REPO / "packaging/grafana.json"
INTERVAL = "15s"  # what Grafana makes of $__rate_interval where Prometheus scrapes often


def test_queries(cpus: Cpus) -> None:
    """While a stream is on rings, all queries find something, and those of bytes name both VMs."""
    targets = [one for panel in json.loads(DASHBOARD.read_text())["panels"] for one in panel["targets"]]
    queries = [one["expr"].replace("$__rate_interval", INTERVAL) for one in targets]
    assert queries
    a, b = cpus.both
    with cpus.loaded(), scraped(cpus.site.daemon) as ask:
        stream = Stream(b, a, both=CALM)
        for query in queries:
            wait_for(lambda: ask(query), f"an answer to {query}", 60 * cpus.slow)  # noqa: B023
        rates = [query for query in queries if "_bytes_total" in query and "_member_" in query]
        assert len(rates) == 2

        def moving(query: str) -> set[str]:
            return {one["metric"]["vm"] for one in ask(query) if float(one["value"][1]) > 0}

        for query in rates:
            names = {vm.name for vm in cpus.both}
            wait_for(lambda: names <= moving(query), f"both VMs in {query}", 60 * cpus.slow)  # noqa: B023
        (qemus,) = ask("sum(hallway_qemus)")
        assert float(qemus["value"][1]) == len(cpus.both)
        stream.stop()
        stream.finish(60 * cpus.slow)
