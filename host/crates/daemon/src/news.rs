// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the daemon's loop and the monitors' threads send each other.

use std::time::Duration;

use hallway_control::Migration;
use hallway_qmp::{Identity, Memory};

/// How long a guest may take to let a device go.
pub const LET_GO: Duration = Duration::from_secs(30);
/// Before the name of a region, in that of its device.
pub const PREFIX: &str = "hallway-";

/// What a monitor is asked for.
#[derive(Debug)]
pub enum Job {
    /// Plug memory in.
    Plug(Memory),
    /// Plug a device out.
    Unplug(String),
    /// Migrate to this place.
    Migrate(String),
}

/// What a monitor tells.
#[derive(Debug)]
pub enum News {
    /// QEMU answers; whether its guest is elsewhere: has yet to come by
    /// migration, or went.
    Up(Identity, bool),
    /// The guest stood still, or was elsewhere, and runs.
    Runs,
    /// The machine was reset, and boots.
    Reset,
    /// It does not, any more or yet, for this reason.
    Down(String),
    /// A device is there now.
    Plugged(String),
    /// A device could not be plugged in, for this reason.
    Failed(String, String),
    /// A device could not be plugged out, for this reason.
    Held(String, String),
    /// A device is gone; whether that was asked for.
    Gone(String, bool),
    /// The migration got so far.
    Migrates(Migration),
}
