// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bounds how fast the guest connects, and how fast connections arrive.
//!
//! A connect that is too early waits for its turn, in order, as behind a router that drops
//! SYNs above a rate; but it is not late by whole SYN timeouts. What has waited for too long
//! ends as it does there: with ETIMEDOUT. Connects that wait have a place among the
//! sockets, so those limit them. To another end of UDP it is as for a connect, but a datagram
//! that is too early is lost. Connections that arrive too early wait in the host's backlog.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::orders::Policy;

/// How long a connect waits for its turn at most.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A connect that waits.
pub struct Waiting {
    /// Tag of its events.
    pub tag: u64,
    /// Where it goes.
    pub to: SocketAddr,
    /// The address from which the guest wants it to go out.
    pub wanted: IpAddr,
    /// When it came.
    pub since: Instant,
}

/// Tokens that come in a second (0: any number), and that are there at once after a pause.
#[derive(Clone, Copy)]
struct Limit {
    rate: u32,
    burst: u32,
}

/// Parts of a token: as many as there are nanoseconds in a second, so that no time is rounded.
const TOKEN: u128 = 1_000_000_000;

/// A token bucket.
#[derive(Default)]
struct Bucket {
    /// Parts of tokens that were missing to a full one, and when. Nothing: it was never used.
    owed: Option<(u128, Instant)>,
}

impl Bucket {
    fn owed(&self, limit: Limit, now: Instant) -> u128 {
        let Some((owed, at)) = self.owed else {
            return 0;
        };
        // The limit may be another one since: no more is missing than to an empty one.
        let owed = owed.min(u128::from(limit.burst.max(1)) * TOKEN);
        let came = now.saturating_duration_since(at).as_nanos() * u128::from(limit.rate);
        owed.saturating_sub(came)
    }

    /// How long the next token is away; zero: there is one.
    fn missing(&self, limit: Limit, now: Instant) -> Duration {
        let most = u128::from(limit.burst.saturating_sub(1)) * TOKEN;
        let over = self.owed(limit, now).saturating_sub(most);
        match limit.rate {
            0 => Duration::ZERO,
            rate => Duration::from_nanos(over.div_ceil(rate.into()) as u64),
        }
    }

    /// Takes a token, if there is one.
    fn take(&mut self, limit: Limit, now: Instant) -> bool {
        if !self.missing(limit, now).is_zero() {
            return false;
        }
        if limit.rate != 0 {
            self.owed = Some((self.owed(limit, now) + TOKEN, now));
        }
        true
    }
}

impl Policy {
    fn outward(&self) -> Limit {
        Limit {
            rate: self.rate,
            burst: self.burst,
        }
    }

    fn inward(&self) -> Limit {
        Limit {
            rate: self.arrival_rate,
            burst: self.arrival_burst,
        }
    }
}

/// Tokens of both directions, and the connects that wait for one.
#[derive(Default)]
pub struct Rate {
    outward: Bucket,
    inward: Bucket,
    /// The first is the next.
    pub waiting: VecDeque<Waiting>,
    /// A datagram has got the last token: the next one is for a connect that waits.
    was_met: bool,
    /// A connection waits for its turn in the backlog of a listener, as far as is known: it
    /// may be gone, and its listener as well.
    is_awaited: bool,
    /// The next one that is taken has waited.
    is_delayed: bool,
}

impl Rate {
    /// Whether a connect may start now. If so, the next one has to be later.
    pub fn may_start(&mut self, policy: &Policy, now: Instant) -> bool {
        let may = self.outward.take(policy.outward(), now);
        self.was_met &= !may;
        may
    }

    /// Whether a datagram may go to another end now. Connects that wait get every other token:
    /// datagrams without end can not have all.
    pub fn may_meet(&mut self, policy: &Policy) -> bool {
        if self.was_met && !self.waiting.is_empty() {
            return false;
        }
        self.was_met = self.outward.take(policy.outward(), Instant::now());
        self.was_met
    }

    /// Whether a connection that has arrived may be taken now. If so, and one is, then
    /// [`Rate::note_arrival`] follows.
    pub fn may_arrive(&mut self, policy: &Policy) -> bool {
        let missing = self.inward.missing(policy.inward(), Instant::now());
        self.is_awaited |= !missing.is_zero();
        self.is_delayed |= !missing.is_zero();
        missing.is_zero()
    }

    /// A connection was taken. Whether it had to wait.
    pub fn note_arrival(&mut self, policy: &Policy) -> bool {
        self.inward.take(policy.inward(), Instant::now());
        std::mem::take(&mut self.is_delayed)
    }

    /// Whether it is the turn of a connection that waits in a backlog. It is so once: if
    /// there is one, and it has to wait on, [`Rate::may_arrive`] notes it again.
    pub fn take_turn(&mut self, policy: &Policy) -> bool {
        let missing = self.inward.missing(policy.inward(), Instant::now());
        missing.is_zero() && std::mem::take(&mut self.is_awaited)
    }

    /// The guest is gone, with all that waits.
    pub fn forget_all(&mut self) {
        self.waiting.clear();
        (self.is_awaited, self.is_delayed) = (false, false);
    }

    /// A connect is given up: it waits no more. So as many wait as there are sockets, at most.
    pub fn forget(&mut self, tag: u64) {
        self.waiting.retain(|one| one.tag != tag);
    }

    /// Milliseconds until the first of those that wait has its turn, or has waited for
    /// too long. Nothing: none waits.
    pub fn timeout(&self, policy: &Policy) -> Option<u16> {
        let now = Instant::now();
        let start = self.waiting.front().map(|first| {
            let left = (first.since + PATIENCE).saturating_duration_since(now);
            self.outward.missing(policy.outward(), now).min(left)
        });
        let arrival = self
            .is_awaited
            .then(|| self.inward.missing(policy.inward(), now));
        let wait = start.into_iter().chain(arrival).min()?;
        // Never less than that: it would be too early again.
        Some(wait.as_micros().div_ceil(1000).min(u128::from(u16::MAX)) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_one_by_one_up_to_a_burst() {
        let limit = Limit { rate: 10, burst: 3 };
        let (mut bucket, start) = (Bucket::default(), Instant::now());
        let mut take = |ms| {
            let now = start + Duration::from_millis(ms);
            (0..100).take_while(|_| bucket.take(limit, now)).count()
        };
        let taken = [0, 50, 99, 100, 199, 300, 5000].map(&mut take);
        assert_eq!(taken, [3, 0, 0, 1, 0, 2, 3]);
        assert!(!bucket.take(limit, start + Duration::from_millis(5099)));
        let missing = bucket.missing(limit, start + Duration::from_millis(5040));
        assert_eq!(missing, Duration::from_millis(60));
        let none = Limit { rate: 0, burst: 0 };
        assert!(bucket.take(none, start));
    }

    #[test]
    fn connects_that_wait_get_every_other_token() {
        let policy = Policy {
            rate: 1,
            burst: 5,
            ..Policy::default()
        };
        let mut rate = Rate::default();
        rate.waiting.push_back(Waiting {
            tag: 1,
            to: ([10, 0, 0, 1], 80).into(),
            wanted: IpAddr::from([0; 4]),
            since: Instant::now(),
        });
        assert!(rate.may_meet(&policy) && !rate.may_meet(&policy));
        assert!(rate.may_start(&policy, Instant::now()));
        assert!(rate.may_meet(&policy) && !rate.may_meet(&policy));
        rate.waiting.clear();
        assert!(rate.may_meet(&policy) && rate.may_meet(&policy));
        assert!(!rate.may_meet(&policy));
    }

    #[test]
    fn another_limit_counts_at_once() {
        let slow = Limit {
            rate: 1,
            burst: 100,
        };
        let (mut bucket, start) = (Bucket::default(), Instant::now());
        while bucket.take(slow, start) {}
        assert_eq!(bucket.missing(slow, start), Duration::from_secs(1));
        for limit in [Limit { rate: 10, ..slow }, Limit { rate: 10, burst: 2 }] {
            let soon = start + Duration::from_millis(100);
            assert_eq!(bucket.missing(limit, start), Duration::from_millis(100));
            assert!(bucket.missing(limit, soon).is_zero());
        }
    }
}
