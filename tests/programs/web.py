# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Web servers, Apache httpd and nginx, and their clients, wget and curl."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from .program import LARGE, MIB, SMALL, Payload, Program, Vms

APACHE = """
ServerRoot /etc/apache2
LoadModule mpm_{mpm}_module /usr/lib/apache2/modules/mod_mpm_{mpm}.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
ServerName {name}
User www-data
Group www-data
Listen {port}
PidFile /run/apache-lab.pid
ErrorLog /run/apache-lab.log
DocumentRoot /data
EnableSendfile {sendfile}
"""
PARALLEL = 8

NGINX = """
user www-data;
worker_processes 1;
pid /run/nginx-lab.pid;
error_log stderr;
events {{ }}
http {{
  access_log off;
  client_max_body_size 100m;
  client_body_temp_path /data/nginx;
  proxy_temp_path /data/nginx-proxy;
  server {{
    listen {port}{tls};
    listen [::]:{port}{tls};
    root /data;
    {directives}
  }}
}}
"""
NGINX_PORT, APACHE_PORT = PORTS = (8000, 8080)
ORIGIN_PORT = 8001  # of the proxy's origin, on the client


def _fetch(vms: Vms, url: str, words: str = "") -> None:
    vms.call(f"curl -sSf {words} -o /tmp/got {url}")
    vms.fetched("/tmp/got")


# -- nginx ---------------------------------------------------------------------


def nginx(
    directives: str, before: str = "true", tls: str = ""
) -> Callable[[Vms], AbstractContextManager[None]]:
    """Return a function that runs nginx on the server, with these directives in its `server` block."""

    @contextlib.contextmanager
    def serve(vms: Vms) -> Iterator[None]:
        vms.server.run(before)
        vms.server.put(NGINX.format(port=NGINX_PORT, directives=directives, tls=tls), "/etc/nginx/lab.conf")
        with vms.serving("nginx -c /etc/nginx/lab.conf -g 'daemon off;'", NGINX_PORT):
            yield

    return serve


def _url(vms: Vms, path: str = "/large") -> str:
    return f"http://{vms.server_address}:{NGINX_PORT}{path}"


def _wget(vms: Vms) -> Payload:
    vms.call(f"wget -q -O /tmp/got {_url(vms)}")
    vms.fetched("/tmp/got")
    return Payload(down=LARGE)


def _curl(vms: Vms) -> Payload:
    _fetch(vms, f"http://{vms.server.name}:{NGINX_PORT}/large")
    vms.call(f"curl -sSf -T /data/large {_url(vms, '/incoming/got')}")
    vms.stored("/data/incoming/got")
    return Payload(LARGE, LARGE)


def _fetched(vms: Vms) -> Payload:
    _fetch(vms, _url(vms))
    return Payload(down=LARGE)


def _http2(vms: Vms) -> Payload:
    """Several streams in one connection, both ways."""
    base = f"https://{vms.server_address}:{NGINX_PORT}"
    each = " ".join(f"-o /tmp/got.{n} {base}/large" for n in range(3))
    said = vms.call(f"curl -sSf -k --http2 -Z --parallel-max 3 -w '%{{http_version}}\\n' {each}")
    if said.split() != ["2"] * 3:
        raise AssertionError(f"curl says that it spoke HTTP {said.split()}, not 2")
    for n in range(3):
        vms.fetched(f"/tmp/got.{n}")
    vms.call(f"curl -sSf -k --http2 -T /data/large {base}/incoming/got")
    vms.stored("/data/incoming/got")
    return Payload(LARGE, 3 * LARGE)


@contextlib.contextmanager
def _proxied(vms: Vms) -> Iterator[None]:
    """The proxy's origin is on the client: both of its connections leave the VM."""
    origin = f"python3 -m http.server -d /data {ORIGIN_PORT}"
    to = f"location / {{ proxy_pass http://{vms.client_address}:{ORIGIN_PORT}; proxy_http_version 1.1; }}"
    with vms.serving(origin, ORIGIN_PORT, vms.client), nginx(to)(vms):
        yield


def _proxy(vms: Vms) -> Payload:
    vms.call(f"curl -sSf -o /tmp/got {_url(vms)}")
    vms.returned("/tmp/got")
    return Payload(LARGE, LARGE)


PUT = "dav_methods PUT; create_full_put_path on; dav_access user:rw group:r all:r;"
CERTIFICATE = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 "
    "-subj /CN=vm2 -keyout /etc/nginx/lab.key -out /etc/nginx/lab.crt"
)
TLS = "ssl_certificate /etc/nginx/lab.crt; ssl_certificate_key /etc/nginx/lab.key;"
SENDFILE = "sendfile on; tcp_nopush on;"
AIO = "sendfile off; aio threads; output_buffers 2 128k;"  # Debian's nginx cannot do `aio on`


# -- Apache --------------------------------------------------------------------


def _apache(mpm: str, sendfile: bool) -> Callable[[Vms], AbstractContextManager[None]]:
    @contextlib.contextmanager
    def serve(vms: Vms) -> Iterator[None]:
        sendfiles = "On" if sendfile else "Off"
        words = APACHE.format(mpm=mpm, name=vms.server.name, port=APACHE_PORT, sendfile=sendfiles)
        vms.server.put(words, "/etc/apache2/lab.conf")
        with vms.serving("apache2 -f /etc/apache2/lab.conf -DFOREGROUND", APACHE_PORT):
            yield

    return serve


def _many(vms: Vms) -> Payload:
    """A large file, then many small ones at once."""
    base = f"http://{vms.server_address}:{APACHE_PORT}"
    _fetch(vms, f"{base}/large")
    each = " ".join(f"-o /tmp/got.{n} {base}/small" for n in range(PARALLEL))
    vms.call(f"curl -sSf -Z --parallel-immediate --parallel-max {PARALLEL} {each}")
    for n in range(PARALLEL):
        vms.fetched(f"/tmp/got.{n}", "small")
    return Payload(down=LARGE + PARALLEL * SMALL)


FILE = f"{LARGE // MIB} MiB"
BOTH = f"{FILE}, and {PARALLEL} files of {SMALL // MIB} MiB at once"
WGET = Program("wget", "nginx → wget", FILE, _wget, nginx("sendfile on;"), xway="WGET")
PROGRAMS = (
    WGET,
    Program("curl", "nginx ↔ curl", f"GET and PUT of {FILE}", _curl, nginx(PUT)),
    Program("apache-prefork", "Apache prefork → curl", BOTH, _many, _apache("prefork", False), "APACHE"),
    Program("apache-worker", "Apache worker → curl", BOTH, _many, _apache("worker", True), "APACHE"),
    Program("apache-event", "Apache event → curl", BOTH, _many, _apache("event", True), "APACHE"),
    Program("nginx-sendfile", "nginx, sendfile → curl", FILE, _fetched, nginx(SENDFILE)),
    Program("nginx-aio", "nginx, AIO by threads → curl", FILE, _fetched, nginx(AIO)),
    Program(
        "nginx-http2",
        "nginx, HTTP/2 and TLS ↔ curl",
        f"three times {FILE} at once, PUT of one",
        _http2,
        nginx(f"{TLS} {PUT}", CERTIFICATE, " ssl http2"),
    ),
    Program(
        "nginx-proxy",
        "nginx as proxy → curl",
        f"{FILE} from the client's own VM",
        _proxy,
        _proxied,
    ),
)
