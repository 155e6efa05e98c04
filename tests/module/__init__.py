# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Tests of the module alone: both ends of each connection in one guest."""
