# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Programs of other projects between two VMs, on rings and while carriers switch: `make test-programs`."""
