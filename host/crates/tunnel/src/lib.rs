// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages between programs: by a tunnel to a VM of the same host, or by TCP to anywhere else.
//!
//! A tunnel is a socket of AF_VSOCK, which programs can use without this crate. It adds names of
//! VMs, and TCP with the same calls where the peer is not a VM of this host. On the host, a tunnel
//! is a Unix socket of the guest's host end.
//!
//! ```no_run
//! # fn main() -> hallway_tunnel::Result<()> {
//! let mut connection = hallway_tunnel::Connection::connect("vm2:5000,tcp://vm2.example:5000")?;
//! connection.send(b"a question")?;
//! while let Some(message) = connection.recv()? {
//!     println!("{} bytes", message.len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Addresses
//!
//! | to connect to | means |
//! | --- | --- |
//! | `vsock://vm2:5000` | a tunnel to the VM of this name, or CID |
//! | `tcp://host.example:5000` | TCP |
//! | `vm2:5000` | a tunnel, if a VM of this host has that name; else TCP; with a CID a tunnel |
//! | `unix:///run/vm1.sock:5000` | on the host: a tunnel to the guest whose host end has this path |
//! | `A,B` | the first one of these that connects |
//!
//! | to listen at | means |
//! | --- | --- |
//! | `5000` | tunnels from VMs of this host |
//! | `unix:///run/vm1.sock:5000` | on the host: tunnels from that guest to port 5000 of the host |
//! | `tcp://192.0.2.1:5000`, `tcp://[::]:5000` | TCP at that address, or at each |
//!
//! A port is a number, or a name of [`SERVICES`]. VMs choose their names themselves: where it
//! matters which peer this is, write a CID, or `tcp://`. The path of a host end is the `socket` of
//! `[vm.tunnels]` in hallwayd's configuration; its user has to be allowed to connect to the file
//! `vm1.sock_5000` that a listener makes, and removes when it is dropped (`docs/tunnels.md`).
//!
//! # Messages
//!
//! [`Connection::reserve`] and [`Connection::peek`] give the place of a message, for programs that
//! want no copy: it is ring memory if the guest's `/dev/hallway-loan` can be used, and a buffer
//! elsewhere.
//!
//! A message has 1 to [`MESSAGE_MAX`] bytes and arrives whole. By TCP its length goes before it,
//! 4 bytes, little-endian; nothing else is added. TCP is neither encrypted nor authenticated.

mod address;
mod connection;
mod error;
mod host_end;
mod listener;
mod loan;
mod message;
pub mod vsock;

pub use address::{find, parse, port, Name, SERVICES};
pub use connection::{Connection, Receiver, Sender, MESSAGE_MAX};
pub use error::{Error, Result};
pub use listener::Listener;
pub use message::{Message, Space};
