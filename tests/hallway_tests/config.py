# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The group of VMs in the configurations of some tests."""

from __future__ import annotations

GROUP = """
[[group]]
name = "both"
isolation = "shared"
size = "64M"
"""
