// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ring memory that the guest's kernel lends to programs (`abi/hallway/loan.h`).

use std::mem::size_of;

/// Letter of the device's calls.
pub const LETTER: u8 = b'H';
/// Number of the call that takes [`Attach`].
pub const ATTACH: u8 = 0xe0;
/// Number of the call that takes [`Send`].
pub const SEND: u8 = 0xe1;
/// Number of the call that takes [`Receive`].
pub const RECEIVE: u8 = 0xe2;

/// State: no space or message yet.
pub const NONE: u32 = 0;
/// State: there is space, or a message.
pub const FOUND: u32 = 1;
/// State: no message follows.
pub const END: u32 = 2;
/// Flag: the message ends a record.
pub const EOR: u32 = 1;

/// Attaches an open file to a socket, and gives its rings.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Attach {
    /// Descriptor of the socket: in, as is the next.
    pub socket: i32,
    /// 0.
    pub reserved: u32,
    /// Bytes of the ring that the program writes: out, as are those below.
    pub tx_size: u32,
    /// Bytes of the other one.
    pub rx_size: u32,
    /// Where each is mapped.
    pub tx_offset: u64,
    /// As above.
    pub rx_offset: u64,
}

/// Sends a message that was reserved, and reserves another one.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Send {
    /// Bytes of the message: in, as are the next two.
    pub commit: u32,
    /// [`EOR`].
    pub flags: u32,
    /// Bytes of the next message.
    pub reserve: u32,
    /// [`NONE`] or [`FOUND`]: out, as is the next.
    pub state: u32,
    /// Where the next message lies in the ring.
    pub offset: u32,
    /// 0.
    pub reserved: u32,
}

/// Releases a message, and looks for the next one.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Receive {
    /// 0 or 1: in.
    pub release: u32,
    /// [`NONE`], [`FOUND`] or [`END`]: out, as are those below.
    pub state: u32,
    /// Where the message lies in the ring.
    pub offset: u32,
    /// Bytes of it.
    pub length: u32,
    /// [`EOR`].
    pub flags: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<Attach>() == 32);
const _: () = assert!(size_of::<Send>() == 24);
const _: () = assert!(size_of::<Receive>() == 24);
