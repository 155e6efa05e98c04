// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts what the guest is refused, and bounds the lines of the log about it.

use std::collections::BTreeMap;

/// Lines between two beats at most.
const MAX: u32 = 5;
/// Causes that are counted each by itself, at most: those of earlier policies stay, and all
/// have to fit into a report.
const CAUSES_MAX: usize = 1000;
/// All others.
const OTHERS: &str = "other causes";

/// What happened to the guest.
#[derive(Default)]
pub struct Counts {
    /// Bytes sent to the network.
    pub sent: u64,
    /// Bytes received from the network.
    pub received: u64,
    /// How often the guest broke the protocol.
    pub corrupt: u64,
    /// How often a rule, or a cause, refused something.
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
        let is_own = self.refused.len() < CAUSES_MAX || self.refused.contains_key(&cause);
        let cause = if is_own { cause } else { OTHERS.into() };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::orders::{Report, PACKET_MAX};

    #[test]
    fn the_causes_of_many_policies_fit_into_a_report() {
        let mut counts = Counts::default();
        for number in 0..70_000 {
            let address = "1111:2222:3333:4444:5555:6666:7777:8888/128";
            let cause = format!("!udp/[{address}]:{:05}-{number:05}", number / 10);
            counts.refuse(cause, "connection");
        }
        let total: u64 = counts.refused.values().sum();
        assert_eq!(total, 70_000);
        assert_eq!(counts.refused[OTHERS], 69_000);
        let most = |cause: &String| (cause.clone(), u64::MAX);
        let report = Report {
            refused: counts.refused.keys().map(most).collect(),
            ..Report::default()
        };
        assert!(serde_json::to_vec(&report).unwrap().len() < PACKET_MAX - 4096);
    }
}
