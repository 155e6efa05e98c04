// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages between two members (`abi/hallway/message.h`). Each starts with
//! [`Head`]; an offer goes on as [`Offer`], every other one as [`Other`].

use std::mem::{offset_of, size_of};

pub use crate::constants::message::*;

/// What every message starts with.
#[repr(C)]
pub struct Head {
    /// [`OFFER`] and the others.
    pub r#type: u16,
    /// Zero.
    pub reserved: u16,
    /// Endpoint of who writes this.
    pub from: u32,
    /// Endpoint of who reads this.
    pub to: u32,
    /// Number of the ring's carrier, odd.
    pub carrier: u32,
}

/// An offer.
#[repr(C)]
pub struct Offer {
    /// What every message starts with.
    pub head: Head,
    /// The connection's name.
    pub token: [u64; 2],
    /// Address of who writes; a hint only.
    pub local: [u8; 16],
    /// Address of who reads; a hint only.
    pub remote: [u8; 16],
    /// Port of who writes.
    pub local_port: u16,
    /// Port of who reads.
    pub remote_port: u16,
    /// `KIND_*`.
    pub kind: u16,
    /// None yet.
    pub features: u16,
    /// Bytes of data.
    pub ring_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Where the ring is; opaque to all but the transport.
    pub handle: [u8; HANDLE_SIZE],
}

/// Every message but an offer.
#[repr(C)]
pub struct Other {
    /// What every message starts with.
    pub head: Head,
    /// Consumed up to here.
    pub position: u64,
    /// `reason::*`.
    pub reason: u32,
    /// Zero.
    pub reserved: u32,
    /// The connection's name, in [`ACCEPT`].
    pub token: [u64; 2],
    /// Zero.
    pub reserved2: [u8; 80],
}

const _: () = {
    assert!(size_of::<Offer>() == 128);
    assert!(size_of::<Other>() == 128);
    assert!(offset_of!(Offer, handle) == 80);
    assert!(offset_of!(Other, reason) == 24);
    assert!(offset_of!(Other, token) == 32);
};
