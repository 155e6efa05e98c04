# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What the module tests and the end-to-end tests share."""
