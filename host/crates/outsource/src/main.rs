// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallway-outsource`: executes sockets of the host for one VM.
//!
//! hallwayd starts it, and gives it all that it has by the control socket.

use std::process::ExitCode;

use hallway_outsource::server::Outsourcer;

fn main() -> ExitCode {
    hallway_endpoint::server::run("hallway-outsource", Outsourcer::default())
}
