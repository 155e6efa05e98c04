// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ring (`abi/hallway/ring.h`).

use std::mem::{offset_of, size_of};

pub use crate::constants::ring::*;

/// The head of a ring; the data follows.
#[repr(C)]
pub struct Ring {
    /// Of the sender, bytes.
    pub head: u64,
    /// Ring when tail passes this position.
    pub tail_event: u64,
    /// Zero.
    pub reserved0: [u8; 48],
    /// Of the receiver, bytes.
    pub tail: u64,
    /// Ring when head passes this position.
    pub head_event: u64,
    /// Zero.
    pub reserved1: [u8; 48],
    /// [`RING_MAGIC`].
    pub magic: u32,
    /// Bytes of data, a power of two.
    pub size: u32,
    /// Number of this carrier, odd.
    pub carrier: u32,
    /// Zero.
    pub reserved2: u32,
    /// 0, or [`MARK_SET`] and the sequence number.
    pub start: u64,
    /// 0, or [`MARK_SET`].
    pub end: u64,
    /// Zero.
    pub reserved3: [u8; 32],
    /// Zero.
    pub reserved4: [u8; 3904],
}

const _: () = {
    assert!(size_of::<Ring>() == RING_HEADER);
    assert!(offset_of!(Ring, tail) == 64);
    assert!(offset_of!(Ring, magic) == 128);
    assert!(offset_of!(Ring, start) == 144);
};
