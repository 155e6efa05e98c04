// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages between two members (`abi/hallway/message.h`). An OFFER is an
//! [`Offer`], every other message an [`Other`]; both begin with [`Head`].

use std::mem::{offset_of, size_of};

pub use crate::constants::message::*;

/// The head of every message.
#[repr(C)]
pub struct Head {
    /// [`OFFER`] and the others.
    pub r#type: u16,
    /// Zero.
    pub reserved: u16,
    /// Endpoint of the writer; 0 in a DECLINE of an end that has none.
    pub from: u32,
    /// Endpoint of the reader; 0 in an OFFER.
    pub to: u32,
    /// Number of the ring's carrier, odd.
    pub carrier: u32,
}

/// What an OFFER of kind SOCKET or LISTENER has in place of the tokens.
#[repr(C)]
pub struct Call {
    /// SOCKET: this answers the OFFER of that endpoint; or 0.
    pub answers: u32,
    /// SOCKET: the guest's endpoint of the LISTENER at which a connection arrived; or 0.
    pub listener: u32,
    /// `SOCKET_*`.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

/// What an OFFER of kind TUNNEL has in place of the tokens. Ports are those of `AF_VSOCK`.
#[repr(C)]
pub struct Tunnel {
    /// This answers the OFFER of that endpoint; or 0.
    pub answers: u32,
    /// `TUNNEL_*`.
    pub r#type: u32,
    /// Port of the writer's socket.
    pub local_port: u32,
    /// Port of the reader's socket.
    pub remote_port: u32,
}

/// An OFFER.
#[repr(C)]
pub struct Offer {
    /// The head of every message.
    pub head: Head,
    /// The writer's tokens of the connection; or a [`Call`], or a [`Tunnel`].
    pub token: [u64; 2],
    /// Address of the writer; a hint only.
    pub local: [u8; 16],
    /// Address of the reader; a hint only.
    pub remote: [u8; 16],
    /// Port of the writer.
    pub local_port: u16,
    /// Port of the reader.
    pub remote_port: u16,
    /// `KIND_*`.
    pub kind: u16,
    /// Zero: there are none yet.
    pub features: u16,
    /// Bytes of data.
    pub ring_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Names the ring to the transport; opaque to all else.
    pub handle: [u8; HANDLE_SIZE],
}

/// Every message but an OFFER.
#[repr(C)]
pub struct Other {
    /// The head of every message.
    pub head: Head,
    /// In DONE: the first byte not consumed.
    pub position: u64,
    /// `reason::*`.
    pub reason: u32,
    /// Zero.
    pub reserved: u32,
    /// In ACCEPT: the writer's tokens of the connection.
    pub token: [u64; 2],
    /// Zero.
    pub reserved2: [u8; 80],
}

const _: () = {
    assert!(size_of::<Offer>() == 128);
    assert!(size_of::<Other>() == 128);
    assert!(size_of::<Call>() == 16);
    assert!(size_of::<Tunnel>() == 16);
    assert!(offset_of!(Tunnel, local_port) == 8);
    assert!(offset_of!(Offer, handle) == 80);
    assert!(offset_of!(Other, reason) == 24);
    assert!(offset_of!(Other, token) == 32);
};
