# SPDX-License-Identifier: Apache-2.0 OR MIT
"""VMs join, leave, stop, crash and migrate under load: `make test-faults`."""
