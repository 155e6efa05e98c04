# SPDX-License-Identifier: Apache-2.0 OR MIT
"""trio's and Twisted's tests that open connections, from their wheels."""

from __future__ import annotations

from pathlib import Path

from hallway_lab.sh import run
from hallway_lab.venv import venv
from hallway_tests.products import cached

from .suite import HERE, Suite, lay_out

PIP = "26.1"
REQUIREMENTS = HERE / "wheels.txt"
GUESTS_PYTHON = "3.11"  # Debian 12's
PLATFORMS = tuple(f"manylinux{one}_x86_64" for one in ("_2_34", "_2_28", "_2_17", "2014"))
UNPACK = (
    "{ test -d /root/wheels || tar -C /root -xf /hallway/suites/wheels.tar; } &&"
    " export PYTHONPATH=/root/wheels CI=true"  # hypothesis: no deadlines, no chance
)

TRIO = (
    *("test_socket", "test_highlevel_socket", "test_highlevel_open_tcp_listeners"),
    *("test_highlevel_open_tcp_stream", "test_highlevel_serve_listeners", "test_highlevel_ssl_helpers"),
    *("test_ssl", "test_testing"),
)
TWISTED = {
    "tcp, endpoints, protocols": (
        *("test.test_tcp", "test.test_tcp_internals", "internet.test.test_tcp"),
        *("internet.test.test_endpoints", "internet.test.test_fdset", "internet.test.test_core"),
        *("test.test_protocols", "test.test_iutils", "test.test_socks"),
    ),
    "tls": ("internet.test.test_tls", "test.test_ssl", "protocols.test.test_tls"),
    "web": ("web.test.test_webclient", "web.test.test_wsgi", "web.test.test_xmlrpc", "web.test.test_web"),
    "mail, ftp, perspective broker": ("test.test_ftp", "spread.test.test_pb", "mail.test.test_smtp"),
}


def _twisted(name: str, modules: tuple[str, ...]) -> Suite:
    words = " ".join(f"twisted.{one}" for one in modules)
    outsourced = name.startswith("tcp")
    return Suite(f"Twisted {name}", f"unit.py plain {words}", 120, setup=UNPACK, outsourced=outsourced)


def prepare(kernel: str) -> None:
    """Fetch the wheels, and lay out an archive of them, unpacked."""
    lay_out(kernel, cached("wheels", (REQUIREMENTS, PLATFORMS, PIP), _make))


def _make(scratch: Path) -> Path:
    pip = venv("wheels", f"pip=={PIP}") / "bin/pip"
    words = [pip, "-q", "--disable-pip-version-check", "install", "--no-deps", "--only-binary=:all:"]
    words += ["--python-version", GUESTS_PYTHON, "--implementation", "cp"]
    words += [f"--platform={one}" for one in PLATFORMS]
    run([*words, "--target", scratch / "wheels", "-r", REQUIREMENTS])
    run(["tar", "-C", scratch, "-cf", scratch / "wheels.tar", "wheels"])
    return scratch / "wheels.tar"


SUITES = (
    Suite(
        "trio",
        f"pytests.py {' '.join(f'trio._tests.{one}' for one in TRIO)}",
        120,
        setup=UNPACK,
    ),
    *(_twisted(name, modules) for name, modules in TWISTED.items()),
)
