# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`./lab/run`: the lab from the command line.

Each subcommand is one step of what demo and tests do, so that a person can
take any of them alone.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import accel, image, isolate, kernels, modbuild, paths, prepare, provision, summary, topology
from .leaks import leaks
from .sh import LabError, guarded
from .vm import VM


def main(words: list[str] | None = None) -> int:
    """Run one subcommand; return the exit code."""
    options = _parser().parse_args(words)
    return guarded("lab", lambda: _run(options))


def _run(options: argparse.Namespace) -> int | None:
    if options.action is _setup:  # installs packages, which must not die half-way
        isolate.end_on_signals()
    else:
        isolate.enter()
    return options.action(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lab/run", description="Hallway's lab: kernels, images, VMs.")
    sub = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, action: object, text: str) -> argparse.ArgumentParser:
        one = sub.add_parser(name, help=text, description=text)
        one.set_defaults(action=action)
        return one

    add("setup", _setup, "install missing distribution packages")
    one = add("kernel", _kernel, "fetch (or build) a kernel and print where it is")
    one.add_argument("name", choices=kernels.NAMES)
    one.add_argument("--refresh", action="store_true", help="look for a newer one in the archive")
    one = add("build", _build, "build the guest module for a kernel")
    one.add_argument("name", choices=kernels.NAMES)
    one.add_argument("make_args", nargs="*", help="more words for make, such as W=1")
    add("image", _image, "build the guest's root image")
    add("accel", _accel, "say which accelerator guests run on")
    one = add("boot", _boot, "boot one VM, run a command in it, print what it says")
    one.add_argument("--kernel", default="6.1", choices=kernels.IN_VMS)
    one.add_argument("--machine", choices=["pc", "q35"], help="default: what suits the kernel")
    one.add_argument("--share", type=Path, help="folder that the guest sees at /hallway")
    one.add_argument("--timeout", type=float, default=60, help="seconds the command may take")
    one.add_argument("command", nargs="?", default="uname -a; uptime")
    one = add("results", _results, "write docs/results.md from the records in out/results")
    one.add_argument("revision", nargs="?", default="", help="of the module [default: that of the sources]")
    one = add("lab", _lab, "two VMs with Hallway on, and a shell in each")
    one.add_argument("--kernel", default="6.1", choices=kernels.IN_VMS)
    one.add_argument("--no-module", action="store_true", help="do not load the module")
    return parser


def _setup(_options: argparse.Namespace) -> None:
    provision.setup()


def _kernel(options: argparse.Namespace) -> None:
    found = kernels.kernel(options.name, refresh=options.refresh)
    for field in ("version", "vmlinuz", "modules_dir", "build_dir"):
        print(f"{field}: {getattr(found, field)}")


def _build(options: argparse.Namespace) -> None:
    print(modbuild.build(options.name, *options.make_args))
    for line in modbuild.warnings(options.name):
        print(line, file=sys.stderr)


def _image(_options: argparse.Namespace) -> None:
    print(image.root_image())


def _accel(_options: argparse.Namespace) -> None:
    print(accel.name())


def _results(options: argparse.Namespace) -> None:
    summary.write(options.revision)


def _lab(options: argparse.Namespace) -> None:
    if not sys.stdin.isatty():
        raise LabError("lab needs a terminal: it hands you shells")
    kernel = options.kernel
    prepare.run_steps([*prepare.guest_steps(kernel), prepare.module_step(kernel), prepare.host_step()])
    topology.lay_share(options.kernel)
    isolate.cut_off()
    with topology.pair(options.kernel, load=not options.no_module) as site:
        topology.shells(site)
        site.judge()


def _boot(options: argparse.Namespace) -> int:
    prepare.run_steps(prepare.guest_steps(options.kernel))
    isolate.cut_off()
    words = {"kernel": options.kernel, "machine": options.machine, "share": options.share}
    with VM(kmemleak=True, **words) as vm:
        result = vm.run(options.command, timeout=options.timeout, check=False)
        print(result.out, end="")
        print(result.err, end="", file=sys.stderr)
        lost = leaks(vm) if options.kernel in kernels.DEBUG else ""
        health = vm.verdict()
    if not health.ok:
        print(f"lab: the guest's kernel complained ({paths.out('vm', 'vm1.log')}): {health}", file=sys.stderr)
        return 1
    if lost:
        print(f"lab: the guest's kernel leaked memory:\n{lost}", file=sys.stderr)
        return 1
    return result.code
