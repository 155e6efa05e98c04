# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Tests without a guest."""
