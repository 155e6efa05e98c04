# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Print on the console when the module learns of an address, or that it is gone.

knows.py ADDRESS came|went

It prints first that it looks: the change must not happen before that.
"""

import ipaddress
import sys
import time

sys.path.append("/hallway/tests")

from genl import Family


def say(words):
    """Have the kernel say it."""
    with open("/dev/kmsg", "w") as console:
        console.write(words + "\n")  # held back without


name, event = sys.argv[1:]
address = ipaddress.ip_address(name)
if address.version == 4:
    address = ipaddress.ip_address(f"::ffff:{address}")
module = Family()
say(f"looks whether {name} {event}")
while (address.packed in module.members()) != (event == "came"):
    time.sleep(0.002)  # a step of the measure
say(f"knows that {name} {event}")
