// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A UDP socket of the guest: a socket of the host for each family, and a ring each way.
//!
//! Each datagram is sent from where it lies in the guest's ring, if the policy allows its
//! destination; else it goes back. Only answers are handed on: what comes from an address
//! and port to which the guest has sent.
//!
//! A socket with a published port has its host's sockets from the beginning. All that comes
//! is handed on, and answers alone are sent.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use hallway_abi::{datagram as abi, message};
use hallway_ring::{Receiver, Runs, Sender};
use nix::errno::Errno;

use crate::known::Ends;
use crate::orders::{Policy, Protocol};
use crate::rate::Rate;
use crate::record::{self, Corrupt, Error, Head, HEAD};
use crate::udp;
use crate::{net, policy};
use hallway_endpoint::lines::Counts;
use hallway_endpoint::member::Peer;
use hallway_endpoint::message::{Handle, Message, Other, CARRIER};
use hallway_endpoint::poller::Poller;

/// Records of one direction in one turn at most.
const TURN: usize = 64;
/// Bytes of one direction after which a turn ends.
const TURN_BYTES: usize = 256 << 10;
/// Space for the longest record.
const LONGEST: usize = (HEAD + abi::DATAGRAM_MAX as usize).next_multiple_of(8);

/// A socket of the host.
pub struct Socket {
    fd: OwnedFd,
    is_readable: bool,
    is_writable: bool,
    has_errors: bool,
    /// `IP_MTU_DISCOVER` of it; nothing: the default.
    discover: Option<u8>,
}

/// Sockets of IPv4 and IPv6.
pub type Sockets = [Option<Socket>; 2];

/// Why a socket has a published port.
#[derive(Debug, Clone, Copy)]
pub struct Published {
    /// Local address of the guest's OFFER.
    pub local: SocketAddr,
    /// Flags of the guest's OFFER: `SOCKET_*`.
    pub flags: u32,
    /// Where it is on the host, and whether it has no IPv4 there.
    pub at: (SocketAddr, bool),
}

/// A UDP socket of the guest.
pub struct Datagrams {
    /// They are there from the first datagram on.
    sockets: Sockets,
    /// Own endpoint.
    pub own: u32,
    /// Endpoint of the guest.
    pub its: u32,
    /// Tag of the own events.
    tag: u64,
    from_guest: Option<Receiver>,
    /// The next record waits for space: in the own ring, or a socket.
    is_blocked: bool,
    /// Bytes of the own ring for want of which the last turn ended.
    lacking: Option<usize>,
    /// Nothing: the guest reads no more.
    to_guest: Option<Sender>,
    handle: Handle,
    /// Where the guest has sent to, or what has sent to it; of all sockets that share a
    /// published port.
    pub ends: Rc<RefCell<Ends>>,
    /// Nothing: its port is the host's choice.
    pub published: Option<Published>,
}

/// What the work of one turn needs.
pub struct Turn<'a> {
    /// The guest.
    pub peer: &'a mut Peer,
    /// What it may do.
    pub policy: &'a Policy,
    /// What it did.
    pub counts: &'a mut Counts,
    /// Watches the sockets.
    pub poller: &'a Poller,
    /// How fast it may begin to send to other ends.
    pub rate: &'a mut Rate,
}

/// What becomes of a datagram.
enum Fate {
    /// The host sends it.
    Allowed,
    /// The policy is against its destination: the guest sends it.
    Returned,
    /// It is too early for another destination.
    Lost,
}

/// How the sending of a record went.
enum Sent {
    /// It is done with.
    Done,
    /// There is no space now: in the own ring, or the socket.
    Later,
}

impl Datagrams {
    /// Makes one with the guest's ring, and the own one.
    pub fn new(
        its: u32,
        sockets: Sockets,
        (from_guest, to_guest, handle): (Receiver, Sender, Handle),
        ends: Rc<RefCell<Ends>>,
        published: Option<Published>,
    ) -> Self {
        Self {
            sockets,
            own: 0,
            its,
            tag: 0,
            from_guest: Some(from_guest),
            is_blocked: false,
            lacking: None,
            to_guest: Some(to_guest),
            handle,
            ends,
            published,
        }
    }

    /// Takes its place in the table, and has its sockets watched.
    pub fn set_place(&mut self, own: u32, tag: u64, poller: &Poller) -> Result<(), Errno> {
        (self.own, self.tag) = (own, tag);
        let mut sockets = self.sockets.iter().flatten();
        sockets.try_for_each(|one| poller.watch_input(&one.fd, tag))
    }

    /// The kernel reports something of a socket.
    pub fn take_event(&mut self, is_in: bool, is_out: bool, is_error: bool, poller: &Poller) {
        for socket in self.sockets.iter_mut().flatten() {
            socket.is_readable |= is_in;
            socket.has_errors |= is_error;
            if is_out && !socket.is_writable {
                socket.is_writable = true;
                poller.watch_output(&socket.fd, self.tag, false);
            }
        }
    }

    /// Moves datagrams both ways. True: there may be more.
    pub fn pump(&mut self, turn: &mut Turn<'_>) -> bool {
        self.lacking = None;
        // It is closed: the own ring waits for the guest's DONE, whatever is in it.
        if self.from_guest.is_none() {
            return false;
        }
        let sent = self.pump_to_network(turn);
        // A turn that does not use the own ring looks at it, too: the guest may have broken it.
        let is_broken = self.to_guest.as_mut().is_some_and(|ring| {
            ring.count_space();
            ring.is_broken()
        });
        if sent.is_err() || is_broken {
            turn.counts.corrupt("a record of a datagram");
            self.close(libc::ECONNRESET, turn.peer);
            return false;
        }
        // What was to come back is in the own ring: the guest reads it, and sends DONE.
        if self.from_guest.as_ref().is_some_and(Receiver::is_finished) {
            self.close(0, turn.peer);
            return false;
        }
        // What is to go back comes first: others would take its space, one by one.
        let received = self.lacking.is_none() && self.pump_to_guest(turn);
        sent.unwrap_or(false) || received
    }

    fn pump_to_network(&mut self, turn: &mut Turn<'_>) -> Result<bool, Corrupt> {
        self.is_blocked = false;
        let mut bytes = 0;
        for _ in 0..TURN {
            if bytes >= TURN_BYTES {
                break;
            }
            let Some(ring) = &mut self.from_guest else {
                return Ok(false);
            };
            // One look for all of the record: in the next one the ring may be broken.
            let runs = ring.used_runs(LONGEST as u32);
            if ring.is_broken() {
                return Err(Corrupt);
            }
            if runs.is_empty() {
                return Ok(false);
            }
            let head = record::read(&runs)?;
            if let Sent::Later = self.send(&head, &runs, turn) {
                self.is_blocked = true;
                return Ok(false);
            }
            bytes += head.total();
            if let Some(ring) = &mut self.from_guest {
                if ring.consume(head.total() as u32) {
                    turn.peer.set_pending(self.its);
                }
            }
        }
        Ok(true)
    }

    fn decide(&mut self, to: SocketAddr, turn: &mut Turn<'_>) -> Fate {
        let known = self.ends.borrow_mut().is_allowed(to);
        if let Some(is_allowed) = known {
            return match is_allowed {
                true => Fate::Allowed,
                false => Fate::Returned,
            };
        }
        let before = self.ends.borrow_mut().get(to);
        let was_met = before.is_some_and(|known| known.is_allowed);
        let allowed = match to.port() {
            0 => Err("port 0".into()),
            // What was allowed before stays so where the host has too little to find out.
            _ => {
                let is_own = |ip| net::find_own(ip).unwrap_or(!was_met);
                match was_met {
                    true => policy::check_rules(turn.policy, Protocol::Udp, to, is_own),
                    false => policy::check_connect(turn.policy, Protocol::Udp, to, is_own),
                }
            }
        };
        // An end that was allowed before another policy came costs no token again.
        if allowed.is_ok() && !was_met && !turn.rate.may_meet(turn.policy) {
            turn.counts
                .refuse("rate".into(), &format!("datagram to {to}"));
            return Fate::Lost;
        }
        self.ends.borrow_mut().insert(to, allowed.is_ok());
        if let Err(cause) = allowed {
            turn.counts.refuse(cause, &format!("datagram to {to}"));
            return Fate::Returned;
        }
        Fate::Allowed
    }

    /// `runs` begin with the record.
    fn send(&mut self, head: &Head, runs: &Runs, turn: &mut Turn<'_>) -> Sent {
        if self.published.is_some() {
            // The guest sends others natively. This one was forgotten meanwhile, or another
            // policy is against it.
            let mut ends = self.ends.borrow_mut();
            let known = ends.get(head.address);
            if !known.is_some_and(|known| meet(&mut ends, head.address, known.at, turn)) {
                return Sent::Done;
            }
        } else {
            match self.decide(head.address, turn) {
                Fate::Allowed => {}
                Fate::Returned => return self.send_back(head, runs, turn.peer),
                Fate::Lost => return Sent::Done,
            }
        }
        let payload = runs.part(HEAD, head.length);
        match self.try_send(head, &payload, turn) {
            Ok(()) => Sent::Done,
            Err(Errno::EAGAIN) => Sent::Later,
            Err(errno) if net::is_short(errno) => Sent::Done,
            // The host has no such family. The guest may have another way.
            Err(Errno::EAFNOSUPPORT) => {
                self.ends.borrow_mut().insert(head.address, false);
                let what = format!("datagram to {}", head.address);
                turn.counts
                    .refuse("address families of the host".into(), &what);
                self.send_back(head, runs, turn.peer)
            }
            Err(errno) => {
                let error = Error {
                    errno: errno as u32,
                    origin: libc::SO_EE_ORIGIN_LOCAL,
                    info: match errno {
                        Errno::EMSGSIZE => {
                            self.report_errors(usize::from(!head.address.is_ipv4()), turn.peer)
                        }
                        _ => 0,
                    },
                    ..Error::default()
                };
                self.report(head.address, error, turn.peer);
                Sent::Done
            }
        }
    }

    fn try_send(&mut self, head: &Head, payload: &Runs, turn: &mut Turn<'_>) -> Result<(), Errno> {
        let is_v4 = head.address.is_ipv4();
        let from = self
            .ends
            .borrow_mut()
            .get(head.address)
            .and_then(|known| known.at);
        let place = &mut self.sockets[usize::from(!is_v4)];
        if place.is_none() {
            if self.published.is_some() {
                return Ok(());
            }
            *place = Some(open(is_v4, self.tag, turn)?);
        }
        let Some(socket) = place else {
            return Ok(());
        };
        if !socket.is_writable {
            return Err(Errno::EAGAIN);
        }
        if socket.discover.unwrap_or(udp::DISCOVER_DEFAULT) != head.discover {
            udp::set_discover(&socket.fd, is_v4, head.discover);
            socket.discover = Some(head.discover);
        }
        // The first call may give an error of an earlier datagram, which has its own report.
        let mut result = udp::send(&socket.fd, payload, head, from);
        if matches!(result, Err(errno) if errno != Errno::EAGAIN) {
            socket.has_errors = true;
            result = udp::send(&socket.fd, payload, head, from);
        }
        match result {
            Ok(_) => turn.counts.sent += head.length as u64,
            Err(Errno::EAGAIN) => {
                socket.is_writable = false;
                turn.poller.watch_output(&socket.fd, self.tag, true);
            }
            Err(_) => {}
        }
        result.map(drop)
    }

    /// Has the guest send it natively.
    fn send_back(&mut self, head: &Head, runs: &Runs, peer: &mut Peer) -> Sent {
        let Some(to) = &mut self.to_guest else {
            return Sent::Done;
        };
        // In a small ring there is never space for it.
        if head.total() > to.size() as usize {
            return Sent::Done;
        }
        let free = to.free_runs(head.total() as u32);
        if free.len() < head.total() {
            self.lacking = Some(head.total());
            return Sent::Later;
        }
        let mut payload = vec![0; head.total() - HEAD];
        runs.part(HEAD, payload.len()).read(&mut payload);
        let head = Head {
            r#type: abi::DATAGRAM_RETURNED,
            ..*head
        };
        free.part(0, HEAD).write(&head.write());
        free.part(HEAD, payload.len()).write(&payload);
        if to.publish(head.total() as u32) {
            peer.set_pending(self.its);
        }
        Sent::Done
    }

    /// An error about an address; it is lost where there is no space for it.
    fn report(&mut self, address: SocketAddr, error: Error, peer: &mut Peer) {
        let Some(ring) = &mut self.to_guest else {
            return;
        };
        let head = Head {
            tos: error.packet.0,
            hops: error.packet.1,
            error,
            ..Head::new(abi::DATAGRAM_ERROR, address, 0)
        };
        let free = ring.free_runs(HEAD as u32);
        if free.len() == HEAD {
            free.write(&head.write());
            if ring.publish(HEAD as u32) {
                peer.set_pending(self.its);
            }
        }
    }

    /// Reports what the kernel says of datagrams that were sent. Returns the MTU for which the last
    /// one was too long; 0: none was, or the kernel does not say it.
    fn report_errors(&mut self, number: usize, peer: &mut Peer) -> u32 {
        let mut mtu = 0;
        for _ in 0..TURN {
            let Some(socket) = &mut self.sockets[number] else {
                break;
            };
            if !socket.has_errors {
                break;
            }
            match udp::receive_error(&socket.fd) {
                // The call that sent it has given that one, with the port that it has not.
                Some((_, error)) if error.origin == libc::SO_EE_ORIGIN_LOCAL => {
                    if error.errno == Errno::EMSGSIZE as u32 {
                        mtu = error.info;
                    }
                }
                Some((address, error)) => self.report(address, error, peer),
                None => socket.has_errors = false,
            }
        }
        mtu
    }

    fn pump_to_guest(&mut self, turn: &mut Turn<'_>) -> bool {
        let mut has_more = false;
        for number in 0..self.sockets.len() {
            self.report_errors(number, turn.peer);
            let mut left = TURN;
            let end = turn.counts.received + TURN_BYTES as u64;
            while left > 0 && turn.counts.received < end && self.receive(number, turn) {
                left -= 1;
            }
            let is_over = left == 0 || turn.counts.received >= end;
            let has_errors = self.sockets[number]
                .as_ref()
                .is_some_and(|one| one.has_errors);
            has_more |= is_over || has_errors;
        }
        has_more
    }

    /// True: there may be more.
    fn receive(&mut self, number: usize, turn: &mut Turn<'_>) -> bool {
        let (Some(socket), Some(ring)) = (&mut self.sockets[number], &mut self.to_guest) else {
            return false;
        };
        let longest = LONGEST.min(ring.size() as usize);
        let free = ring.free_runs(longest as u32);
        if !socket.is_readable {
            return false;
        }
        // A short one does not wait for the space of the longest.
        let length = match free.len() < longest {
            true => udp::look(&socket.fd),
            false => Ok(longest - HEAD),
        };
        let received = length.and_then(|length| {
            let needed = (HEAD + length).next_multiple_of(8).min(longest);
            if free.len() < needed {
                // The other family's next one may be shorter.
                let lacking = self.lacking.unwrap_or(needed).min(needed);
                self.lacking = Some(lacking);
                return Ok(None);
            }
            udp::receive(&socket.fd, &free.part(HEAD, needed - HEAD)).map(Some)
        });
        let received = match received {
            Ok(Some(received)) => received,
            Ok(None) => return false,
            Err(Errno::EAGAIN) => {
                socket.is_readable = false;
                return false;
            }
            // The report of an error of a datagram before.
            Err(_) => {
                socket.has_errors = true;
                return true;
            }
        };
        if self.published.is_some() {
            let mut ends = self.ends.borrow_mut();
            meet(&mut ends, received.from, received.at, turn);
        }
        let known = self.ends.borrow_mut().get(received.from);
        if received.is_truncated || !known.is_some_and(|known| known.is_allowed) {
            return true;
        }
        let head = Head {
            tos: received.tos,
            hops: received.hops,
            ..Head::new(abi::DATAGRAM_DATA, received.from, received.length)
        };
        let padding = head.total() - HEAD - head.length;
        free.part(0, HEAD).write(&head.write());
        free.part(HEAD + head.length, padding)
            .write(&[0; 8][..padding]);
        if ring.publish(head.total() as u32) {
            turn.peer.set_pending(self.its);
        }
        turn.counts.received += head.length as u64;
        true
    }

    /// Closes each socket that has another source address by the new policy. The next datagram
    /// opens a new socket. Answers on their way to the old one are lost. True: one was closed.
    pub fn forget_sources(&mut self, before: &Policy, now: &Policy) -> bool {
        let mut is_closed = false;
        for is_v4 in [true, false] {
            let [before, now] = [before, now].map(|policy| find_source(policy, is_v4));
            let place = &mut self.sockets[usize::from(!is_v4)];
            is_closed |= before != now && place.take().is_some();
        }
        is_closed
    }

    /// Whether the guest has closed it, and it has that port of the host yet, at any address.
    pub fn has_ended_at(&mut self, port: u16) -> bool {
        self.published.is_some_and(|one| one.at.0.port() == port)
            && self.from_guest.as_mut().is_some_and(Receiver::is_ended)
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
            self.close(libc::ECONNRESET, peer);
            return;
        }
        // Without an end mark nothing would show when the last record is sent.
        let is_ended = self.from_guest.as_mut().is_some_and(Receiver::is_ended);
        if done.reason != 0 || !is_ended {
            self.close(0, peer);
        }
    }

    /// Closes the sockets, and reads no more of the guest's ring. The own one stays until
    /// the guest's DONE.
    pub fn close(&mut self, errno: i32, peer: &mut Peer) {
        self.sockets = [None, None];
        if let Some(ring) = self.from_guest.take() {
            let position = ring.position();
            peer.send(&Message::done(self.own, self.its, CARRIER, position, errno));
        }
    }

    /// The guest does not take the own ring.
    pub fn drop_ring(&mut self, peer: &mut Peer) {
        if self.to_guest.take().is_some() {
            peer.free_ring(self.handle);
        }
    }

    /// Whether both sides have ended it.
    pub fn is_over(&self) -> bool {
        self.from_guest.is_none() && self.to_guest.is_none()
    }

    /// Asks for doorbells of what it waits for. True: there is something already.
    pub fn arm(&mut self) -> bool {
        if self.from_guest.is_none() {
            return false;
        }
        let mut has_news = false;
        if let (false, Some(ring)) = (self.is_blocked, &mut self.from_guest) {
            has_news |= !ring.is_finished() && ring.arm();
        }
        if let (Some(lacking), Some(ring)) = (self.lacking, &mut self.to_guest) {
            let needed = lacking as u32;
            // Space that has come since the turn looked for it is news.
            has_news |= ring.arm(needed, needed.max(ring.size() / 2));
        }
        has_news
    }
}

/// An end has sent to a published port, to this address of the host. Whether it may get
/// answers.
fn meet(ends: &mut Ends, from: SocketAddr, at: Option<IpAddr>, turn: &mut Turn<'_>) -> bool {
    let is_allowed = ends.is_allowed(from).unwrap_or_else(|| {
        let answer = policy::check_answer(turn.policy, from);
        let is_allowed = answer.is_ok();
        if let Err(cause) = answer {
            let what = format!("datagram from {from}");
            turn.counts.refuse(cause, &what);
        }
        is_allowed
    });
    ends.meet(from, at, is_allowed);
    is_allowed
}

/// The address from which datagrams go out. The unspecified one: the kernel chooses.
fn find_source(policy: &Policy, is_v4: bool) -> IpAddr {
    let any = match is_v4 {
        true => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        false => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let source = policy::choose_source(policy, any, is_v4);
    source.ok().flatten().unwrap_or(any)
}

/// Opens a socket, and watches it.
fn open(is_v4: bool, tag: u64, turn: &Turn<'_>) -> Result<Socket, Errno> {
    let from = find_source(turn.policy, is_v4);
    let fd = udp::open(SocketAddr::new(from, 0), false)?;
    turn.poller.watch_input(&fd, tag)?;
    Ok(Socket::new(fd))
}

impl Socket {
    fn new(fd: OwnedFd) -> Self {
        Self {
            fd,
            is_readable: true,
            is_writable: true,
            has_errors: false,
            discover: None,
        }
    }
}

/// Opens the sockets of a published port: one of each family that the guest's has.
pub fn open_published(published: &Published) -> Result<Sockets, Errno> {
    let (at, is_v6_only) = published.at;
    let is_shared = published.flags & message::SOCKET_REUSEPORT != 0;
    let open = |at| udp::open(at, is_shared).map(|fd| Some(Socket::new(fd)));
    if at.is_ipv4() {
        return Ok([open(at)?, None]);
    }
    let v4 = match is_v6_only {
        true => None,
        false => open(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), at.port()))?,
    };
    match open(at) {
        // The host has no IPv6.
        Err(Errno::EAFNOSUPPORT) if v4.is_some() => Ok([v4, None]),
        v6 => Ok([v4, v6?]),
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use hallway_abi::ring;
    use hallway_endpoint::member::{Member, Slice};
    use hallway_shm::{sealed_memory, Mapping};
    use nix::poll::{poll, PollFd, PollFlags};
    use nix::sys::eventfd::EventFd;

    use super::*;

    fn slice(slot: u32) -> Slice {
        Slice {
            slot,
            generation: 10 + slot,
            offset: 12288 + u64::from(slot - 1) * (1 << 20),
            size: 1 << 20,
        }
    }

    fn make_ring(size: u32) -> (Sender, Receiver) {
        let length = ring::RING_HEADER + size as usize;
        let memory = sealed_memory("ring", length).unwrap();
        let memory = Rc::new(Mapping::new(&memory, length).unwrap());
        let sender = Sender::create(memory.clone(), 0, size, CARRIER);
        (sender, Receiver::take_up(memory, 0, size, CARRIER).unwrap())
    }

    /// A small ring takes as many datagrams as it has space for. The guest makes space after the
    /// program has looked for it, and before it asks for a doorbell.
    #[test]
    fn a_ring_is_filled_and_space_that_comes_then_is_seen() {
        const SIZE: u32 = 16 << 10;
        let region = sealed_memory("region", 8 << 20).unwrap();
        let member = Member::join(region, 8 << 20, 3, slice(1)).unwrap();
        let mut peer = member.meet(slice(2), EventFd::new().unwrap().into());
        let published = Published {
            local: "0.0.0.0:53".parse().unwrap(),
            flags: 0,
            at: ("127.0.0.1:0".parse().unwrap(), true),
        };
        let sockets = open_published(&published).unwrap();
        let socket = sockets[0].as_ref().unwrap().fd.try_clone().unwrap();
        let arriving = UdpSocket::from(socket);
        let to = arriving.local_addr().unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        let ((_to_host, from_guest), (to_guest, mut from_host)) =
            (make_ring(SIZE), make_ring(SIZE));
        let rings = (from_guest, to_guest, Handle::default());
        let ends = Rc::new(RefCell::new(Ends::new(true, 1)));
        let mut datagrams = Datagrams::new(7, sockets, rings, ends, Some(published));
        let policy = Policy {
            connect: vec!["127.0.0.1".parse().unwrap()],
            ..Policy::default()
        };
        let mut turn = Turn {
            peer: peer.as_mut().unwrap(),
            policy: &policy,
            counts: &mut Counts::default(),
            poller: &Poller::new().unwrap(),
            rate: &mut Rate::default(),
        };
        let record = (HEAD + 1400).next_multiple_of(8);
        for count in 1..=SIZE as usize / record + 1 {
            client.send_to(&[0; 1400], to).unwrap();
            let mut waits = [PollFd::new(arriving.as_fd(), PollFlags::POLLIN)];
            assert_eq!(poll(&mut waits, 30_000_u16), Ok(1));
            datagrams.take_event(true, false, false, turn.poller);
            assert!(!datagrams.pump(&mut turn));
            let space = SIZE as usize / record;
            assert_eq!(from_host.count_used() as usize, count.min(space) * record);
        }
        assert!(!datagrams.arm());
        assert!(!datagrams.pump(&mut turn));
        let used = from_host.count_used();
        from_host.consume(used);
        assert!(datagrams.arm());
    }
}
