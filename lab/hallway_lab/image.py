# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The guests' root disk and their initramfs.

A Debian 12 root filesystem serves every kernel: it is made once, by mmdebstrap
and `mke2fs -d` (nothing is mounted), and every VM writes to a throw-away
snapshot of it. There is one of each kind in `KINDS`. What depends on the kernel is a second small
disk with its modules. What changes often, the init script, travels in the
initramfs, so that editing it rebuilds nothing big.
"""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

from . import kernels, paths
from .aptbox import AptBox, source_lines
from .kernel import Kernel
from .sh import LabError, run, say, step

# What the lab itself needs in a guest.
FEW = (
    *("mount", "procps", "kmod", "iproute2", "qemu-guest-agent", "openssh-server", "openssh-client"),
    "python3-minimal",
)
PACKAGES = (
    *(*FEW, "python3", "iputils-ping", "ethtool", "busybox-static", "strace"),
    *("iperf3", "sockperf", "nginx-light", "wget", "curl", "redis-server", "redis-tools"),
    *("socat", "netcat-openbsd", "nbd-client", "nbd-server", "nfs-kernel-server", "nfs-common"),
    *("open-iscsi", "tgt", "diod"),
)
# Modules that every guest loads; the first ones are needed to find the root.
BOOT_MODULES = (
    *("virtio_pci", "virtio_blk", "crc32c_generic", "ext4"),
    *("virtio_rng", "virtio_net", "virtio_console", "9pnet_virtio", "9p"),
)
# The same of a domain of Xen.
DOMAIN_MODULES = ("xen_blkfront", "crc32c_generic", "ext4", "xen_netfront")


# The packages of the programs in tests/programs, but for those in all images.
PROGRAMS = (
    *("rsync", "openssl", "vsftpd", "inetutils-telnet", "inetutils-telnetd", "openbsd-inetd"),
    *("apache2", "mariadb-server", "mariadb-client", "postgresql", "samba", "smbclient", "cifs-utils"),
    *("openjdk-17-jdk-headless", "nodejs", "firefox-esr", "bpftrace"),
    *("libhiredis0.14", "libmemcached11", "libmemcachedutil2", "libpcre2-posix3"),  # for proftpd
)

LIBVIRT = (
    *("systemd-sysv", "dbus", "udev", "polkitd", "apparmor", "libvirt-daemon-system", "qemu-system-x86"),
    *("virtinst", "qemu-utils", "ansible-core", "python3-apt"),
)
# A guest as clouds have them. DKMS wants what builds a module; its headers come from outside.
CLOUD = ("systemd-sysv", "dbus", "udev", "cloud-init", "curl", "dkms", "gcc", "make", "libelf1", "openssl")


@dataclass(frozen=True)
class Kind:
    """What a root disk holds besides what all of them do, and its size.

    Packages `beside` conflict with others: each is but unpacked, to /opt/NAME.
    `common`: what all others have, too. An image with systemd has few of these: most
    would start services.
    """

    packages: tuple[str, ...]
    size: str
    beside: tuple[str, ...] = ()
    common: tuple[str, ...] = PACKAGES


KINDS = {
    "basic": Kind((), "2G"),
    "suites": Kind(("libpython3.11-testsuite", "stress-ng", "iptables", "nftables"), "3G"),
    "programs": Kind(PROGRAMS, "6G", beside=("proftpd-core",)),
    "xen": Kind(("xen-system-amd64",), "2G"),  # of dom0
    "libvirt": Kind(LIBVIRT, "3G", common=FEW),  # of a host of VMs: see virthost.py
    "cloud": Kind(CLOUD, "2G", common=FEW),
}
EXCLUDE = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")


def ssh_key() -> Path:
    """Return the private key that opens every guest's root account."""
    with paths.lock("ssh-key"):
        private = paths.cache("ssh", "id_ed25519")
        if not private.exists():
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", private])
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", private.with_name("host")])
        return private


def root_image(kind: str = "basic") -> Path:
    """Return the root disk of a kind (ext4, without partitions), building it if need be."""
    private, what = ssh_key(), KINDS[kind]
    packages = (*what.common, *what.packages)
    made_of = (packages, source_lines("stable"), EXCLUDE, what.size, private, inspect.getsource(_customise))
    with paths.lock(f"image-{kind}"):
        image = paths.cache("images", f"root-{kind}-{paths.key(*made_of, *what.beside)}.ext4")
        if not image.exists():
            with step(f"building the guests' root image ({kind}: {len(packages)} packages and theirs)"):
                _build_root(image, packages, what)
            for old in image.parent.glob(f"root-{kind}-*.ext4"):
                if old != image:
                    old.unlink()
        return image


def _build_root(image: Path, packages: tuple[str, ...], kind: Kind) -> None:
    with paths.workshop(image) as scratch:
        tree = scratch / "tree"
        # What it mounts in the tree must not be there when an interrupted run removes it.
        words: list[str | Path] = ["unshare", "--mount", "mmdebstrap", "--mode=root", "--variant=apt"]
        words += [f"--dpkgopt=path-exclude={pattern}" for pattern in EXCLUDE]
        words += ["--dpkgopt=force-unsafe-io", "--aptopt=APT::Install-Recommends false"]
        words += [f"--include={','.join(packages)}", "bookworm", tree, "-"]
        with _growth(tree):
            run(words, text="\n".join(source_lines("stable")) + "\n")
        for name in kind.beside:
            AptBox("stable").unpack(tree / "opt" / name, [name])
        shutil.rmtree(tree / "root/.ssh", ignore_errors=True)  # some package makes one
        _customise(tree)
        pack(tree, image, kind.size)


@contextmanager
def _growth(tree: Path) -> Iterator[None]:
    """Tell how much there is in a folder, now and then."""
    done = Event()

    def tell() -> None:
        while not done.wait(15):
            said = run(["du", "-sm", tree], check=False)  # complains of files that come and go
            say(f"  {said.splitlines()[-1].split()[0]} MB so far")

    teller = Thread(target=tell)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def _customise(tree: Path) -> None:
    private = ssh_key()
    ssh = tree / "root/.ssh"
    ssh.mkdir(mode=0o700)
    (ssh / "authorized_keys").write_text(private.with_suffix(".pub").read_text())
    (ssh / "config").write_text(
        "Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
    )
    for key, where in (
        (private, ssh / "id_ed25519"),
        (private.with_name("host"), tree / "etc/ssh/ssh_host_ed25519_key"),
    ):
        shutil.copy(key, where)
        where.chmod(0o600)
    shutil.copy(private.with_name("host.pub"), tree / "etc/ssh/ssh_host_ed25519_key.pub")
    for other in ("rsa", "ecdsa"):
        for path in (tree / "etc/ssh").glob(f"ssh_host_{other}_key*"):
            path.unlink()
    (tree / "etc/ssh/sshd_config.d/lab.conf").write_text(
        "PermitRootLogin prohibit-password\nUseDNS no\nUsePAM no\nMaxStartups 500\n"
    )
    hosts = ["127.0.0.1 localhost", "::1 localhost"]
    hosts += [f"10.77.0.{n} vm{n}\nfd77::{n} vm{n}" for n in range(1, 10)]
    (tree / "etc/hosts").write_text("\n".join(hosts) + "\n")
    (tree / "hallway").mkdir()
    shutil.rmtree(tree / "var/lib/apt/lists", ignore_errors=True)
    shutil.rmtree(tree / "var/cache/apt", ignore_errors=True)
    (tree / "etc/resolv.conf").unlink(missing_ok=True)


def pack(tree: Path, image: Path, size: str) -> None:
    """Write the folder `tree` as an ext4 filesystem to the file `image`."""
    scratch = image.with_suffix(".new")
    scratch.unlink(missing_ok=True)
    features = "^has_journal,^metadata_csum"
    run(["mke2fs", "-q", "-t", "ext4", "-O", features, "-E", "root_owner=0:0", "-d", tree, scratch, size])
    scratch.rename(image)


def modules_image(kernel: Kernel) -> Path:
    """Return a disk with the module tree of `kernel`."""
    if kernel.modules_dir is None:
        raise LabError(f"kernel {kernel.name} has only headers: it can not boot")
    # Debug kernels of other configurations have the same version.
    image = paths.cache("images", f"modules-{kernel.version}-{paths.key(str(kernel.modules_dir))}.ext4")
    with paths.lock(f"modules-{kernel.name}"):
        newest = (kernel.modules_dir / "modules.dep").stat().st_mtime
        if not image.exists() or image.stat().st_mtime < newest:
            with step(f"packing the modules of {kernel.version}"):
                _pack_modules(kernel, image)
    return image


def _pack_modules(kernel: Kernel, image: Path) -> None:
    assert kernel.modules_dir is not None
    with paths.workshop(image) as scratch:
        tree = scratch / "tree"
        skip = shutil.ignore_patterns("build", "source")
        shutil.copytree(kernel.modules_dir, tree / kernel.version, symlinks=True, ignore=skip)
        used = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file())
        pack(tree, image, f"{used * 13 // 10 // (1 << 20) + 24}M")


def initramfs(kernel: Kernel, *, domain: bool = False) -> Path:
    """Return an initramfs for `kernel`, of a VM or of a domain of Xen: busybox, boot modules, our init."""
    scripts = [paths.LAB / "guest/initramfs", paths.LAB / "guest/init"]
    busybox = _busybox()
    modules = kernels.module_order(kernel, DOMAIN_MODULES if domain else BOOT_MODULES)
    name = paths.key(kernel.version, *scripts, busybox, *modules)
    stem = f"initramfs-{'domain-' if domain else ''}{kernel.name}"
    with paths.lock(stem):
        image = paths.cache("images", f"{stem}-{name}.cpio")
        if not image.exists():
            for old in image.parent.glob(f"{stem}-*.cpio"):
                old.unlink()
            build_initramfs(image, scripts, modules)
        return image


def _busybox() -> Path:
    busybox = Path(shutil.which("busybox") or "/bin/busybox")
    if not busybox.exists():
        raise LabError("busybox-static is not installed: run `./lab/run setup`")
    return busybox


def build_initramfs(image: Path, scripts: list[Path], modules: list[Path]) -> None:
    """Build one of busybox, scripts (init, and lab-init if there are two), and modules in their order."""
    with paths.workshop(image) as tree:
        for folder in ("bin", "dev", "proc", "sys", "new", "modules"):
            (tree / folder).mkdir()
        shutil.copy(_busybox(), tree / "bin/busybox")
        for script, name in zip(scripts, ("init", "lab-init"), strict=False):
            shutil.copy(script, tree / name)
            (tree / name).chmod(0o755)
        for number, module in enumerate(modules):
            shutil.copy(module, tree / "modules" / f"{number:02}-{module.name}")
        names = "\n".join(str(p.relative_to(tree)) for p in sorted(tree.rglob("*")))
        scratch_image = image.with_suffix(".new")
        with_output = f"busybox cpio -o -H newc > '{scratch_image}'"
        run(["sh", "-c", with_output], cwd=tree, text=names + "\n")
        scratch_image.rename(image)
