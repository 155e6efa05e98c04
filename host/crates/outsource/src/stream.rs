// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection: a socket of the host, and a ring each way.
//!
//! Bytes of the guest's ring are sent from where they lie, and bytes of the network
//! are received to where the guest reads them. The end mark is FIN, both ways.
//!
//! DONE for the guest's ring is sent only when the network's direction has ended, too,
//! or the guest reads no more: it is the only message that can tell of a reset.

use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use hallway_abi::ring as abi;
use hallway_ring::{Receiver, Sender};
use nix::errno::Errno;

use crate::net;
use crate::options;
use hallway_endpoint::lines::Counts;
use hallway_endpoint::member::Peer;
use hallway_endpoint::message::{Handle, Message, Other, CARRIER};
use hallway_endpoint::socket as wire;

/// Bytes of one direction in one turn at most.
const TURN: usize = 256 << 10;
/// Bytes that one system call moves at most.
const CHUNK: usize = 64 << 10;

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The network has not answered yet.
    Connecting,
    /// The guest has not answered yet: this listener's connection has arrived, and its
    /// tag differs from that of a later one with the same number.
    Offered(u64),
    /// Both have.
    Open,
}

/// A connection.
pub struct Stream {
    /// Nothing: it is closed, and the guest has not said DONE yet.
    pub socket: Option<TcpStream>,
    /// How far it is.
    pub stage: Stage,
    /// The other end.
    pub remote: SocketAddr,
    /// Own endpoint.
    pub own: u32,
    /// Endpoint of the guest; 0 while it is not known.
    pub its: u32,
    /// The guest's ring; nothing before it is offered, and after DONE is sent.
    pub from_guest: Option<Receiver>,
    /// The own ring; nothing after the guest's DONE.
    pub to_guest: Option<Sender>,
    /// Memory of the own ring.
    pub handle: Handle,
    /// Its other memory, once it has grown.
    pub area: Option<Handle>,
    /// The socket may have bytes.
    pub is_readable: bool,
    /// The socket may have space.
    pub is_writable: bool,
    /// The socket may have an error.
    pub has_error: bool,
    /// FIN has arrived.
    pub is_received: bool,
    /// FIN is sent.
    pub is_sent: bool,
    /// When the guest left it: it reads no more, and what it has sent has an end. Until the kernel
    /// has sent all, it counts as one of the guest's sockets: a closed one would count among
    /// those of the whole host (`tcp_max_orphans`).
    pub left: Option<Instant>,
    /// The errno by which sending failed: from then on the kernel gives what has arrived, and
    /// then an end, which is no FIN.
    pub failed: Option<Errno>,
    /// An end, an error or urgent data has come, at which a read stops though there is
    /// more.
    pub stops_short: bool,
}

/// Why a connection cannot go on.
enum Failure {
    /// The socket failed.
    Socket(Errno),
    /// Bytes have arrived that the guest does not read any more.
    Unread,
    /// The guest broke the rules of a ring.
    Corrupt,
}

/// The most that one call moves.
fn bounded(budget: usize) -> u32 {
    budget.min(CHUNK) as u32
}

/// Sets the pending bit of the guest's endpoint. One doorbell is for all that a round does;
/// but where many bytes pass, the guest works on the first while the program moves the next.
fn ring(its: u32, count: usize, peer: &mut Peer) {
    peer.set_pending(its);
    if count >= CHUNK / 2 {
        peer.flush();
    }
}

/// Free bytes of the own ring that are worth a wake-up: not each byte that the guest reads.
fn worth_moving(ring: &Sender) -> u32 {
    ring.size() / 4
}

/// Has the own ring grow, which is full while the network may have more. False: it stays as
/// it is, and a guest that may wait for more than it holds knows.
fn grow(
    bytes: &mut Sender,
    area: &mut Option<Handle>,
    its: u32,
    others: u32,
    peer: &mut Peer,
) -> bool {
    if !peer.grows || area.is_some() {
        return false;
    }
    *area = peer.grow_ring(bytes, others);
    if area.is_none() && bytes.set_short() {
        peer.set_pending(its);
    }
    area.is_some()
}

impl Stream {
    /// One that has the own ring, and neither a socket nor the guest's ring yet.
    pub fn new(stage: Stage, remote: SocketAddr, to_guest: Sender, handle: Handle) -> Self {
        Self {
            socket: None,
            stage,
            remote,
            own: 0,
            its: 0,
            from_guest: None,
            to_guest: Some(to_guest),
            handle,
            area: None,
            is_readable: false,
            is_writable: false,
            has_error: false,
            is_received: false,
            is_sent: false,
            left: None,
            failed: None,
            stops_short: false,
        }
    }

    /// Moves bytes both ways. `others`: sockets that the guest may have besides. True: there may
    /// be more.
    pub fn pump(&mut self, others: u32, peer: &mut Peer, counts: &mut Counts) -> bool {
        if self.stage != Stage::Open || self.socket.is_none() {
            return false;
        }
        let served = self.serve_options(peer, counts);
        self.note_left();
        if self.has_sent_all() {
            self.close();
            return false;
        }
        let sent = served
            .and_then(|()| self.pump_to_network(peer, counts))
            .and_then(|more| self.take_error().map(|()| more));
        self.answer_question(peer);
        let moved = sent.and_then(|more| Ok(self.pump_to_guest(others, peer, counts)? || more));
        match moved {
            Ok(more) => {
                self.finish_sent(peer);
                more && self.socket.is_some()
            }
            Err(failure) => {
                self.fail(failure, peer, counts);
                false
            }
        }
    }

    /// A guest that has left it has no say any more: its other end may take nothing, for ever.
    fn note_left(&mut self) {
        let has_end = match &mut self.from_guest {
            Some(ring) => ring.is_ended(),
            None => true,
        };
        if self.left.is_none() && self.to_guest.is_none() && has_end {
            self.left = Some(Instant::now());
            if let Some(socket) = &self.socket {
                options::bound_sending(socket);
            }
        }
    }

    /// Whether the kernel has all that the guest sends, and the guest knows.
    fn has_sent_all(&self) -> bool {
        self.stage == Stage::Open && self.from_guest.is_none()
    }

    /// Sets the options that the guest has changed.
    fn serve_options(&mut self, peer: &mut Peer, counts: &mut Counts) -> Result<(), Failure> {
        let Some(ring) = &self.from_guest else {
            return Ok(());
        };
        let changed: Vec<_> = ring.take_options().collect();
        // The bytes that are there were mostly written before.
        if changed
            .iter()
            .any(|(number, _)| options::holds_bytes(*number))
        {
            self.pump_to_network(peer, counts)?;
        }
        let Some(socket) = &self.socket else {
            return Ok(());
        };
        for (number, value) in changed {
            // How long the kernel sends what is left is the host's choice.
            if self.left.is_none() || number != abi::OPTION_USER_TIMEOUT as usize {
                options::set(socket, number, value);
            }
        }
        Ok(())
    }

    /// Answers what the guest asks for, after what it has sent before.
    fn answer_question(&mut self, peer: &mut Peer) {
        let (Some(socket), Some(ring)) = (&self.socket, &mut self.from_guest) else {
            return;
        };
        if let Some(question) = ring.question() {
            let unacked = options::count_unacked(socket);
            ring.answer(question, unacked, &options::read_info(socket));
            peer.set_pending(self.its);
        }
    }

    fn pump_to_network(&mut self, peer: &mut Peer, counts: &mut Counts) -> Result<bool, Failure> {
        let (Some(socket), Some(bytes)) = (&self.socket, &mut self.from_guest) else {
            return Ok(false);
        };
        let mut budget = TURN;
        while self.is_writable && budget > 0 {
            let runs = bytes.used_runs(bounded(budget));
            if runs.is_empty() {
                break;
            }
            // A guest that sends on after a failure learns of it at once, as from TCP.
            if let Some(errno) = self.failed {
                return Err(Failure::Socket(errno));
            }
            let is_last = runs.len() == bytes.count_used() as usize;
            match wire::send(socket, &runs, is_last) {
                Ok(count) => {
                    if bytes.consume(count as u32) {
                        ring(self.its, count, peer);
                    }
                    counts.sent += count as u64;
                    budget -= count;
                }
                Err(Errno::EAGAIN) => self.is_writable = false,
                Err(Errno::EINTR) => {}
                Err(errno) if self.is_received => return Err(Failure::Socket(errno)),
                Err(errno) => {
                    // What arrived before can be read before the errno.
                    self.failed = Some(errno);
                    (self.is_readable, self.stops_short) = (true, true);
                    let lost = bytes.count_used();
                    if bytes.consume(lost) {
                        peer.set_pending(self.its);
                    }
                }
            }
        }
        if bytes.is_broken() {
            return Err(Failure::Corrupt);
        }
        if bytes.is_finished() && !self.is_sent {
            self.is_sent = true;
            // Where it fails, the connection is gone, and receiving says so.
            let _ = socket.shutdown(Shutdown::Write);
        }
        Ok(budget == 0)
    }

    /// Fails with an error that came after FIN: no read finds it, and the guest may send nothing.
    fn take_error(&mut self) -> Result<(), Failure> {
        let Some(socket) = self.socket.as_ref().filter(|_| self.is_received) else {
            return Ok(());
        };
        if !std::mem::take(&mut self.has_error) {
            return Ok(());
        }
        match net::take_error(socket) {
            0 => Ok(()),
            errno => Err(Failure::Socket(Errno::from_raw(errno))),
        }
    }

    fn pump_to_guest(
        &mut self,
        others: u32,
        peer: &mut Peer,
        counts: &mut Counts,
    ) -> Result<bool, Failure> {
        let Some(socket) = &self.socket else {
            return Ok(false);
        };
        let mut budget = TURN;
        while self.is_readable && !self.is_received && budget > 0 {
            let mut space = 0;
            let result = match &mut self.to_guest {
                Some(ring) => {
                    let runs = ring.free_runs(bounded(budget));
                    if ring.is_broken() {
                        return Err(Failure::Corrupt);
                    }
                    if runs.is_empty() {
                        if grow(ring, &mut self.area, self.its, others, peer) {
                            continue;
                        }
                        break;
                    }
                    space = runs.len();
                    wire::receive(socket, &runs)
                }
                None => match wire::peek(socket) {
                    Ok(true) => return Err(Failure::Unread),
                    Ok(false) => Ok(0),
                    Err(errno) => Err(errno),
                },
            };
            match (result, &mut self.to_guest) {
                (Ok(0), ring) => {
                    self.is_received = true;
                    if let Some(errno) = self.failed {
                        return Err(Failure::Socket(errno));
                    }
                    if ring.as_mut().is_some_and(Sender::end) {
                        peer.set_pending(self.its);
                    }
                }
                (Ok(count), Some(bytes)) => {
                    if bytes.publish(count as u32) {
                        ring(self.its, count, peer);
                    }
                    // A socket with more fills the space, and more has another event.
                    self.is_readable = self.stops_short || count == space;
                    counts.received += count as u64;
                    budget -= count;
                }
                (Ok(_), None) => return Err(Failure::Unread),
                (Err(Errno::EINTR), _) => {}
                (Err(Errno::EAGAIN), _) => match self.failed {
                    Some(errno) => return Err(Failure::Socket(errno)),
                    None => self.is_readable = false,
                },
                (Err(errno), _) => return Err(Failure::Socket(errno)),
            }
        }
        if self.to_guest.as_ref().is_some_and(Sender::is_broken) {
            return Err(Failure::Corrupt);
        }
        Ok(budget == 0)
    }

    /// Ends the connection once the guest has nothing left to do with it.
    fn finish_sent(&mut self, peer: &mut Peer) {
        if self.is_sent && (self.is_received || self.to_guest.is_none()) {
            if let Some(socket) = &self.socket {
                options::bound_sending(socket);
                net::finish(socket);
            }
            self.send_done(0, peer);
            self.close();
        }
    }

    /// Closes the socket once the kernel has sent all. Bytes that arrive then, and are not
    /// read, reset it, as TCP does with a socket that its program has closed.
    pub fn close(&mut self) {
        let Some(socket) = self.socket.take() else {
            return;
        };
        if !self.is_received && wire::peek(&socket) == Ok(true) {
            net::reset(socket);
        } else if options::is_sending(&socket) {
            self.socket = Some(socket);
        }
    }

    /// Whether the guest has left it and knows that all is sent, while the kernel still sends.
    pub fn is_closing(&self) -> bool {
        self.has_sent_all() && self.to_guest.is_none() && self.socket.is_some()
    }

    /// Whether the guest has left it that long ago.
    pub fn is_left_since(&self, time: Duration) -> bool {
        self.left.is_some_and(|since| since.elapsed() >= time)
    }

    /// The guest has departed. True: the kernel still sends what that has left.
    pub fn leave(&mut self) -> bool {
        let has_sent_all = self.has_sent_all();
        (self.from_guest, self.to_guest) = (None, None);
        if !has_sent_all {
            return false;
        }
        self.left.get_or_insert_with(Instant::now);
        self.close();
        self.is_closing()
    }

    fn fail(&mut self, failure: Failure, peer: &mut Peer, counts: &mut Counts) {
        let errno = match failure {
            Failure::Socket(Errno::EPIPE) => libc::ECONNRESET,
            Failure::Socket(errno) => errno as i32,
            Failure::Unread => libc::ECONNRESET,
            Failure::Corrupt => {
                counts.corrupt("an index or a mark of a ring");
                libc::ECONNRESET
            }
        };
        self.reset(errno, peer);
    }

    /// Resets the connection, and tells the guest. The own ring stays until the
    /// guest's DONE, without an end mark: that would be FIN to a reader before it learns
    /// of the errno.
    pub fn reset(&mut self, errno: i32, peer: &mut Peer) {
        if let Some(socket) = self.socket.take() {
            net::reset(socket);
        }
        self.send_done(errno, peer);
    }

    fn send_done(&mut self, errno: i32, peer: &mut Peer) {
        if let Some(ring) = self.from_guest.take() {
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
        let left = ring.finish(done.position);
        self.free_memory(peer);
        if left.is_none() && !was_broken {
            counts.corrupt("the position of a DONE");
        }
        if left != Some(0) || done.reason != 0 {
            // What TCP has been given it sends at once, before RST, as far as it may.
            let _ = self.pump_to_network(peer, counts);
            self.reset(0, peer);
        }
    }

    /// Frees the own ring, which the guest does not take or does not know.
    pub fn drop_ring(&mut self, peer: &mut Peer) {
        if self.to_guest.take().is_some() {
            self.free_memory(peer);
        }
    }

    fn free_memory(&mut self, peer: &mut Peer) {
        peer.free_ring(self.handle);
        if let Some(area) = self.area.take() {
            peer.free_ring(area);
        }
    }

    /// Whether both sides have ended it.
    pub fn is_over(&self) -> bool {
        self.socket.is_none() && self.from_guest.is_none() && self.to_guest.is_none()
    }

    /// Asks for doorbells of what it waits for. True: there is something already.
    pub fn arm(&mut self) -> bool {
        self.finds_news(Receiver::arm, |ring| ring.arm(1, worth_moving(ring)))
    }

    /// Whether there is something of what it waits for, now.
    pub fn has_news(&mut self) -> bool {
        self.finds_news(Receiver::has_news, |ring| {
            ring.count_space() >= worth_moving(ring) || ring.is_broken()
        })
    }

    /// Whether one of these finds something: bytes to send, or space for bytes that have come.
    fn finds_news(
        &mut self,
        has_bytes: impl Fn(&mut Receiver) -> bool,
        has_space: impl Fn(&mut Sender) -> bool,
    ) -> bool {
        if self.stage != Stage::Open || self.has_sent_all() || self.socket.is_none() {
            return false;
        }
        let mut has_news = false;
        if self.is_writable && !self.is_sent {
            has_news |= self.from_guest.as_mut().is_some_and(has_bytes);
        }
        if self.is_readable && !self.is_received {
            has_news |= self.to_guest.as_mut().is_none_or(has_space);
        }
        has_news
    }
}
