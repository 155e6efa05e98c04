// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A program of the host as a member of a region that it shares with one VM
//! (`spec/protocol.md`). hallwayd starts it, with descriptors alone; it serves a guest
//! that is hostile, and has given up all system calls that it does not need.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`orders`], [`control`] | what hallwayd says on the control socket |
//! | [`server`] | the loop; its head explains the order in which things happen |
//! | [`member`], [`mailbox`], [`memory`], [`message`] | the region: the own slice, and the guest as a peer |
//! | [`table`] | what is served, by its endpoint |
//! | [`socket`], [`poller`], [`confine`] | the host's kernel |
//! | [`lines`] | counts, and bounds for the log |

pub mod confine;
pub mod control;
pub mod lines;
pub mod mailbox;
pub mod member;
pub mod memory;
pub mod message;
pub mod orders;
pub mod poller;
pub mod server;
pub mod socket;
pub mod table;
