// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallway-host`: the host as an end of tunnels with one VM.
//!
//! hallwayd starts it, and gives it all that it has by the control socket.

use std::process::ExitCode;

use hallway_host::program::Host;

fn main() -> ExitCode {
    hallway_endpoint::server::run("hallway-host", Host::default())
}
