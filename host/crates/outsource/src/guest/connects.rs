// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connects that wait for their turn.

use std::time::Instant;

use super::Guest;
use crate::orders::Protocol;
use crate::rate::PATIENCE;
use crate::{net, policy};

/// Connects that one turn starts or ends at most.
const TURN: usize = 32;

impl Guest<'_> {
    /// Whether a connect may start now. If so, the next one has to be later.
    pub fn may_start(&mut self) -> bool {
        self.rate.waiting.is_empty() && self.rate.may_start(self.policy, Instant::now())
    }

    /// Starts the connects whose turn it is, and ends those that have waited for too
    /// long.
    pub fn start_waiting(&mut self) {
        for _ in 0..TURN {
            let now = Instant::now();
            let Some(first) = self.rate.waiting.front() else {
                return;
            };
            let is_late = now >= first.since + PATIENCE;
            let own = self.table.find(first.tag);
            if !is_late && !self.rate.may_start(self.policy, now) {
                return;
            }
            let (Some(waiting), Some(own)) = (self.rate.waiting.pop_front(), own) else {
                continue;
            };
            let to = waiting.route.to;
            if is_late {
                self.counts.refuse("rate".into(), "connection");
                self.end_connect(own, libc::ETIMEDOUT);
            } else if let Err(cause) =
                policy::check_connect(self.policy, Protocol::Tcp, to, net::is_own)
            {
                // The policy has become another one.
                let errno = self.refuse(cause, "connection");
                self.end_connect(own, errno);
            } else {
                self.start(own, &waiting.route);
            }
        }
    }
}
