# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`make bench`: how fast Hallway is beside TCP, by figures that repeat."""
