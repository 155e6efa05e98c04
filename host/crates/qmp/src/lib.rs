// SPDX-License-Identifier: Apache-2.0 OR MIT
//! QEMU's monitor, as far as Hallway needs it: hot-plugged ring memory
//! ([`Memory`]) and live migration ([`Migration`]).
//!
//! QEMU serves one client per monitor socket and lets others wait without a
//! word, so the socket that Hallway is given must be its own.
//!
//! Why a client of our own: of the published ones, `qapi` waits for ever, with
//! no deadline on anything, panics if QEMU hangs up before its greeting, takes
//! an event that its generated types do not know for a broken connection, and
//! generates those types from all of QEMU's schema at each build; the others
//! are asynchronous and bring a runtime, while hallwayd gives each monitor a
//! thread that mostly sleeps.

mod device;
mod migration;
mod wire;

pub use device::{Memory, Plugged};
pub use migration::{Migration, MigrationState};
pub use wire::{Event, Identity, Monitor, RunState};

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why QEMU did not do what it was asked; each says what to do where it can.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody is there, or it may not be reached.
    #[error(
        "{path}: no QEMU answers ({error}): start it with -qmp unix:{path},server=on,wait=off"
    )]
    Connect {
        /// Of the socket.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// Connected, and then silence.
    #[error(
        "{path}: QEMU does not greet: another client has this monitor, or QEMU hangs; give \
         Hallway a -qmp socket of its own"
    )]
    NoGreeting {
        /// Of the socket.
        path: PathBuf,
    },
    /// The connection ended.
    #[error("QEMU hung up: {0}")]
    Closed(String),
    /// The other end does not speak QMP.
    #[error("what came from the monitor is not QMP: {0}")]
    Protocol(String),
    /// QEMU refuses.
    #[error("QEMU refuses {command}: {reason}")]
    Refused {
        /// Asked for.
        command: String,
        /// In QEMU's words.
        reason: String,
    },
    /// No answer, or no event, in time.
    #[error("not within {} s: {what}", .limit.as_secs())]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        limit: Duration,
    },
    /// The guest was asked to let a device go, and did not.
    #[error(
        "the guest does not let device {device} go: it is not running, has no driver for PCI \
         hot-plug, or its module is stuck"
    )]
    Held {
        /// That it holds.
        device: String,
    },
    /// QEMU has not let go of memory whose device is gone.
    #[error("QEMU still uses the memory of device {device}, which is gone: try again")]
    Lingers {
        /// That is gone.
        device: String,
    },
    /// Nowhere to plug a device in.
    #[error(
        "no free root port is left: start QEMU with more of them, such as -device \
         pcie-root-port,id=hallway0,chassis=10,pref64-reserve=SIZE"
    )]
    NoPort,
}

impl Error {
    /// Whether the connection is of no more use.
    pub fn is_final(&self) -> bool {
        !matches!(
            self,
            Self::Refused { .. } | Self::Held { .. } | Self::Lingers { .. } | Self::NoPort
        )
    }
}

/// What this crate's functions return.
pub type Result<T> = std::result::Result<T, Error>;
