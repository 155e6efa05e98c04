// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Places for commands to QEMUs: a bounded number of them.
//!
//! libvirt waits for the answer of a QEMU without a limit, and nothing calls a request back.
//! libvirtd works on 5 requests of a client at a time (max_client_requests) and reads no
//! more meanwhile, not even that the client lives. It has 20 threads for requests of all
//! clients (max_workers). So a QEMU that hangs has one request at most, a connection has
//! fewer than libvirtd works on, and all connections fewer than libvirtd has threads.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{bail, Result};

/// Connections with libvirtd. Another one is opened where the first have no place.
const CONNECTIONS: usize = 3;
/// Commands on one connection at a time; what libvirtd works on besides is for lookups.
const COMMANDS: usize = 4;

/// The places of all connections.
pub struct Places {
    taken: Mutex<Taken>,
    freed: Condvar,
}

struct Taken {
    /// On each connection.
    commands: [usize; CONNECTIONS],
    /// UUIDs of domains that have a command under way.
    domains: BTreeSet<String>,
}

/// The place of one command, from before it is sent until its answer.
pub struct Place<'a> {
    places: &'a Places,
    connection: usize,
    domain: &'a str,
}

impl Places {
    /// All of them free.
    pub const fn new() -> Self {
        Self {
            taken: Mutex::new(Taken {
                commands: [0; CONNECTIONS],
                domains: BTreeSet::new(),
            }),
            freed: Condvar::new(),
        }
    }

    /// The first connection of those with the most places.
    pub fn emptiest(&self) -> usize {
        let taken = self.lock();
        let all = 0..CONNECTIONS;
        all.min_by_key(|number| taken.commands[*number])
            .unwrap_or(0)
    }

    /// Takes a place for a command to the QEMU of a domain, and waits for it up to `limit`:
    /// other commands end at once, unless a QEMU hangs.
    pub fn take<'a>(
        &'a self,
        connection: usize,
        domain: &'a str,
        limit: Duration,
    ) -> Result<Place<'a>> {
        let lacks = |taken: &mut Taken| {
            taken.domains.contains(domain) || taken.commands[connection] >= COMMANDS
        };
        let waited = self.freed.wait_timeout_while(self.lock(), limit, lacks);
        let (mut taken, end) = waited.unwrap_or_else(PoisonError::into_inner);
        if end.timed_out() && taken.domains.contains(domain) {
            bail!("QEMU does not answer a command of before: it gets no other until it does");
        }
        if end.timed_out() {
            bail!(
                "{COMMANDS} other QEMUs of libvirt do not answer, and no more commands may wait \
                 on that connection"
            );
        }
        taken.commands[connection] += 1;
        taken.domains.insert(domain.into());
        Ok(Place {
            places: self,
            connection,
            domain,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        taken.commands[self.connection] -= 1;
        taken.domains.remove(self.domain);
        self.places.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_WAIT: Duration = Duration::ZERO;

    fn refusal(places: &Places, connection: usize, domain: &str) -> String {
        let place = places.take(connection, domain, NO_WAIT);
        place.err().expect("no place").to_string()
    }

    #[test]
    fn a_qemu_that_does_not_answer_gets_no_other_command() {
        let places = Places::new();
        let hangs = places.take(0, "a", NO_WAIT).unwrap();
        for connection in [0, 1] {
            let said = refusal(&places, connection, "a");
            assert!(said.contains("gets no other until it does"), "{said}");
        }
        places.take(0, "b", NO_WAIT).unwrap();
        drop(hangs);
        places.take(0, "a", NO_WAIT).unwrap();
    }

    #[test]
    fn qemus_that_hang_leave_places_on_another_connection() {
        let places = Places::new();
        let names: Vec<String> = (0..COMMANDS).map(|number| number.to_string()).collect();
        let take = |name| places.take(places.emptiest(), name, NO_WAIT).unwrap();
        // The rest of the first connection is for lookups.
        let on_first = names
            .iter()
            .map(|name| places.take(0, name, NO_WAIT).unwrap());
        let hang: Vec<_> = on_first.collect();
        let said = refusal(&places, 0, "a");
        assert!(
            said.contains("4 other QEMUs of libvirt do not answer"),
            "{said}"
        );
        let others = [take("a"), take("b")];
        assert_eq!(others.each_ref().map(|place| place.connection), [1, 2]);
        drop((hang, others));
        assert_eq!(places.emptiest(), 0);
    }

    #[test]
    fn a_command_waits_for_a_place() {
        let places = Places::new();
        let before = places.take(0, "a", NO_WAIT).unwrap();
        std::thread::scope(|scope| {
            let after = scope.spawn(|| places.take(0, "a", Duration::from_secs(60)).is_ok());
            drop(before);
            assert!(after.join().unwrap());
        });
    }
}
