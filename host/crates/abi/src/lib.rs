// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hallway's shared-memory layout and numbers.
//!
//! Numbers are generated from `spec/*.yaml`, for C and Rust. The structures are
//! those of `abi/hallway/*.h`; the test `headers` compares each size and offset
//! with what a C compiler sees. They serve to compute offsets, and are never laid
//! over shared memory: words that others write at the same time are read one by
//! one (see the crate `hallway-shm`).

#[cfg(not(target_endian = "little"))]
compile_error!("Hallway shares memory in little-endian order: big-endian machines are not served");

mod constants;
pub mod counter;
pub mod datagram;
pub mod loan;
pub mod message;
pub mod netlink;
pub mod reason;
pub mod region;
pub mod ring;
pub mod socket;
pub mod tunnel;
