// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ring (`abi/hallway/ring.h`).

use std::mem::{offset_of, size_of};

use crate::constants::message::HANDLE_SIZE;
pub use crate::constants::ring::*;

/// Options of a socket that the outsourcer executes, in the head of the guest's ring.
#[repr(C)]
pub struct Options {
    /// Bits `1 << OPTION_*`: the guest sets them, the outsourcer clears them.
    pub changed: u64,
    /// The guest's: number of its last question for `struct tcp_info`.
    pub asked: u32,
    /// The outsourcer's: the last number that it has answered.
    pub answered: u32,
    /// Bytes of `info`; 0: there is none.
    pub info_size: u32,
    /// Bytes of which the host has no ACK yet.
    pub unacked: u32,
    /// The guest's.
    pub value: [i32; OPTIONS],
    /// Values that the guest gave them.
    pub info: [u8; INFO_MAX],
}

/// The head of a ring; the data follows.
#[repr(C)]
pub struct Ring {
    /// Position of the sender, in bytes.
    pub head: u64,
    /// Ring when tail passes this position.
    pub tail_event: u64,
    /// Zero.
    pub reserved0: [u8; 48],
    /// Position of the receiver, in bytes.
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
    /// 0, [`MARK_SHORT`], or [`MARK_SET`] and the first position in the area.
    pub grown: u64,
    /// Bytes of the area, a power of two.
    pub area_size: u32,
    /// Zero.
    pub reserved3: u32,
    /// Handle of the area.
    pub area: [u8; HANDLE_SIZE],
    /// Zero.
    pub reserved4: [u8; 32],
    /// Options of a socket, in the guest's ring of kind SOCKET.
    pub options: Options,
    /// Zero.
    pub reserved5: [u8; 3176],
}

const _: () = {
    assert!(size_of::<Ring>() == RING_HEADER);
    assert!(offset_of!(Ring, tail) == 64);
    assert!(offset_of!(Ring, magic) == 128);
    assert!(offset_of!(Ring, start) == 144);
    assert!(offset_of!(Ring, grown) == 160);
    assert!(offset_of!(Ring, area) == 176);
    assert!(size_of::<Options>() == 664);
    assert!(offset_of!(Options, value) == 24);
    assert!(offset_of!(Ring, options) == 256);
};
