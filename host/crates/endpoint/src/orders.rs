// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What hallwayd tells a program, and what it answers.
//!
//! Each packet of the control socket is one JSON object. Descriptors go with it, in
//! the order in which the order names them.

use serde::{Deserialize, Serialize};

/// Descriptor of the control socket (SOCK_SEQPACKET), at which hallwayd starts a
/// program.
pub const CONTROL_FD: i32 = 3;

/// Bytes that a packet of the control socket has at most.
pub const PACKET_MAX: usize = 128 << 10;

/// An order of hallwayd. `P` is what the guest may do, which differs by program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum Order<P> {
    /// Comes first. Descriptors: the region's memory, the own doorbell (eventfd), and
    /// those that the program alone has.
    Start {
        /// Size of the region, in bytes.
        size: u64,
        /// Slot of the program.
        slot: u32,
        /// Generation of the program.
        generation: u32,
        /// Entries used in the region's member table.
        slots: u32,
        /// Position of the own slice in the region.
        slice_offset: u64,
        /// Size of the own slice.
        slice_size: u64,
        /// What the guest may do.
        policy: P,
    },
    /// The guest has joined. Descriptor: its doorbell (eventfd to write 1 to). It takes
    /// the place of an earlier one: all sockets of that are reset. The same one again,
    /// from a daemon that does not know that it is known, changes nothing.
    Guest {
        /// Slot of the guest.
        slot: u32,
        /// Generation of the guest.
        generation: u32,
        /// Position of the guest's slice in the region.
        slice_offset: u64,
        /// Size of the guest's slice.
        slice_size: u64,
    },
    /// The guest has departed: its sockets are reset, its listeners closed.
    Departed,
    /// Another policy. Connections that exist stay.
    Policy {
        /// It replaces the one before.
        policy: P,
    },
    /// Asks for one [`Report`].
    Report {
        /// The report has it, too.
        #[serde(default)]
        number: u64,
    },
}

/// The program's state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Number of the order that asked for it.
    pub number: u64,
    /// Connections, also those that are being made or ended.
    pub sockets: u32,
    /// Connections besides, which the guest has ended: the host still sends.
    pub closing: u32,
    /// Listeners, and UDP sockets with a published port.
    pub listeners: u32,
    /// UDP sockets.
    pub datagrams: u32,
    /// Bytes sent by sockets of the host.
    pub sent: u64,
    /// Bytes received by sockets of the host.
    pub received: u64,
    /// How often a rule, or a cause, refused the guest something.
    pub refused: Vec<(String, u64)>,
    /// Connects that had to wait for their turn.
    pub delayed: u64,
    /// How often the guest broke the protocol.
    pub corrupt: u64,
    /// Pid of the program.
    pub pid: u32,
}
