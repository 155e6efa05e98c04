// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest, with all that is executed for it.

mod connects;
mod datagrams;
mod listeners;

use nix::sys::epoll::EpollFlags;

use crate::options::LAST_TIMEOUT;
use crate::orders::Policy;
use crate::rate::Rate;
use crate::stream::{Stage, Stream};
use crate::table::{Entry, Table};
use hallway_endpoint::lines::Counts;
use hallway_endpoint::member::Peer;
use hallway_endpoint::poller::Poller;
use hallway_endpoint::table::Queue;

/// Connections that are looked at in each round while the program spins: those that ran dry
/// last. Others ask for a doorbell at once.
const WATCHED: usize = 64;

/// What the work for a guest needs. It is put together for each turn.
pub struct Guest<'a> {
    /// The guest as a member.
    pub peer: &'a mut Peer,
    /// Its sockets.
    pub table: &'a mut Table,
    /// What it may do.
    pub policy: &'a Policy,
    /// How fast it connects.
    pub rate: &'a mut Rate,
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
        let is_ended = is_error || flags.contains(EpollFlags::EPOLLRDHUP);
        let is_in = is_ended || flags.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLPRI);
        let is_out = is_error || flags.contains(EpollFlags::EPOLLOUT);
        match self.table.get(own) {
            Some(Entry::Listener(listener)) => listener.is_readable |= is_in,
            Some(Entry::Stream(stream)) => {
                stream.is_readable |= is_in;
                stream.stops_short |= is_ended || flags.contains(EpollFlags::EPOLLPRI);
                stream.is_writable |= is_out;
                stream.has_error |= flags.contains(EpollFlags::EPOLLERR);
                if stream.stage == Stage::Connecting {
                    if is_out {
                        self.finish_connect(own);
                    }
                    return;
                }
            }
            Some(Entry::Datagrams(datagrams)) => {
                datagrams.take_event(is_in, is_out, is_error, self.poller);
            }
            None => {}
        }
        self.table.push(Queue::Ready, own);
    }

    /// Gives each entry that has work a turn. `is_spinning`: it is called again at once.
    pub fn work(&mut self, is_spinning: bool) {
        self.start_waiting();
        self.take_waiting();
        let mut may_accept = false;
        for own in self.table.take(Queue::Ready) {
            let others = self.count_places();
            match self.table.get(own) {
                Some(Entry::Listener(_)) => may_accept = true,
                Some(Entry::Stream(stream)) => {
                    let queue = match stream.pump(others, self.peer, self.counts) {
                        true => Queue::Ready,
                        false => Queue::Dry,
                    };
                    if stream.is_closing() {
                        self.table.note_closing(own);
                    }
                    self.table.push(queue, own);
                    self.remove_if_over(own);
                }
                Some(Entry::Datagrams(_)) => {
                    let queue = match self.pump_datagrams(own) {
                        true => Queue::Ready,
                        false => Queue::Dry,
                    };
                    self.table.push(queue, own);
                    self.remove_if_over(own);
                }
                None => {}
            }
        }
        if may_accept {
            self.accept_in_turn();
        }
        let dry = self.table.take(Queue::Dry);
        let first = dry.len().saturating_sub(WATCHED);
        for (at, own) in dry.into_iter().enumerate() {
            let is_watched = is_spinning && at >= first;
            let queue = match self.table.get(own) {
                Some(Entry::Stream(stream)) if is_watched => match stream.has_news() {
                    true => Some(Queue::Ready),
                    false => Some(Queue::Dry),
                },
                Some(Entry::Stream(stream)) => stream.arm().then_some(Queue::Ready),
                Some(Entry::Datagrams(datagrams)) => datagrams.arm().then_some(Queue::Ready),
                _ => None,
            };
            if let Some(queue) = queue {
                self.table.push(queue, own);
            }
        }
        if std::mem::take(&mut self.table.is_freed) {
            self.wake_listeners();
        }
        self.peer.flush();
    }

    /// Where there is no place left, connections give theirs that the guest has left too long ago:
    /// their other ends may take a byte at a time, for ever.
    pub fn make_place(&mut self) {
        if self.has_place() {
            return;
        }
        let is_late = |entry: &mut Entry| match entry {
            Entry::Stream(stream) => stream.is_left_since(LAST_TIMEOUT),
            _ => false,
        };
        for own in self.table.find_all(is_late) {
            if let Some(stream) = self.table.stream(own) {
                stream.reset(libc::ETIMEDOUT, self.peer);
            }
            self.remove_if_over(own);
        }
    }

    /// There may be place again for connections that wait.
    pub fn wake_listeners(&mut self) {
        for own in self.table.listeners() {
            if self.table.listener(own).is_some_and(|one| one.may_accept()) {
                self.table.push(Queue::Ready, own);
            }
        }
    }
}

/// Resets all connections, and closes all listeners. The connections that the guest had ended
/// before go on to send.
pub fn reset_all(table: &mut Table) {
    for own in table.find_all(|_| true) {
        match table.stream(own).is_some_and(Stream::leave) {
            true => table.note_closing(own),
            false => drop(table.remove(own)),
        }
    }
    // Without a guest nothing has work.
    table.take(Queue::Ready);
    table.take(Queue::Dry);
}
