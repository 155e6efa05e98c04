# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Programs that use AF_VSOCK by a library of their language, laid out for guests: see `needs`."""

from __future__ import annotations

import shutil
from pathlib import Path

from hallway_lab import paths
from hallway_lab.aptbox import AptBox
from hallway_lab.programs import build_go
from hallway_lab.sh import run, step

from .guests import TESTS, share_folder
from .products import cached

HELPERS = TESTS / "helpers"
# mdlayher/vsock and gRPC, and what they need.
GO_PACKAGES = (
    *("golang-github-mdlayher-vsock-dev", "golang-github-mdlayher-socket-dev", "golang-google-grpc-dev"),
    *("golang-google-genproto-dev", "golang-google-protobuf-dev", "golang-github-golang-protobuf-1-5-dev"),
    *("golang-golang-x-net-dev", "golang-golang-x-sync-dev", "golang-golang-x-sys-dev"),
    "golang-golang-x-text-dev",
)


def prepare_go(kernel: str) -> None:
    """Build echo-go with Debian's packages of its libraries."""

    def unpack(scratch: Path) -> Path:
        AptBox("stable").unpack(scratch / "go", [*GO_PACKAGES])
        return scratch / "go"

    sources = cached("go", (GO_PACKAGES,), unpack) / "usr/share/gocode"
    target = paths.out("tests", "echo-go")
    # Debian's packages are no modules.
    build_go(HELPERS / "echo-go", target, GO111MODULE="off", GOPATH=str(sources))
    _lay_out(kernel, target)


def prepare_rust(kernel: str) -> None:
    """Build echo-rust."""
    target = paths.out("tests", "echo-rust")
    with paths.lock("echo-rust"), step("building echo-rust"):
        words = ["cargo", "build", "-q", "--release", "--locked", "--target-dir", target]
        run(words, cwd=HELPERS / "echo-rust")
    _lay_out(kernel, target / "release/echo-rust")


def _lay_out(kernel: str, program: Path) -> None:
    share_folder(kernel).mkdir(parents=True, exist_ok=True)
    shutil.copy2(program, share_folder(kernel))
