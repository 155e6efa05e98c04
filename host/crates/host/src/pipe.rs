// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection: a Unix socket, and a ring each way.
//!
//! Bytes of the guest's ring are sent from where they lie, and bytes of the host are
//! received to where the guest reads them. The end mark is shutdown(SHUT_WR), both ways,
//! and DONE that the writer's peer reads no more. DONE takes its time: where the program of
//! the host has closed its socket, the guest's ring is truncated before the end mark is set.
//! A program of the guest that finds that mark then sends nothing into a void.

use std::os::fd::OwnedFd;

use hallway_endpoint::lines::Counts;
use hallway_endpoint::member::Peer;
use hallway_endpoint::message::{Handle, Message, Other, CARRIER};
use hallway_endpoint::socket as wire;
use hallway_ring::{Receiver, Sender};
use nix::errno::Errno;
use nix::sys::socket::Shutdown;

use crate::step::{Failure, Step};
use crate::{packets, unix};

/// Bytes of one direction in one turn at most.
const TURN: usize = 256 << 10;
/// Bytes that one system call moves at most.
const CHUNK: usize = 64 << 10;
/// Turns at most of a connection that the guest has ended.
const LAST_TURNS: usize = 64;

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The program of the host has not said where to yet.
    Greeting,
    /// The guest has not answered yet.
    Calling,
    /// Both are there.
    Open,
}

/// A connection.
pub struct Pipe {
    /// Nothing: it is closed, and the guest has not said DONE yet.
    pub socket: Option<OwnedFd>,
    /// Messages, not bytes.
    pub is_packets: bool,
    /// How far it is.
    pub stage: Stage,
    /// Beats since it was made; it stops at the largest.
    pub age: u8,
    /// The host's port.
    pub port: u32,
    /// Own endpoint.
    pub own: u32,
    /// Endpoint of the guest; 0 while it is not known.
    pub its: u32,
    /// The guest's ring; nothing before it is offered, and after DONE is sent.
    pub from_guest: Option<Receiver>,
    /// The own ring; nothing before it is offered, and after the guest's DONE.
    pub to_guest: Option<Sender>,
    /// Memory of the own ring.
    pub handle: Handle,
    /// The socket may have bytes.
    pub is_readable: bool,
    /// The socket may have space.
    pub is_writable: bool,
    /// The socket's end has arrived.
    pub is_received: bool,
    /// The program has closed its end before it got all.
    pub is_refused: bool,
    /// Free bytes that the next message of the host needs; of bytes 1.
    pub need: u32,
}

fn step(result: Result<usize, Errno>) -> Result<Step, Failure> {
    match result {
        Ok(count) => Ok(Step::Moved(count)),
        Err(Errno::EAGAIN | Errno::EINTR) => Ok(Step::Blocked),
        Err(Errno::EPIPE) => Ok(Step::Ended),
        Err(_) => Err(Failure::Socket),
    }
}

fn send_bytes(socket: &OwnedFd, ring: &mut Receiver) -> Result<Step, Failure> {
    let runs = ring.used_runs(CHUNK as u32);
    if runs.is_empty() {
        return Ok(Step::Empty);
    }
    step(wire::send(socket, &runs, true))
}

fn receive_bytes(socket: &OwnedFd, ring: &mut Sender) -> Result<Step, Failure> {
    let runs = ring.free_runs(CHUNK as u32);
    if runs.is_empty() {
        return Ok(Step::Empty);
    }
    match step(wire::receive(socket, &runs))? {
        Step::Moved(0) => Ok(Step::Ended),
        other => Ok(other),
    }
}

impl Pipe {
    /// One that a program of the host, or the guest, has begun.
    pub fn new(socket: OwnedFd, is_packets: bool, stage: Stage) -> Self {
        Self {
            socket: Some(socket),
            is_packets,
            stage,
            age: 0,
            port: 0,
            own: 0,
            its: 0,
            from_guest: None,
            to_guest: None,
            handle: Handle::default(),
            is_readable: true,
            is_writable: true,
            is_received: false,
            is_refused: false,
            need: 1,
        }
    }

    /// Moves bytes both ways. True: there may be more.
    pub fn pump(&mut self, peer: &mut Peer, counts: &mut Counts) -> bool {
        if self.stage != Stage::Open || self.socket.is_none() {
            return false;
        }
        let sent = self.pump_to_host(peer, counts);
        let moved = sent.and_then(|more| Ok(self.pump_to_guest(peer, counts)? || more));
        match moved {
            Ok(more) => {
                self.refuse_if_closed(peer);
                self.close_if_ended();
                more && self.socket.is_some()
            }
            Err(failure) => {
                match failure {
                    // A tunnel of packets has no reset: this is its end.
                    Failure::Socket
                        if self.is_packets && self.from_guest.is_none() && !self.is_refused =>
                    {
                        self.close(peer);
                        return false;
                    }
                    Failure::Socket | Failure::Reset => {}
                    Failure::TooLong => counts.refuse("length of a message".into(), "message"),
                    Failure::Corrupt => counts.corrupt("an index, a mark or a frame of a ring"),
                }
                self.reset(peer);
                false
            }
        }
    }

    fn pump_to_host(&mut self, peer: &mut Peer, counts: &mut Counts) -> Result<bool, Failure> {
        let (Some(socket), Some(ring)) = (&self.socket, &mut self.from_guest) else {
            return Ok(false);
        };
        let mut budget = TURN;
        while self.is_writable && budget > 0 {
            let step = match self.is_packets {
                true => packets::send(socket, ring),
                false => send_bytes(socket, ring),
            };
            match step? {
                Step::Moved(count) => {
                    if ring.consume(count as u32) {
                        peer.set_pending(self.its);
                    }
                    counts.sent += count as u64;
                    budget = budget.saturating_sub(count);
                }
                Step::Empty => break,
                Step::Blocked => self.is_writable = false,
                Step::Ended => {
                    self.is_refused = true;
                    break;
                }
            }
        }
        if ring.is_broken() {
            return Err(Failure::Corrupt);
        }
        if ring.is_finished() && ring.is_reset() {
            return Err(Failure::Reset);
        }
        if ring.is_finished() {
            unix::end(socket, Shutdown::Write);
        } else if !self.is_refused {
            return Ok(budget == 0);
        }
        self.send_done(0, peer);
        Ok(false)
    }

    fn pump_to_guest(&mut self, peer: &mut Peer, counts: &mut Counts) -> Result<bool, Failure> {
        let (Some(socket), Some(ring)) = (&self.socket, &mut self.to_guest) else {
            return Ok(false);
        };
        let mut budget = TURN;
        while self.is_readable && !self.is_received && budget > 0 {
            self.need = 1;
            let step = match self.is_packets {
                true => packets::receive(socket, ring, &mut self.need),
                false => receive_bytes(socket, ring),
            };
            match step? {
                Step::Moved(count) => {
                    if ring.publish(count as u32) {
                        peer.set_pending(self.its);
                    }
                    counts.received += count as u64;
                    budget = budget.saturating_sub(count);
                }
                Step::Empty => break,
                Step::Blocked => self.is_readable = false,
                Step::Ended => {
                    self.is_received = true;
                    if let (Some(from_guest), true) =
                        (&mut self.from_guest, unix::is_closed(socket))
                    {
                        from_guest.truncate();
                    }
                    if ring.end() {
                        peer.set_pending(self.its);
                    }
                }
            }
        }
        match ring.is_broken() {
            true => Err(Failure::Corrupt),
            false => Ok(budget == 0),
        }
    }

    /// Takes no more from the guest where no program of the host will read it.
    fn refuse_if_closed(&mut self, peer: &mut Peer) {
        if self.is_received && self.socket.as_ref().is_some_and(unix::is_closed) {
            self.send_done(0, peer);
        }
    }

    /// Closes the socket once nothing is left to do with it.
    fn close_if_ended(&mut self) {
        if self.from_guest.is_none() && (self.is_received || self.to_guest.is_none()) {
            self.socket = None;
        }
    }

    /// Closes the socket, which has ended.
    fn close(&mut self, peer: &mut Peer) {
        self.socket = None;
        if self.to_guest.as_mut().is_some_and(Sender::end) {
            peer.set_pending(self.its);
        }
    }

    /// Closes the socket, and tells the guest: by the own ring where DONE is sent already.
    pub fn reset(&mut self, peer: &mut Peer) {
        self.socket = None;
        if self.from_guest.is_some() {
            self.send_done(libc::ECONNRESET, peer);
        } else if self.to_guest.as_mut().is_some_and(Sender::reset) {
            peer.set_pending(self.its);
        }
    }

    fn send_done(&mut self, errno: i32, peer: &mut Peer) {
        if let Some(mut ring) = self.from_guest.take() {
            ring.truncate();
            let position = ring.position();
            peer.send(&Message::done(self.own, self.its, CARRIER, position, errno));
        }
    }

    /// The guest reads no more of the own ring.
    pub fn take_done(&mut self, done: &Other, peer: &mut Peer, counts: &mut Counts) {
        let Some(mut ring) = self.to_guest.take() else {
            return;
        };
        let was_broken = ring.is_broken();
        peer.free_ring(self.handle);
        if ring.finish(done.position).is_none() && !was_broken {
            counts.corrupt("the position of a DONE");
        }
        if done.reason != 0 || self.stage != Stage::Open {
            self.pump_rest(peer, counts);
            self.reset(peer);
            return;
        }
        if let Some(socket) = &self.socket {
            unix::end(socket, Shutdown::Read);
        }
        self.close_if_ended();
    }

    /// What the guest has sent before its end goes to the host, as far as that takes it.
    pub fn pump_rest(&mut self, peer: &mut Peer, counts: &mut Counts) {
        for _ in 0..LAST_TURNS {
            if !self.pump_to_host(peer, counts).unwrap_or(false) {
                break;
            }
        }
    }

    /// Frees the own ring, which the guest does not take or does not know.
    pub fn drop_ring(&mut self, peer: &mut Peer) {
        if self.to_guest.take().is_some() {
            peer.free_ring(self.handle);
        }
    }

    /// Whether both sides have ended it.
    pub fn is_over(&self) -> bool {
        self.socket.is_none() && self.from_guest.is_none() && self.to_guest.is_none()
    }

    /// Asks for doorbells of what it waits for. True: there is something already.
    pub fn arm(&mut self) -> bool {
        if self.stage != Stage::Open || self.socket.is_none() {
            return false;
        }
        let mut has_news = false;
        if self.is_writable {
            has_news |= self.from_guest.as_mut().is_some_and(Receiver::arm);
        }
        if self.is_readable && !self.is_received {
            // Not for each byte that the guest reads.
            has_news |= match &mut self.to_guest {
                Some(ring) => ring.arm(self.need, ring.size() / 4),
                None => false,
            };
        }
        has_news
    }
}
