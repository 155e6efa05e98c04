// SPDX-License-Identifier: Apache-2.0 OR MIT
//! UDP sockets: how they are opened, and another policy.

use std::cell::RefCell;
use std::rc::Rc;

use hallway_abi::message;
use nix::errno::Errno;

use super::Guest;
use crate::datagrams::{open_published, Datagrams, Published, Sockets, Turn};
use crate::known::Ends;
use crate::orders::{Policy, Protocol};
use crate::policy;
use crate::table::Entry;
use hallway_endpoint::member::RING_DATAGRAMS;
use hallway_endpoint::message::{Message, Offer};
use hallway_endpoint::table::Queue;

/// Turns that a socket which has ended gets at once, at most: a ring of short records.
const LAST_TURNS: usize = 64;

/// The most UDP sockets that the guest may have with a published port, or without.
fn count_alike(policy: &Policy, is_published: bool) -> u32 {
    match is_published {
        true => policy.listeners,
        false => policy.sockets,
    }
}

impl Guest<'_> {
    /// The guest asks for a UDP socket.
    pub fn open_datagrams(&mut self, offer: &Offer) -> Result<(), i32> {
        if offer.answers != 0 {
            return Err(libc::EINVAL);
        }
        let published = self.find_published(offer)?;
        if !self.has_place() {
            return Err(self.refuse("limit of sockets", "UDP socket"));
        }
        let sockets = match &published {
            Some(published) => self.open_port(published).map_err(|errno| {
                let has_port =
                    |one: &Published| one.at == published.at && one.local != published.local;
                let has_port =
                    |other: &mut Datagrams| other.published.as_ref().is_some_and(has_port);
                let taken = self.table.datagrams().any(has_port);
                let what = format!("UDP socket at {}", published.at.0);
                self.explain_port(errno, taken, &what)
            })?,
            None => [None, None],
        };
        let Some(from_guest) = self.peer.take_up(offer.handle, offer.ring_size) else {
            self.counts.corrupt("an OFFER without a ring");
            return Err(libc::EINVAL);
        };
        let Some((to_guest, handle)) = self.peer.make_ring(RING_DATAGRAMS, self.count_others())
        else {
            return Err(self.refuse("memory", "UDP socket"));
        };
        let ring_size = to_guest.size();
        let ends = self.find_ends(published.as_ref());
        let rings = (from_guest, to_guest, handle);
        let datagrams = Datagrams::new(offer.from, sockets, rings, ends, published);
        let entry = Entry::Datagrams(Box::new(datagrams));
        let Some((own, tag)) = self.table.insert(entry) else {
            self.peer.free_ring(handle);
            return Err(libc::ENOBUFS);
        };
        if let Some(Entry::Datagrams(datagrams)) = self.table.get(own) {
            if let Err(errno) = datagrams.set_place(own, tag, self.poller) {
                self.table.remove(own);
                self.peer.free_ring(handle);
                return Err(self.explain(errno, "UDP socket"));
            }
        }
        self.peer.send(&Message::Offer(Offer {
            from: own,
            kind: message::KIND_DATAGRAM,
            answers: offer.from,
            ring_size,
            handle,
            ..Offer::default()
        }));
        self.table.push(Queue::Ready, own);
        Ok(())
    }

    /// Opens the sockets of a published port. A program that closes a socket and binds another
    /// gets the port, though its last datagrams may not have been sent yet.
    fn open_port(&mut self, published: &Published) -> Result<Sockets, Errno> {
        let result = open_published(published);
        if !matches!(result, Err(Errno::EADDRINUSE)) {
            return result;
        }
        let port = published.at.0.port();
        let ended = self.table.find_datagrams(|one| one.has_ended_at(port));
        for own in ended {
            for _ in 0..LAST_TURNS {
                if !self.pump_datagrams(own) {
                    break;
                }
            }
            self.remove_if_over(own);
        }
        open_published(published)
    }

    /// Where the host publishes the port that the guest's OFFER names, if it names one.
    fn find_published(&mut self, offer: &Offer) -> Result<Option<Published>, i32> {
        let (local, flags) = (offer.local, offer.flags);
        if local.port() == 0 {
            return Ok(None);
        }
        let Some(at) = policy::find_published(self.policy, Protocol::Udp, local, flags) else {
            return Err(self.refuse("not published", &format!("UDP socket at {local}")));
        };
        if self.count_published() >= self.policy.listeners {
            return Err(self.refuse("limit of listeners", "UDP socket"));
        }
        Ok(Some(Published { local, flags, at }))
    }

    /// What knows the ends of a socket: the guest delivers a datagram to any of those that
    /// share its port, and each of them may answer.
    fn find_ends(&mut self, published: Option<&Published>) -> Rc<RefCell<Ends>> {
        let is_it = |other: &&mut Datagrams| match (&other.published, published) {
            (Some(one), Some(two)) => one.at == two.at,
            _ => false,
        };
        match self.table.datagrams().find(is_it) {
            Some(other) => other.ends.clone(),
            None => {
                let is_published = published.is_some();
                let ends = Ends::new(is_published, count_alike(self.policy, is_published));
                Rc::new(RefCell::new(ends))
            }
        }
    }

    /// The policy has changed. Closes each socket with a port that is no longer published, or is
    /// published elsewhere. A socket without one is opened again if its source address has changed.
    /// Verdicts about ends are outdated.
    pub fn check_datagrams(&mut self, before: &Policy) {
        let mut ready = Vec::new();
        for datagrams in self.table.datagrams() {
            let is_published = datagrams.published.is_some();
            let alike = count_alike(self.policy, is_published);
            datagrams.ends.borrow_mut().outdate(is_published, alike);
            let Some(Published { local, flags, at }) = datagrams.published else {
                if datagrams.forget_sources(before, self.policy) {
                    ready.push(datagrams.own);
                }
                continue;
            };
            let now = policy::find_published(self.policy, Protocol::Udp, local, flags);
            if now != Some(at) {
                datagrams.close(libc::EACCES, self.peer);
            }
        }
        for own in ready {
            self.table.push(Queue::Ready, own);
        }
    }

    /// Gives a UDP socket a turn. True: there may be more to do.
    pub fn pump_datagrams(&mut self, own: u32) -> bool {
        let mut turn = Turn {
            peer: self.peer,
            policy: self.policy,
            counts: self.counts,
            poller: self.poller,
            rate: self.rate,
        };
        match self.table.get(own) {
            Some(Entry::Datagrams(datagrams)) => datagrams.pump(&mut turn),
            _ => false,
        }
    }
}
