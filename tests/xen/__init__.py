# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Domains of Xen: stock Xen and dom0 in one emulated machine."""
