# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What `make check` checks: our own rules, and tools with their settings."""
