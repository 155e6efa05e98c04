# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Tests of the lab itself: what it promises to leave behind, which is nothing."""
