// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Other ends of a UDP socket: those to which the guest has sent lately, or which have sent
//! to its published port.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// What is known of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// Whether the policy allows it.
    pub is_allowed: bool,
    /// The host's address to which it has sent, and from which answers go.
    pub at: Option<IpAddr>,
    /// The policy may be another one since, or the host's addresses may.
    is_outdated: bool,
}

/// The latest ones. The older half goes at once, where there are too many.
pub struct Ends {
    /// The most in each half.
    half: usize,
    /// When those that are allowed were last outdated.
    checked: Instant,
    new: HashMap<SocketAddr, Known>,
    old: HashMap<SocketAddr, Known>,
}

/// How long one is allowed without another look: its address may become the host's.
const FRESH: Duration = Duration::from_secs(5);
/// The most in each half of those of a socket without a published port.
const HALF: usize = 512;
/// The most in each half of those of a socket with one.
const HALF_PUBLISHED: usize = 2048;
/// The most in one half of all sockets with a published port, or without: these four take 220 MiB,
/// of the 256 that the process may have.
const HALVES: usize = 512 << 10;

fn count_half(is_published: bool, sockets: u32) -> usize {
    let most = match is_published {
        true => HALF_PUBLISHED,
        false => HALF,
    };
    most.min(HALVES / (sockets.max(1) as usize))
}

impl Ends {
    /// There are none yet. As many as `sockets` of that kind may have some.
    pub fn new(is_published: bool, sockets: u32) -> Self {
        Self {
            half: count_half(is_published, sockets),
            checked: Instant::now(),
            new: HashMap::new(),
            old: HashMap::new(),
        }
    }

    /// What is known of an end. It is one of the latest from now on.
    pub fn get(&mut self, end: SocketAddr) -> Option<Known> {
        if let Some(known) = self.new.get(&end) {
            return Some(*known);
        }
        let known = self.old.remove(&end)?;
        self.put(end, known);
        Some(known)
    }

    /// Whether the policy allows it, if that is known of the policy as it is.
    pub fn is_allowed(&mut self, end: SocketAddr) -> Option<bool> {
        if self.checked.elapsed() > FRESH {
            self.checked = Instant::now();
            self.all()
                .for_each(|known| known.is_outdated |= known.is_allowed);
        }
        let known = self.get(end)?;
        (!known.is_outdated).then_some(known.is_allowed)
    }

    /// Keeps what the policy says of an end.
    pub fn insert(&mut self, end: SocketAddr, is_allowed: bool) {
        let known = Known {
            is_allowed,
            at: None,
            is_outdated: false,
        };
        self.put(end, known);
    }

    /// An end has sent to this address of the host, with a published port.
    pub fn meet(&mut self, end: SocketAddr, at: Option<IpAddr>, is_allowed: bool) {
        let known = Known {
            is_allowed,
            at,
            is_outdated: false,
        };
        self.put(end, known);
    }

    fn put(&mut self, end: SocketAddr, known: Known) {
        if self.new.len() >= self.half && !self.new.contains_key(&end) {
            self.old = std::mem::take(&mut self.new);
        }
        self.new.insert(end, known);
    }

    /// The policy is another one. Answers that are on their way still arrive.
    pub fn outdate(&mut self, is_published: bool, sockets: u32) {
        self.half = count_half(is_published, sockets);
        self.all().for_each(|known| known.is_outdated = true);
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Known> {
        self.new.values_mut().chain(self.old.values_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(number: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], number))
    }

    #[test]
    fn the_latest_half_stays() {
        let mut ends = Ends::new(false, 512);
        for number in 1..=10_000 {
            ends.insert(end(number), number % 2 == 0);
            assert!(ends.new.len() <= HALF && ends.old.len() <= HALF);
            // Two are put in a round: this one, and the one that is looked for.
            let before = number.saturating_sub(HALF as u16 / 2 - 1).max(1);
            assert_eq!(ends.is_allowed(end(before)), Some(before % 2 == 0));
        }
        assert_eq!(ends.get(end(1)), None);
    }

    #[test]
    fn one_that_is_in_use_is_not_forgotten() {
        let mut ends = Ends::new(false, 512);
        ends.insert(end(1), true);
        for number in 2..=10_000 {
            ends.insert(end(number), false);
            assert!(ends.get(end(1)).is_some_and(|known| known.is_allowed));
        }
    }

    #[test]
    fn many_sockets_know_fewer_each() {
        let mut ends = Ends::new(false, 16384);
        for number in 1..=10_000 {
            ends.insert(end(number), true);
            assert!(ends.new.len() <= 32 && ends.old.len() <= 32);
        }
        assert!(ends.get(end(9985)).is_some());
    }

    #[test]
    fn what_is_allowed_is_looked_up_again_after_a_while() {
        let mut ends = Ends::new(false, 512);
        ends.insert(end(1), true);
        ends.insert(end(2), false);
        assert_eq!(ends.is_allowed(end(1)), Some(true));
        ends.checked -= FRESH;
        assert_eq!(ends.is_allowed(end(1)), None);
        assert_eq!(ends.is_allowed(end(2)), Some(false));
        ends.insert(end(1), true);
        assert_eq!(ends.is_allowed(end(1)), Some(true));
    }

    #[test]
    fn another_policy_outdates_what_is_known() {
        let mut ends = Ends::new(false, 512);
        ends.insert(end(1), true);
        ends.outdate(false, 512);
        assert_eq!(ends.is_allowed(end(1)), None);
        assert!(ends.get(end(1)).is_some_and(|known| known.is_allowed));
    }
}
