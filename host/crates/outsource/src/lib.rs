// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Executes sockets of the host for one VM ("outsourcing", `spec/protocol.md`,
//! section 7).
//!
//! | module | what it is |
//! | --- | --- |
//! | [`orders`] | what hallwayd says on the control socket |
//! | [`server`] | the loop; its head explains the order in which things happen |
//! | [`policy`] | what the guest may connect to and publish |
//! | [`member`], [`mailbox`], [`memory`], [`message`] | the region: the own slice, and the guest as a peer |
//! | [`guest`], [`calls`], [`listener`], [`stream`], [`options`], [`datagrams`], [`known`], [`record`], [`rate`], [`table`] | what is executed for the guest |
//! | [`net`], [`udp`], [`poller`], [`control`], [`confine`] | the host's kernel |
//! | [`lines`] | counts, and bounds for the log |

pub mod calls;
pub mod confine;
pub mod control;
pub mod datagrams;
pub mod guest;
pub mod known;
pub mod lines;
pub mod listener;
pub mod mailbox;
pub mod member;
pub mod memory;
pub mod message;
pub mod net;
pub mod options;
pub mod orders;
pub mod policy;
pub mod poller;
pub mod rate;
pub mod record;
pub mod server;
pub mod stream;
pub mod table;
pub mod udp;
