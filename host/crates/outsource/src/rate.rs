// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bounds how fast the guest connects.
//!
//! What is too early waits for its turn, in order, as behind a router that drops SYNs
//! above a rate; but it is not late by whole SYN timeouts. What has waited for too long
//! ends as it does there: with ETIMEDOUT. Connects that wait have a place among the
//! sockets, so those limit them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::guest::Guest;
use crate::net::{self, Route};
use crate::orders::Policy;
use crate::policy;

/// How long a connect waits for its turn at most.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Connects that one turn starts or ends at most.
const TURN: usize = 32;

/// A connect that waits.
pub struct Waiting {
    /// Of its events.
    pub tag: u64,
    /// Where it goes.
    pub route: Route,
    /// When it came.
    pub since: Instant,
}

/// A token bucket, and the connects that wait for a token.
#[derive(Default)]
pub struct Rate {
    /// When there are as many tokens again as a burst takes.
    full: Option<Instant>,
    /// The first is the next.
    pub waiting: VecDeque<Waiting>,
}

impl Rate {
    /// How long the next token is away; zero: there is one.
    fn missing(&self, policy: &Policy, now: Instant) -> Duration {
        let Some(every) = Duration::from_secs(1).checked_div(policy.rate) else {
            return Duration::ZERO;
        };
        let full = self.full.map_or(Duration::ZERO, |at| at - now.min(at));
        full.saturating_sub(every * policy.burst.saturating_sub(1))
    }

    /// Takes a token, if there is one.
    fn take(&mut self, policy: &Policy, now: Instant) -> bool {
        if !self.missing(policy, now).is_zero() {
            return false;
        }
        if let Some(every) = Duration::from_secs(1).checked_div(policy.rate) {
            self.full = Some(self.full.map_or(now, |at| at.max(now)) + every);
        }
        true
    }

    /// A connect is given up: it waits no more. So as many wait as there are sockets, at most.
    pub fn forget(&mut self, tag: u64) {
        self.waiting.retain(|one| one.tag != tag);
    }

    /// Milliseconds until the first of those that wait has its turn, or has waited for
    /// too long. Nothing: none waits.
    pub fn timeout(&self, policy: &Policy) -> Option<u16> {
        let (first, now) = (self.waiting.front()?, Instant::now());
        let left = (first.since + PATIENCE).saturating_duration_since(now);
        let wait = self.missing(policy, now).min(left);
        // Never less than that: it would be too early again.
        Some(wait.as_micros().div_ceil(1000) as u16)
    }
}

impl Guest<'_> {
    /// Whether a connect may start now. If so, the next one has to be later.
    pub fn may_start(&mut self) -> bool {
        self.rate.waiting.is_empty() && self.rate.take(self.policy, Instant::now())
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
            if !is_late && !self.rate.take(self.policy, now) {
                return;
            }
            let (Some(waiting), Some(own)) = (self.rate.waiting.pop_front(), own) else {
                continue;
            };
            let to = waiting.route.to;
            if is_late {
                self.counts.refuse("rate".into(), "connection");
                self.end_connect(own, libc::ETIMEDOUT);
            } else if let Err(cause) = policy::check_connect(self.policy, to, net::is_own) {
                // The policy has become another one.
                self.counts.refuse(cause, "connection");
                self.end_connect(own, libc::EACCES);
            } else {
                self.start(own, &waiting.route);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_one_by_one_up_to_a_burst() {
        let policy = Policy {
            rate: 10,
            burst: 3,
            ..Policy::default()
        };
        let (mut rate, start) = (Rate::default(), Instant::now());
        let mut take = |ms| {
            let now = start + Duration::from_millis(ms);
            (0..100).take_while(|_| rate.take(&policy, now)).count()
        };
        let taken = [0, 50, 99, 100, 199, 300, 5000].map(&mut take);
        assert_eq!(taken, [3, 0, 0, 1, 0, 2, 3]);
        assert!(!rate.take(&policy, start + Duration::from_millis(5099)));
        let missing = rate.missing(&policy, start + Duration::from_millis(5040));
        assert_eq!(missing, Duration::from_millis(60));
        assert!(rate.take(&Policy::default(), start));
    }
}
