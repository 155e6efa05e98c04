// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The host as an end of tunnels with one VM (`spec/protocol.md`, section 8).
//!
//! Programs of the host use Unix sockets, in the convention of Firecracker and Cloud
//! Hypervisor: a program that connects to PATH and writes `CONNECT 5000\n` reads `OK 1024\n`,
//! and is connected to port 5000 of the guest. A guest that connects to port 5000 of the host
//! reaches the listener at PATH_5000. PATH.packets and listeners of SOCK_SEQPACKET do the
//! same with messages.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`program`] | the program, as the loop of `hallway-endpoint` drives it |
//! | [`guest`], [`calls`] | the guest, and what it asks for |
//! | [`client`] | programs of the host that connect to the guest |
//! | [`pipe`], [`packets`], [`step`] | a connection: a Unix socket, and a ring each way |
//! | [`unix`], [`confine`] | the host's kernel |

pub mod calls;
pub mod client;
pub mod confine;
pub mod guest;
pub mod packets;
pub mod pipe;
pub mod program;
pub mod step;
pub mod unix;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What the guest, and programs of the host, may do. By default that is nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Policy {
    /// PATH: those of the listeners that the guest reaches begin so.
    pub socket: PathBuf,
    /// Connections at a time.
    pub sockets: u32,
}
