"""kexec.py KERNEL INITRD: start that kernel with this one's command line, at once, as `kexec -e` does."""

import ctypes
import os
import sys

KEXEC_FILE_LOAD = 320  # on x86-64
LINUX_REBOOT_CMD_KEXEC = 0x45584543

libc = ctypes.CDLL(None, use_errno=True)
files = [os.open(path, os.O_RDONLY) for path in sys.argv[1:3]]
with open("/proc/cmdline", "rb") as file:
    words = file.read().strip()
if libc.syscall(KEXEC_FILE_LOAD, *files, ctypes.c_ulong(len(words) + 1), words, ctypes.c_ulong(0)):
    sys.exit(f"kexec_file_load: {os.strerror(ctypes.get_errno())}")
libc.reboot(LINUX_REBOOT_CMD_KEXEC)
sys.exit(f"reboot: {os.strerror(ctypes.get_errno())}")
