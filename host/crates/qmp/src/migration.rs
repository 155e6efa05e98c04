// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Live migration, on the side of the source's QEMU.

use serde::Deserialize;
use serde_json::{json, Value};

use crate::{Monitor, Result};

/// State of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigrationState {
    /// There was none.
    None,
    /// It is going on.
    Active,
    /// The guest runs at the destination.
    Completed,
    /// It ended, and the guest stays.
    Failed,
    /// It was cancelled, and the guest stays.
    Cancelled,
}

/// The answer to `query-migrate`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Migration {
    /// QEMU's word for its state; nothing if there was none.
    pub status: Option<String>,
    /// QEMU's reason why it failed.
    #[serde(rename = "error-desc")]
    pub error: Option<String>,
    /// Milliseconds for which the guest stood still.
    pub downtime: Option<u64>,
    /// Milliseconds from its beginning to its end.
    #[serde(rename = "total-time")]
    pub total_time: Option<u64>,
}

impl Migration {
    /// State of the migration.
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
    /// Begins a migration to a URI in QEMU's form, such as `unix:PATH` or
    /// `tcp:HOST:PORT`. It goes on in the background.
    pub fn migrate(&mut self, uri: &str) -> Result<()> {
        self.execute("migrate", json!({ "uri": uri })).map(drop)
    }

    /// Asks for the state of the migration.
    pub fn migration(&mut self) -> Result<Migration> {
        self.query("query-migrate", Value::Null)
    }

    /// Ends the migration. The guest stays, unless it has just gone:
    /// [`Monitor::migration`] shows which.
    pub fn cancel_migration(&mut self) -> Result<()> {
        self.execute("migrate_cancel", Value::Null).map(drop)
    }
}
