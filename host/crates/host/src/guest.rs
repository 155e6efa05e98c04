// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest, with all of its connections.

use hallway_endpoint::lines::Counts;
use hallway_endpoint::member::Peer;
use hallway_endpoint::poller::Poller;
use hallway_endpoint::table::{Queue, Table};
use nix::sys::epoll::EpollFlags;

use crate::pipe::{Pipe, Stage};
use crate::{unix, Policy};

/// What the work for a guest needs. It is put together for each turn.
pub struct Guest<'a> {
    /// The guest as a member.
    pub peer: &'a mut Peer,
    /// Its connections.
    pub table: &'a mut Table<Pipe>,
    /// The next port of the host that a connection gets.
    pub next_port: &'a mut u32,
    /// What it may do.
    pub policy: &'a Policy,
    /// What it did.
    pub counts: &'a mut Counts,
    /// Watches the sockets.
    pub poller: &'a Poller,
}

impl Guest<'_> {
    /// The kernel reports something of a socket.
    pub fn take_event(&mut self, tag: u64, flags: EpollFlags) {
        let Some(own) = self.table.find(tag) else {
            return;
        };
        let is_error = flags.intersects(EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP);
        if let Some(pipe) = self.table.get(own) {
            let input = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP;
            pipe.is_readable |= is_error || flags.intersects(input);
            pipe.is_writable |= is_error || flags.contains(EpollFlags::EPOLLOUT);
        }
        self.table.push(Queue::Ready, own);
    }

    /// Gives each connection that has work a turn.
    pub fn work(&mut self) {
        for own in self.table.take(Queue::Ready) {
            let Some(pipe) = self.table.get(own) else {
                continue;
            };
            if pipe.stage == Stage::Greeting {
                self.greet(own);
            } else {
                let queue = match pipe.pump(self.peer, self.counts) {
                    true => Queue::Ready,
                    false => Queue::Dry,
                };
                self.table.push(queue, own);
            }
            self.remove_if_over(own);
        }
        for own in self.table.take(Queue::Dry) {
            if self.table.get(own).is_some_and(Pipe::arm) {
                self.table.push(Queue::Ready, own);
            }
        }
        self.peer.flush();
    }

    /// Forgets a connection that both sides have ended.
    pub fn remove_if_over(&mut self, own: u32) {
        if self.table.get(own).is_some_and(|pipe| pipe.is_over()) {
            self.table.remove(own);
        }
    }

    /// Whether there is a place for one more connection, or one that has to be given up for it.
    /// If not, that is counted.
    pub fn may_enter(&mut self) -> bool {
        let is_greeting = |pipe: &Pipe| pipe.stage == Stage::Greeting;
        let may_enter = self.has_place() || self.table.position(is_greeting).is_some();
        if !may_enter {
            self.counts.refuse("limit of sockets".into(), "connection");
        }
        may_enter
    }

    fn has_place(&self) -> bool {
        self.table.count() < self.policy.sockets
    }

    /// Takes a connection up, and watches its socket. Nothing: there is no place.
    pub fn enter(&mut self, pipe: Pipe) -> Option<u32> {
        if !self.may_enter() {
            return None;
        }
        if !self.has_place() {
            self.make_place();
        }
        let (own, tag) = self.table.insert(pipe)?;
        let pipe = self.table.get(own)?;
        pipe.own = own;
        if let (Some(socket), true) = (&pipe.socket, pipe.is_packets) {
            unix::fit_messages(socket);
        }
        let is_watched = match &pipe.socket {
            Some(socket) => self.poller.watch_edges(socket, tag).is_ok(),
            None => false,
        };
        if !is_watched {
            self.table.remove(own);
            return None;
        }
        self.table.push(Queue::Ready, own);
        Some(own)
    }

    /// The guest has departed: what it has sent goes to the host, and no more.
    pub fn depart(&mut self) {
        for pipe in self.table.entries() {
            pipe.pump_rest(self.peer, self.counts);
        }
    }
}
