# SPDX-License-Identifier: Apache-2.0 OR MIT
"""reaper.py PROGRAM ...: run it, and wait for all that it leaves behind.

A daemon whose children fork away counts on a first process that waits for them,
as init does; that of the lab does not. libvirt, for one, takes a QEMU that ended
for one that lives until somebody has waited for it.
"""

import ctypes
import os
import signal
import subprocess
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

prctl = ctypes.CDLL(None).prctl
prctl(PR_SET_CHILD_SUBREAPER, 1)
program = subprocess.Popen(sys.argv[1:], preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL))
while os.wait()[0] != program.pid:
    pass
