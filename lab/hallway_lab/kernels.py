# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Stock Debian kernels with their headers, unpacked into the cache.

The host never runs or installs them: their packages are found through the
meta-packages (so no ABI number is written here), unpacked, and the absolute
paths in the headers' makefiles are pointed at where they were unpacked.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from . import bzimage, debugkernel, paths, umlkernel
from .aptbox import AptBox
from .kernel import Kernel
from .sh import LabError, run, step

# name: (apt box, suite or None for the newest, what its version starts with)
STOCK = {
    "6.1": ("stable", None, "6.1."),
    "6.12": ("backports", "bookworm-backports", "6.12."),
    "unstable-headers": ("unstable", "sid", ""),
}
DEBUG = tuple(debugkernel.RECIPES)
NAMES = ("6.1", "6.12", *DEBUG, "unstable-headers", "uml")
IN_VMS = ("6.1", "6.12", *DEBUG)  # those that QEMU boots


def kernel(name: str, *, refresh: bool = False) -> Kernel:
    """Return the kernel called `name`, fetching or building it if need be.

    A kernel once in the cache is used as it is; `refresh` looks for a newer
    one in the archive.
    """
    if name in DEBUG:
        return debugkernel.kernel(name, refresh=refresh)
    if name == "uml":
        return umlkernel.kernel(refresh=refresh)
    if name not in STOCK:
        raise LabError(f"unknown kernel {name!r}: known are {', '.join(NAMES)}")
    with paths.lock(f"kernel-{name}"):
        record = paths.cache("kernels", f"{name}-{paths.key(KEEP)}.json")
        if refresh or not record.exists():
            record.write_text(json.dumps(_fetch(name)))
        return _load(name, json.loads(record.read_text()))


def _load(name: str, record: dict[str, str]) -> Kernel:
    root, version = Path(record["root"]), record["version"]
    vmlinuz = root / "boot" / f"vmlinuz-{version}"
    modules = root / "lib/modules" / version
    build = root / "usr/src" / f"linux-headers-{version}"
    # newer headers name a compiler that this Debian lacks
    compiler = (f"CC={paths.LAB / 'cc-older'}",) if name == "unstable-headers" else ()
    if not build.is_dir():
        raise LabError(f"the cached kernel {name} is damaged: remove {root} and its .json")
    return Kernel(
        name=name,
        version=version,
        vmlinuz=vmlinuz if vmlinuz.exists() else None,
        modules_dir=modules if vmlinuz.exists() else None,
        build_dir=build,
        build_args=("PAHOLE=true", *compiler),
        unpacked=bzimage.unpack(vmlinuz) if vmlinuz.exists() else None,
    )


def _fetch(name: str) -> dict[str, str]:
    box_name, suite, prefix = STOCK[name]
    box = AptBox(box_name)
    meta = box.candidate("linux-headers-amd64", suite)
    if not meta.startswith(prefix):
        raise LabError(f"Debian's kernel is now {meta}, the lab expected {prefix}x for {name!r}")
    wanted = _header_packages(box, meta)
    if name != "unstable-headers":
        image_meta = box.candidate("linux-image-amd64", suite)
        wanted += box.depends("linux-image-amd64", image_meta, r"linux-image-\d.*")[:1]
    version = re.sub("^linux-headers-", "", wanted[0])
    root = paths.cache("kernels", f"{version}_{meta.replace('~', '-')}_{paths.key(KEEP)}")
    if not (root / ".complete").exists():
        with step(f"fetching kernel {version}"):
            shutil.rmtree(root, ignore_errors=True)
            box.unpack(root, wanted)
            _mend_headers(root, version)
            if name != "unstable-headers":
                _prepare_modules(root, version)
            (root / ".complete").touch()
    return {"root": str(root), "version": version}


def _header_packages(box: AptBox, meta_version: str) -> list[str]:
    headers = box.depends("linux-headers-amd64", meta_version, r"linux-headers-\d.*-amd64")[0]
    version = box.candidate(headers)
    more = box.depends(headers, version, r"linux-headers-.*-common|linux-kbuild-.*")
    return [headers, *more]


def _mend_headers(root: Path, version: str) -> None:
    """Point the absolute paths in the unpacked makefiles below `root`."""
    build = root / "usr/src" / f"linux-headers-{version}"
    for makefile in [build / "Makefile", build / ".kernelvariables", build / "include/config/auto.conf"]:
        if makefile.exists() and not makefile.is_symlink():
            text = makefile.read_text()
            mended = re.sub(r"(?<![\w.)])/usr/(src|lib)/linux-", rf"{root}/usr/\1/linux-", text)
            makefile.write_text(mended)
    for link in [*build.glob("*"), *(root / "usr/src").glob("linux-headers-*-common/*")]:
        if link.is_symlink() and str(link.readlink()).startswith("/usr/"):
            target = str(link.readlink())
            link.unlink()
            link.symlink_to(f"{root}{target}")


# What a network and storage lab needs; a stock tree has thousands of others.
KEEP = (
    r"kernel/(arch|block|crypto|fs|lib|mm|kernel|net|security)/"
    r"|kernel/drivers/(block|char|virtio|vhost|uio|md|nvme|scsi|target|pps|ptp|xen|crypto/virtio)/"
    r"|kernel/drivers/infiniband/core/"  # smc
    r"|kernel/drivers/net/([^/]+$|bonding/|team/|wireguard/|vxlan/|ipvlan/|macvlan|phy/|xen)"
)


def _prepare_modules(root: Path, version: str) -> None:
    """Thin out the module tree and unpack compressed modules.

    A guest under emulation takes long to unpack xz; the host does it once.
    """
    tree = root / "lib/modules" / version
    packed: list[Path] = []
    for path in tree.rglob("*.ko*"):
        if not re.match(KEEP, str(path.relative_to(tree))):
            path.unlink()
        elif path.suffix == ".xz":
            packed.append(path)
    for begin in range(0, len(packed), 200):
        run(["xz", "-d", "-q", *packed[begin : begin + 200]])
    run(["depmod", "-b", root, version])


def module_order(target: Kernel, names: list[str]) -> list[Path]:
    """Return module files for `names` and what they depend on, in load order.

    Names that the kernel has built in, or lacks, are left out.
    """
    assert target.modules_dir is not None
    needs: dict[str, list[str]] = {}
    files: dict[str, str] = {}
    for line in (target.modules_dir / "modules.dep").read_text().splitlines():
        path, _, rest = line.partition(":")
        name = Path(path).name.split(".")[0].replace("-", "_")
        files[name] = path
        needs[path] = rest.split()
    order: list[str] = []
    for name in names:
        path = files.get(name.replace("-", "_"))
        if path:
            # modules.dep lists the nearest dependency first, the deepest last
            order += [p for p in [*reversed(needs[path]), path] if p not in order]
    return [target.modules_dir / path for path in order]
