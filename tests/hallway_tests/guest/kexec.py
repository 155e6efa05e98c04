# SPDX-License-Identifier: Apache-2.0 OR MIT
"""kexec.py KERNEL INITRD: start that kernel with this one's command line, at once, as `kexec -e` does.

It too takes the interfaces down first: Linux' virtio_net loops for ever in
start_xmit() if a program sends while the device has been shut down already.
"""

import ctypes
import os
import subprocess
import sys

KEXEC_FILE_LOAD = 320  # on x86-64
LINUX_REBOOT_CMD_KEXEC = 0x45584543

libc = ctypes.CDLL(None, use_errno=True)
files = [os.open(path, os.O_RDONLY) for path in sys.argv[1:3]]
with open("/proc/cmdline", "rb") as file:
    words = file.read().strip()
if libc.syscall(KEXEC_FILE_LOAD, *files, ctypes.c_ulong(len(words) + 1), words, ctypes.c_ulong(0)):
    sys.exit(f"kexec_file_load: {os.strerror(ctypes.get_errno())}")
for name in sorted(set(os.listdir("/sys/class/net")) - {"lo"}):
    subprocess.run(["ip", "link", "set", name, "down"], check=True)
libc.reboot(LINUX_REBOOT_CMD_KEXEC)
sys.exit(f"reboot: {os.strerror(ctypes.get_errno())}")
