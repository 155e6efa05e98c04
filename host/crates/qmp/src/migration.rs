// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Live migration, as the source's QEMU is asked for it.

use serde::Deserialize;
use serde_json::{json, Value};

use crate::{Monitor, Result};

/// How far a migration is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigrationState {
    /// There was none.
    None,
    /// It goes on.
    Active,
    /// The guest runs at the destination.
    Completed,
    /// It ended, and the guest stays.
    Failed,
    /// It was cancelled, and the guest stays.
    Cancelled,
}

/// What `query-migrate` tells.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Migration {
    /// In QEMU's words; nothing if there was none.
    pub status: Option<String>,
    /// Why it failed, in QEMU's words.
    #[serde(rename = "error-desc")]
    pub error: Option<String>,
    /// Milliseconds that the guest stood still.
    pub downtime: Option<u64>,
    /// Milliseconds in all.
    #[serde(rename = "total-time")]
    pub total_time: Option<u64>,
}

impl Migration {
    /// How far it is.
    pub fn state(&self) -> MigrationState {
        match self.status.as_deref() {
            None | Some("none") => MigrationState::None,
            Some("completed") => MigrationState::Completed,
            Some("failed") => MigrationState::Failed,
            Some("cancelled") => MigrationState::Cancelled,
            Some(_) => MigrationState::Active,
        }
    }
}

impl Monitor {
    /// Begins a migration; the URI as QEMU's, such as `unix:PATH` or
    /// `tcp:HOST:PORT`. It goes on in the background.
    pub fn migrate(&mut self, uri: &str) -> Result<()> {
        self.execute("migrate", json!({ "uri": uri })).map(drop)
    }

    /// How far the migration is.
    pub fn migration(&mut self) -> Result<Migration> {
        self.query("query-migrate", Value::Null)
    }

    /// Ends the migration; the guest stays, unless it has just gone. Ask
    /// [`Monitor::migration`] which it was.
    pub fn cancel_migration(&mut self) -> Result<()> {
        self.execute("migrate_cancel", Value::Null).map(drop)
    }
}
