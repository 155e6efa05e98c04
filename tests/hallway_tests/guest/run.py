# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A program of this folder, by its name: `python3 -B run.py tunnel WORDS`.

The host has compiled it (`guests.share`). A guest under emulation takes longer to compile a
program than to run it.
"""

import importlib
import sys

importlib.import_module(sys.argv.pop(1)).main()
