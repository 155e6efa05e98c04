# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Unmodified programs over tunnels."""

from __future__ import annotations

import pytest
from hallway_lab.programs import NCAT
from hallway_tests import tunnels
from hallway_tests.guests import Delta
from hallway_tests.pair import Pair
from hallway_tests.suite import wait_for
from hallway_tests.tunnels import cid

pytestmark = [pytest.mark.xdist_group("e2e-tunnels"), pytest.mark.slow_on("6.12")]

COPIED_BYTES = 3_000_000
SOCAT_SERVER = "socat VSOCK-LISTEN:7100 SYSTEM:'cat >/tmp/got; echo done'"


def test_socat(pair: Pair) -> None:
    """socat carries a file to socat, unchanged, and an answer back."""
    pair.load()
    _copy(pair, f"socat -t 60 - VSOCK-CONNECT:{cid(pair.b)}:7100", SOCAT_SERVER, "done")


@pytest.mark.needs("hallway_tests.tunnels:prepare_ncat")
def test_ncat(pair: Pair) -> None:
    """ncat carries a file to socat, with an answer back, and to ncat."""
    pair.load()
    _copy(pair, f"{NCAT} --vsock {cid(pair.b)} 7100", SOCAT_SERVER, "done")
    _copy(
        pair,
        f"{NCAT} --vsock --send-only {cid(pair.b)} 7100",
        f"{NCAT} --vsock -l 7100 --recv-only >/tmp/got",
        "",
    )


def _copy(pair: Pair, client: str, server: str, answer: str) -> None:
    """Have programs copy a file from the first VM to the second one."""
    a, b = pair.both
    a.run(f"head -c {COPIED_BYTES} /dev/urandom >/tmp/sent")
    b.run("rm -f /tmp/got")
    with tunnels.tunnels(pair):
        delta = Delta(*pair.both)
        job = b.spawn(f"exec {server}")
        wait_for(lambda: ":7100 " in b.run("ss -Hl --vsock").out, "it listens")
        said = a.run(f"{client} </tmp/sent", timeout=120 * pair.slow)
        assert said.out.strip() == answer, said
        job.wait(60 * pair.slow)
        assert delta.of(a)["tx_bytes_tunnel"] == delta.of(b)["rx_bytes_tunnel"] == COPIED_BYTES
        tunnels.check(pair, delta)
    sums = [vm.run(f"sha256sum <{name}").out for vm, name in ((a, "/tmp/sent"), (b, "/tmp/got"))]
    assert sums[0] == sums[1]
