# SPDX-License-Identifier: Apache-2.0 OR MIT
"""session.py HOST STOP: an ssh session that gets back each block it sends, until the file STOP exists."""

import os
import random
import subprocess
import sys

with subprocess.Popen(["ssh", sys.argv[1], "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as ssh:
    assert ssh.stdin and ssh.stdout
    blocks = 0
    while not os.path.exists(sys.argv[2]):
        block = os.urandom(random.randrange(1, 20000))
        ssh.stdin.write(block)
        ssh.stdin.flush()
        if ssh.stdout.read(len(block)) != block:
            sys.exit(f"block {blocks} came back as another")
        blocks += 1
    ssh.stdin.close()
    sys.exit(ssh.wait() or not blocks)
