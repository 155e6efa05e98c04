// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Listeners that the host publishes: connections that arrive, and another policy.

use hallway_abi::message as abi;
use nix::errno::Errno;

use super::Guest;
use crate::net;
use crate::orders::Protocol;
use crate::policy;
use crate::stream::{Stage, Stream};
use crate::table::QUESTION;
use hallway_endpoint::message::{Message, Offer};
use hallway_endpoint::table::Queue;

/// Connections that one turn takes at most.
const TURN: usize = 32;

impl Guest<'_> {
    /// Takes connections that have arrived, and offers them. Those that have no place
    /// stay in the host's own backlog. The listeners take turns: clients of one do not keep
    /// those of another from what the policy grants to all.
    pub fn accept_in_turn(&mut self) {
        for own in self.table.listeners() {
            self.accept(own);
        }
    }

    fn accept(&mut self, own: u32) {
        let tag = self.table.tag(own);
        let tries = 0..TURN;
        let taken = tries.take_while(|_| self.accept_one(own, tag)).count();
        if taken > 0 {
            self.table.move_to_end(own);
        }
        if taken == TURN {
            self.table.push(Queue::Ready, own);
        }
    }

    fn accept_one(&mut self, own: u32, tag: u64) -> bool {
        let has_place = self.has_place();
        let others = self.count_others();
        let Some(listener) = self.table.listener(own) else {
            return false;
        };
        if !has_place || !listener.may_accept() {
            return false;
        }
        let (Some(socket), its) = (&listener.socket, listener.its) else {
            return false;
        };
        if !self.rate.may_arrive(self.policy) {
            return false;
        }
        let Some((ring, handle)) = self.peer.make_stream_ring(others) else {
            return false;
        };
        let (socket, remote) = match net::accept(socket) {
            Ok(accepted) => accepted,
            Err(errno) => {
                self.peer.free_ring(handle);
                match errno {
                    Errno::EAGAIN => listener.is_readable = false,
                    // It listens no more: an operator has ended it.
                    Errno::EINVAL => {
                        self.close_listener(own, libc::EADDRNOTAVAIL);
                        return false;
                    }
                    _ => {}
                }
                // Without descriptors or memory: again when there may be some. Other
                // errors are those of a connection that is gone already.
                return errno != Errno::EAGAIN && !net::is_short(errno);
            }
        };
        listener.unanswered += 1;
        self.counts.delayed += u64::from(self.rate.note_arrival(self.policy));
        let stream = Stream {
            socket: Some(socket),
            is_readable: true,
            is_writable: true,
            ..Stream::new(Stage::Offered(tag), remote, ring, handle)
        };
        match self.insert_stream(stream) {
            Ok(endpoint) => {
                self.offer(endpoint, remote, 0, its);
                true
            }
            Err(_) => {
                if let Some(listener) = self.table.listener(own) {
                    listener.unanswered -= 1;
                }
                false
            }
        }
    }

    /// Has connections taken that wait in a backlog, if it is their turn.
    pub fn take_waiting(&mut self) {
        if self.rate.take_turn(self.policy) {
            self.wake_listeners();
        }
    }

    /// Closes a listener, and says so once. The number stays until the guest's DONE.
    pub fn close_listener(&mut self, own: u32, errno: i32) {
        let Some(listener) = self.table.listener(own) else {
            return;
        };
        if listener.socket.take().is_some() {
            let done = Message::done(own, listener.its, listener.carrier, 0, errno);
            self.peer.send(&done);
        }
    }

    /// Asks the guest for its listeners: the policy may publish some that it refused.
    pub fn ask_for_listeners(&mut self) {
        self.peer.send(&Message::Offer(Offer {
            from: QUESTION,
            kind: abi::KIND_LISTENER,
            features: abi::FEATURE_GROWTH,
            ..Offer::default()
        }));
    }

    /// Closes the listeners that the policy does not publish any more, or elsewhere.
    pub fn check_listeners(&mut self) {
        for own in self.table.listeners() {
            let Some(listener) = self.table.listener(own) else {
                continue;
            };
            let (local, flags, at) = (listener.local, listener.flags, listener.at);
            let published = policy::find_published(self.policy, Protocol::Tcp, local, flags);
            if published != Some(at) {
                self.close_listener(own, libc::EACCES);
            }
        }
    }
}
