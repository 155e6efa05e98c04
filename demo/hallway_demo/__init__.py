# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`make demo`: unmodified programs between two VMs, TCP beside Hallway."""
