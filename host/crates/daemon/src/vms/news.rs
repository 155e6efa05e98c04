// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the daemon's loop and the monitors' threads send each other.

use std::time::Duration;

use hallway_control::Migration;
use hallway_qmp::{Identity, Memory};

/// How long a guest may take to let a device go.
pub const LET_GO: Duration = Duration::from_secs(30);
/// What the id of a region's device has before the region's name.
pub const PREFIX: &str = "hallway-";

/// A job for a monitor's thread.
#[derive(Debug)]
pub enum Job {
    /// Plug memory in.
    Plug(Memory),
    /// Plug the device with this id out.
    Unplug(String),
    /// Migrate to this URI.
    Migrate(String),
}

/// News from a monitor's thread.
#[derive(Debug)]
pub enum News {
    /// QEMU answers; whether its guest is elsewhere: has yet to arrive by
    /// migration, or has gone.
    Up(Identity, bool),
    /// The guest stood still, or was elsewhere, and runs.
    Runs,
    /// The guest was reset, and boots.
    Reset,
    /// QEMU does not answer yet, or no longer, for this reason.
    Down(String),
    /// The device with this id is plugged in.
    Plugged(String),
    /// The device with this id could not be plugged in, for this reason.
    Failed(String, String),
    /// The device with this id could not be plugged out, for this reason.
    Held(String, String),
    /// The device with this id is gone; whether the daemon asked for that.
    Gone(String, bool),
    /// The migration has reached this stage.
    Migrates(Migration),
}
