# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Rows of the demo's table between one VM and peers outside of it, with outsourcing and tunnels on and off.

Off, all bytes pass the VM's NIC, and clients call the VM by its own address.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

from hallway_lab import isolate, outsourcing, paths, programs
from hallway_lab.outsourcing import HOST, NETNS, OUTSIDE, Stand
from hallway_lab.programs import Run
from hallway_lab.sample import Row
from hallway_lab.sh import LabError, run

from .files import FOLDER, MIB, SIZE
from .rows import GO_BYTES, SECONDS, rawstream
from .watch import Watch

PUBLISHED = 8080
FETCHES = 8
WEB = 8000
TUNNELED = 7100
TUNNELS = Path("/run/hallway-tunnels")
HOST_CID = 0x40000002
WRITES = 64 << 10
RULES = f"""
publish = ["tcp/80={HOST}:{PUBLISHED}"]

[vm.tunnels]
socket = "{TUNNELS}/vm"
"""
# Takes all of a connection by TCP, or of a guest's tunnel, and answers with its digest.
SERVER = """
import hashlib, os, socket, sys, threading
def serve(listener):
    while True:
        sock, digest = listener.accept()[0], hashlib.sha256()
        while piece := sock.recv(1 << 18):
            digest.update(piece)
        sock.sendall(digest.hexdigest().encode())
        sock.close()
port, path = int(sys.argv[1]), sys.argv[2]
unix = socket.socket(socket.AF_UNIX)
unix.bind(path)
os.chmod(path, 0o777)
unix.listen()
threading.Thread(target=serve, args=(unix,), daemon=True).start()
serve(socket.create_server(("", port)))
"""


class Outside:
    """The programs in the VM, on the host and outside; `watch` watches the next run."""

    stand: Stand
    watch: Watch

    @contextlib.contextmanager
    def standing(self, kernel: str) -> Iterator[Stand]:
        """Boot the VM; it and the servers outside run until the end of the block."""
        TUNNELS.mkdir(exist_ok=True)
        with outsourcing.standing(kernel, RULES) as self.stand:
            yield self.stand

    def rows(self) -> list[Row]:
        """All rows, in the table's order."""
        size = f"{SIZE // MIB} MiB"
        return [
            Row(
                "outsource-nginx-host",
                f"nginx → curl on the host, {FETCHES} times {size}",
                "MB/s",
                self._fetch(None),
            ),
            Row(
                "outsource-nginx-outside",
                f"nginx → curl outside, {FETCHES} times {size}",
                "MB/s",
                self._fetch(NETNS),
            ),
            Row("outsource-curl", f"curl ← outside, {size}", "MB/s", self._curl),
            Row("outsource-go", f"static Go program ↔ outside, {GO_BYTES // MIB} MiB", "MB/s", self._go),
            *(
                Row(
                    f"outsource-iperf3-{size}",
                    f"iperf3 → outside, writes of {text}",
                    "MB/s",
                    self._iperf3(size),
                )
                for size, text in (("64", "64 B"), ("1K", "1 KB"), ("16K", "16 KB"), ("64K", "64 KB"))
            ),
            Row("tunnel-host", f"socat → host, {size}, 64 KB a write", "MB/s", self._socat),
        ]

    # Servers and files, made when a row first needs them.

    @cached_property
    def _nginx(self) -> str:
        """Return the digest of the file that nginx serves."""
        vm = self.stand.client
        vm.run(f"mount -t tmpfs tmpfs {FOLDER}; head -c {SIZE} /dev/urandom > {FOLDER}/large", timeout=120)
        programs.serve(vm, "nginx -g 'daemon off;'", 80)
        return vm.run(f"sha256sum {FOLDER}/large", timeout=120).out.split()[0]

    @cached_property
    def _web(self) -> str:
        """Return the digest of the file that a server outside has."""
        data = hashlib.shake_128(b"hallway").digest(SIZE)
        folder = self.stand.folder / "web"
        folder.mkdir()
        (folder / "large").write_bytes(data)
        self.stand.serve(["python3", "-m", "http.server", "-d", str(folder), str(WEB)], WEB)
        return hashlib.sha256(data).hexdigest()

    @cached_property
    def _go_server(self) -> bool:
        self.stand.serve([str(paths.out("demo", "rawstream")), "-listen", ":7000"], 7000)
        return True

    @cached_property
    def _iperf3_server(self) -> bool:
        self.stand.serve(["iperf3", "-s"], 5201)
        return True

    @cached_property
    def _sink(self) -> str:
        """Return the digest of the file that goes to the host."""
        vm, path = self.stand.client, f"{TUNNELS}/vm_{TUNNELED}"
        self.stand.serve(["python3", "-c", SERVER, str(TUNNELED), path], TUNNELED, None)
        vm.run("modprobe vsock && insmod /hallway/hallway_vsock.ko")
        vm.run(f"head -c {SIZE} /dev/urandom >/tmp/sent", timeout=120)
        return vm.run("sha256sum /tmp/sent", timeout=120).out.split()[0]

    # Rows.

    def _socat(self) -> Run:
        digest, vm = self._sink, self.stand.client
        place = f"VSOCK-CONNECT:{HOST_CID}:{TUNNELED}" if self.stand.on else f"TCP:{HOST}:{TUNNELED}"
        timed = f"begin=$(date +%s%N); socat -b {WRITES} -t 60 - {place} </tmp/sent; end=$(date +%s%N)"
        with self.watch.around():
            arrived, time = vm.run(f"{timed}; echo ' ' $((end - begin))", timeout=120).out.split()
        _check(arrived, digest)
        return Run(SIZE / 1e6 / (int(time) / 1e9), up=SIZE)

    def _fetch(self, netns: str | None) -> Callable[[], Run]:
        """Return a run of one curl, with a connection for each fetch: a single fetch takes only 50 ms."""

        def fetch() -> Run:
            digest = self._nginx
            place = f"{HOST}:{PUBLISHED}" if self.stand.on else self.stand.client.ip4
            words = ["curl", "-s", "-S", "-f", "-H", "Connection: close", "-w", "%{time_total}\n"]
            # In memory: the speed of the host's disk must not count.
            with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
                words += ["-o", f"{folder}/#1", f"http://{place}/large?[1-{FETCHES}]"]
                with self.watch.around():
                    times = run([*isolate.on_host(netns), *words], timeout=120).split()
                for number in range(FETCHES):
                    _check(hashlib.sha256(Path(folder, str(number + 1)).read_bytes()).hexdigest(), digest)
            return Run(FETCHES * SIZE / 1e6 / sum(map(float, times)), up=FETCHES * SIZE)

        return fetch

    def _curl(self) -> Run:
        digest, vm = self._web, self.stand.client
        command = f"curl -s -S -f -o /tmp/fetched -w '%{{speed_download}}' http://{OUTSIDE}:{WEB}/large"
        with self.watch.around():
            rate = vm.run(command, timeout=120).out
        _check(vm.run("sha256sum /tmp/fetched; rm /tmp/fetched", timeout=120).out.split()[0], digest)
        return Run(float(rate) / 1e6, down=SIZE)

    def _go(self) -> Run:
        assert self._go_server
        with self.watch.around() as activity:
            return rawstream(self.stand.client, OUTSIDE, activity)

    def _iperf3(self, size: str) -> Callable[[], Run]:
        def run() -> Run:
            assert self._iperf3_server
            with self.watch.around():
                return programs.iperf3(self.stand.client, OUTSIDE, size, SECONDS)

        return run


def _check(arrived: str, sent: str) -> None:
    if arrived != sent:
        raise LabError(f"SHA-256 differs: {sent} at the server, {arrived} at the client")
