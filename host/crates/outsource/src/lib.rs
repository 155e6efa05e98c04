// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Executes sockets of the host for one VM ("outsourcing", `spec/protocol.md`,
//! section 7).
//!
//! | module | what it is |
//! | --- | --- |
//! | [`server`] | the program, as the loop of `hallway-endpoint` drives it |
//! | [`orders`], [`policy`] | what the guest may connect to and publish |
//! | [`guest`], [`calls`], [`listener`], [`stream`], [`options`], [`datagrams`], [`known`], [`record`], [`rate`], [`table`] | what is executed for the guest |
//! | [`net`], [`udp`], [`confine`] | the host's kernel |

pub mod calls;
pub mod confine;
pub mod datagrams;
pub mod guest;
pub mod known;
pub mod listener;
pub mod net;
pub mod options;
pub mod orders;
pub mod policy;
pub mod rate;
pub mod record;
pub mod server;
pub mod stream;
pub mod table;
pub mod udp;
