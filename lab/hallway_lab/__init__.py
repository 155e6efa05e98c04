# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The lab: stock kernels, a small Debian guest, QEMU and a private network.

Everything that the demo, the tests and the benchmarks need from the outside
world comes through here, so that none of them knows where a kernel or an
emulator came from, and none leaves anything behind on the machine.
"""
