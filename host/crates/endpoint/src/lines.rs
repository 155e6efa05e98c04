// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts what the guest is refused, and bounds the lines of the log about it.

use std::collections::BTreeMap;

/// Lines between two beats at most.
const MAX: u32 = 5;

/// What happened to the guest.
#[derive(Default)]
pub struct Counts {
    /// Bytes sent to the network.
    pub sent: u64,
    /// Bytes received from the network.
    pub received: u64,
    /// How often the guest broke the protocol.
    pub corrupt: u64,
    /// How often a rule, or a cause, refused something. The causes are few, and the
    /// rules are the policy's.
    pub refused: BTreeMap<String, u64>,
    /// Connections that had to wait for their turn.
    pub delayed: u64,
    lines: u32,
}

impl Counts {
    /// Counts a refusal, and logs it.
    pub fn refuse(&mut self, cause: String, what: &str) {
        if self.may_log() {
            tracing::info!("{what} is refused: {cause}");
        }
        *self.refused.entry(cause).or_default() += 1;
    }

    /// Counts a breach of the protocol, and logs it.
    pub fn corrupt(&mut self, what: &str) {
        if self.may_log() {
            tracing::warn!("the guest breaks the protocol: {what}");
        }
        self.corrupt += 1;
    }

    /// Whether one more line about the guest may be logged.
    pub fn may_log(&mut self) -> bool {
        self.lines = self.lines.saturating_add(1);
        self.lines <= MAX
    }

    /// Allows lines again, and says how many were left out.
    pub fn beat(&mut self) {
        let left = std::mem::take(&mut self.lines).saturating_sub(MAX);
        if left > 0 {
            tracing::info!("{left} more lines about the guest are left out");
        }
    }
}
