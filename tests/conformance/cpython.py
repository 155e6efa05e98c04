"""CPython's own tests, from Debian's package of them, in the guest's image."""

from __future__ import annotations

from .suites import Family, Suite

# Those of asyncio that open connections; the others never leave their process.
ASYNCIO = (
    *("base_events", "buffered_proto", "events", "sendfile", "server", "sock_lowlevel", "ssl", "sslproto"),
    *("streams", "unix_events.SelectorEventLoopUnixSockSendfileTests"),
)
# Those of multiprocessing that do: its own transport is a socketpair, but
# managers, listeners and passed sockets are TCP.
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


def _suite(name: str, *modules: str, limit: float = 60, rings: bool = True) -> Suite:
    command = f"unit.py cpython {' '.join(f'test.{one}' for one in modules)}"
    return Suite(f"CPython {name}", command, limit, rings=rings)


FAMILY = Family(
    "cpython",
    (
        _suite("socket", "test_socket"),
        _suite("selectors", "test_selectors", "test_select", "test_poll", "test_epoll"),
        _suite("socketserver", "test_socketserver"),
        _suite("httplib", "test_httplib"),
        _suite("httpservers", "test_httpservers"),
        _suite("urllib", "test_urllib2_localnet"),
        _suite("ftplib", "test_ftplib"),
        _suite("poplib", "test_poplib"),
        _suite("smtplib", "test_smtplib", "test_smtpd"),
        _suite("imaplib", "test_imaplib"),
        _suite("telnetlib", "test_telnetlib", rings=False),  # it sends nothing over what it opens
        _suite("asyncore", "test_asyncore", "test_asynchat"),
        _suite("xmlrpc", "test_xmlrpc", "test_docxmlrpc"),
        _suite("ssl", "test_ssl", limit=120),
        _suite("logging", "test_logging.SocketHandlerTest", "test_logging.ConfigDictTest"),
        _suite("asyncio", *(f"test_asyncio.test_{one}" for one in ASYNCIO), limit=120),
        _suite(
            "multiprocessing",
            *(f"test_multiprocessing_fork.{one}" for one in MULTIPROCESSING),
            limit=120,
        ),
    ),
)

# Enough of them for every run of the tests.
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
