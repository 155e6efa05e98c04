# SPDX-License-Identifier: Apache-2.0 OR MIT
"""CPython's own tests, from Debian's package of them, in the guests' image."""

from __future__ import annotations

from typing import Any

from .suite import Suite, lay_out

# asyncio's tests that open connections.
ASYNCIO = (
    *("base_events", "buffered_proto", "events", "sendfile", "server", "sock_lowlevel", "ssl", "sslproto"),
    *("streams", "unix_events.SelectorEventLoopUnixSockSendfileTests"),
)
# multiprocessing's: its own transport is a socketpair; managers, listeners and passed sockets are TCP.
MULTIPROCESSING = (
    *("WithProcessesTestListener", "WithProcessesTestListenerClient", "WithThreadsTestListenerClient"),
    *("WithProcessesTestConnection", "WithManagerTestMyManager", "WithProcessesTestPicklingConnections"),
    *(
        "TestWait",
        "TestTimeouts",
        "WithProcessesTestManagerRestart",
        "OtherTest",
        "WithManagerTestRemoteManager",
    ),
)


def prepare(kernel: str) -> None:
    """Lay out what runs the suites; the tests themselves are in the image."""
    lay_out(kernel)


def _suite(name: str, *modules: str, **options: Any) -> Suite:
    command = f"unit.py cpython {' '.join(f'test.{one}' for one in modules)}"
    return Suite(f"CPython {name}", command, **options)


SUITES = (
    _suite("socket", "test_socket", outsourced=True),
    _suite("selectors", "test_selectors", "test_select", "test_poll", "test_epoll"),
    _suite("socketserver", "test_socketserver"),
    _suite("httplib", "test_httplib", outsourced=True),
    _suite("httpservers", "test_httpservers"),
    _suite("urllib", "test_urllib2_localnet", outsourced=True),
    _suite("ftplib", "test_ftplib"),
    _suite("poplib", "test_poplib"),
    _suite("smtplib", "test_smtplib", "test_smtpd"),
    _suite("imaplib", "test_imaplib"),
    _suite("telnetlib", "test_telnetlib", rings=False),  # it sends nothing over what it opens
    _suite("asyncore", "test_asyncore", "test_asynchat"),
    _suite("xmlrpc", "test_xmlrpc", "test_docxmlrpc"),
    _suite("ssl", "test_ssl", limit=120, outsourced=True),
    _suite("logging", "test_logging.SocketHandlerTest", "test_logging.ConfigDictTest"),
    _suite(
        "asyncio",
        *(f"test_asyncio.test_{one}" for one in ASYNCIO),
        limit=120,
        outsourced=True,
    ),
    _suite(
        "multiprocessing",
        *(f"test_multiprocessing_fork.{one}" for one in MULTIPROCESSING),
        limit=120,
    ),
)

# For every run of the tests: a minute of it.
QUICK = _suite(
    "socket, TCP alone",
    *(
        f"test_socket.{one}"
        for one in (
            *("BasicTCPTest", "BufferIOTest", "SendmsgTCPTest", "RecvmsgTCPTest", "FileObjectClassTestCase"),
            *("NonBlockingTCPTests", "TCPTimeoutTest"),
        )
    ),
)
