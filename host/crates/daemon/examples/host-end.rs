// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallway-host` as it is, which is built along with the tests of hallwayd here.

use std::process::ExitCode;

use hallway_host::program::Host;

fn main() -> ExitCode {
    hallway_endpoint::server::run("hallway-host", Host::default())
}
