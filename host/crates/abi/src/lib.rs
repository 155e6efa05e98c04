// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hallway's shared-memory layout and constants, as `abi/hallway/*.h` has them.
//!
//! The C headers are authoritative. The types here serve to compute sizes and
//! offsets and are never laid over shared memory: what others write at the same
//! time is read word by word (see the crate `hallway-shm`). The assertions
//! below repeat those of the headers, and the test `headers` compares every
//! size, offset, constant and reason with what a C compiler sees.

#[cfg(not(target_endian = "little"))]
compile_error!("Hallway shares memory in little-endian order: big-endian machines are not served");

pub mod message;
pub mod netlink;
pub mod reason;
pub mod region;
pub mod ring;
