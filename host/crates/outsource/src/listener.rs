// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Listeners of the guest that the host publishes.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

/// A listener.
pub struct Listener {
    /// Nothing: it is closed, and the guest has not said DONE yet.
    pub socket: Option<OwnedFd>,
    /// Endpoint of the guest.
    pub its: u32,
    /// Carrier of the guest's OFFER.
    pub carrier: u32,
    /// Flags of the guest's OFFER: `SOCKET_*`.
    pub flags: u32,
    /// Where it listens in the guest.
    pub local: SocketAddr,
    /// Where it listens on the host, and whether it takes no IPv4 connections there.
    pub at: (SocketAddr, bool),
    /// Connections that may wait for the guest's answer.
    pub backlog: u32,
    /// Connections that wait for it.
    pub unanswered: u32,
    /// A connection may have arrived.
    pub is_readable: bool,
}

impl Listener {
    /// Whether a connection may be taken now.
    pub fn may_accept(&self) -> bool {
        self.socket.is_some() && self.is_readable && self.unanswered < self.backlog
    }
}
