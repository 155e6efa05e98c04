// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client of QEMU's monitor: ring memory by hot-plug ([`Memory`]) and live
//! migration ([`Migration`]).
//!
//! QEMU serves one client per monitor socket and lets others wait without a word,
//! so Hallway needs a socket of its own.
//!
//! # Why a client of our own
//!
//! The process behind a monitor may be hostile: a QEMU out of which its guest has
//! broken. Every wait here has a deadline, and lines and kept events are bounded.
//! Of the published clients, `qapi` waits for ever, reads lines of any length,
//! panics if QEMU hangs up before its greeting, and takes an event that its types
//! do not know for a broken connection. It generates those types from all of QEMU's
//! schema at each build. The others are asynchronous and bring a runtime, while
//! hallwayd gives each monitor a thread that mostly sleeps.

mod device;
mod migration;
mod wire;

pub use device::{Memory, Plugged, Source};
pub use migration::{Migration, MigrationState};
pub use wire::{Event, Identity, Monitor, RunState};

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Class of the error that is sent in place of a greeting where the VM is shut off.
pub const NOT_RUNNING: &str = "NotRunning";

/// Why a command failed; each message says what to do, where that is known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No QEMU is there, or we may not reach it.
    #[error(
        "{path}: no QEMU answers ({error}): start it with -qmp unix:{path},server=on,wait=off"
    )]
    Connect {
        /// Path of the socket.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// QEMU took the connection and sent no greeting.
    #[error(
        "{path}: QEMU does not greet: another client has this monitor, or QEMU hangs; give \
         Hallway a -qmp socket of its own"
    )]
    NoGreeting {
        /// Path of the socket.
        path: PathBuf,
    },
    /// What speaks for QEMU says that there is none, and why.
    #[error("{0}")]
    Absent(String),
    /// What speaks for QEMU says that the VM is shut off.
    #[error("{0}")]
    NotRunning(String),
    /// The connection ended.
    #[error("QEMU hung up: {0}")]
    Closed(String),
    /// The other end does not speak QMP.
    #[error("what came from the monitor is not QMP: {0}")]
    Protocol(String),
    /// QEMU refused a command.
    #[error("QEMU refuses {command}: {reason}")]
    Refused {
        /// The command.
        command: String,
        /// QEMU's reason.
        reason: String,
    },
    /// An answer or an event did not come in time.
    #[error("not within {} s: {what}", .limit.as_secs())]
    Timeout {
        /// The answer or event.
        what: String,
        /// The time that it had.
        limit: Duration,
    },
    /// The guest was asked to let a device go, and did not.
    #[error(
        "the guest does not let device {device} go: it is not running, has no driver for PCI \
         hot-plug, or its module is stuck"
    )]
    Held {
        /// Id of the device.
        device: String,
    },
    /// QEMU has not let go of memory whose device is gone.
    #[error("QEMU still uses the memory of device {device}, which is gone: try again")]
    Lingers {
        /// Id of the device.
        device: String,
    },
    /// No root port is free.
    #[error(
        "no free root port is left: give the VM more of them, by hallway enable --ports NUMBER or \
         -device pcie-root-port,id=hallway0,chassis=10,pref64-reserve=SIZE, and start it again"
    )]
    NoPort,
}

impl Error {
    /// Whether the connection cannot be used any further.
    pub fn is_final(&self) -> bool {
        !matches!(
            self,
            Self::Refused { .. } | Self::Held { .. } | Self::Lingers { .. } | Self::NoPort
        )
    }
}

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;
