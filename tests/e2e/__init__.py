# SPDX-License-Identifier: Apache-2.0 OR MIT
"""End-to-end tests: guests on one or two hosts."""
