# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Test suites of other projects over rings: no test may end otherwise than over TCP: `make test-suites`."""
