// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection's way to its QEMU: the socket, and the doorbells.
//!
//! A guest may ring another only once its own QEMU has read of that one's
//! doorbell, and QEMU acknowledges nothing. So a doorbell that was sent is known
//! to QEMU once its socket is empty, and a moment has passed.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::Result;
use hallway_abi::region::DAEMON_ID;
use hallway_unix::Stream;
use ivshmem_server::{Session, ID_MAX};
use nix::sys::epoll::EpollFlags;
use nix::sys::eventfd::{EfdFlags, EventFd};
use tracing::error;

use super::ringer::Ringer;
use crate::keeper::Peer;
use crate::poller::{Poller, Source};

/// How long QEMU may take from reading a message to acting on it.
const DIGEST: Duration = Duration::from_millis(1);
/// Doorbells that may wait for a QEMU that does not read: each is a descriptor.
const QUEUED_MAX: usize = 256;
/// How long a QEMU that does not read is looked after often.
const PATIENCE: Duration = Duration::from_secs(1);

/// A connection's way to its QEMU.
pub struct Line {
    number: u64,
    session: Session,
    /// Rung by other guests and by the daemon; QEMU listens.
    doorbell: OwnedFd,
    /// Rung by the guest; the daemon listens.
    ask: OwnedFd,
    /// Whether QEMU was sent all that it waits for at its start.
    pub greeted: bool,
    /// Id of the next peer.
    pub next_peer: u32,
    /// The peers that QEMU was sent, by number of their connections.
    pub peers: BTreeMap<u64, Peer>,
    congested: bool,
    /// Whether doorbells were left out, as the queue was full.
    lacks: bool,
    /// Since when QEMU has something to read.
    unread: Option<Instant>,
    /// Since when QEMU has read everything.
    drained: Option<Instant>,
}

/// Makes a doorbell.
pub fn eventfd() -> Result<OwnedFd> {
    Ok(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?.into())
}

impl Line {
    /// Sets up the way to a QEMU that has just connected; it waits for its greeting.
    pub fn new(number: u64, socket: Stream) -> Result<Self> {
        Self::recover(number, socket, eventfd()?, eventfd()?)
    }

    /// Puts together what a daemon before this one left.
    pub fn recover(number: u64, socket: Stream, doorbell: OwnedFd, ask: OwnedFd) -> Result<Self> {
        Ok(Self {
            number,
            session: Session::new(socket)?,
            doorbell,
            ask,
            greeted: false,
            next_peer: u32::from(DAEMON_ID) + 1,
            peers: BTreeMap::new(),
            congested: false,
            lacks: true,
            unread: None,
            drained: None,
        })
    }

    /// The socket, the doorbell of the guest, and that of the daemon.
    pub fn fds(&self) -> [BorrowedFd<'_>; 3] {
        [
            self.session.as_fd(),
            self.doorbell.as_fd(),
            self.ask.as_fd(),
        ]
    }

    /// Watches for what QEMU and its guest do.
    pub fn watch(&self, poller: &Poller) -> Result<()> {
        poller.watch(&self.session, Source::Qemu(self.number), self.flags())?;
        // Each ring is an event, and none is read: QEMU shares the open file, and could
        // have a read wait.
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        poller.watch(&self.ask, Source::Ask(self.number), flags)
    }

    /// Ends the watch.
    pub fn unwatch(&self, poller: &Poller) {
        poller.unwatch(self.session.as_fd());
        poller.unwatch(self.ask.as_fd());
    }

    fn flags(&self) -> EpollFlags {
        let mut flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP;
        flags.set(EpollFlags::EPOLLOUT, self.congested);
        flags
    }

    /// Ends the connection, also for the holder, which has a copy of the socket.
    pub fn hang_up(self) {
        self.session.hang_up();
    }

    /// Whether QEMU has ended.
    pub fn closed(&self) -> bool {
        self.session.closed()
    }

    /// Sends QEMU all that it waits for at its start; `page` becomes its BAR 2.
    pub fn greet(&mut self, page: BorrowedFd<'_>) -> Result<()> {
        let daemon = (DAEMON_ID, self.ask.as_fd());
        self.session.greet(page, [daemon], self.doorbell.as_fd())?;
        self.session.flush()?;
        self.greeted = true;
        Ok(())
    }

    /// A copy of the doorbell that rings the guest.
    pub fn doorbell(&self) -> io::Result<OwnedFd> {
        self.doorbell.try_clone()
    }

    /// Rings the guest.
    pub fn ring(&self, ringer: &Ringer) -> io::Result<()> {
        ringer.ring(self.doorbell.as_fd())
    }

    /// Makes sure that QEMU was sent another connection's doorbell. False once
    /// the ids have run out. Nothing is sent while too many messages are queued.
    pub fn introduce(&mut self, other: u64, doorbell: BorrowedFd<'_>) -> io::Result<bool> {
        if self.peers.contains_key(&other) {
            return Ok(true);
        }
        if self.session.queued() >= QUEUED_MAX {
            self.lacks = true;
            return Ok(true);
        }
        let Ok(id @ 0..=ID_MAX) = u16::try_from(self.next_peer) else {
            return Ok(false);
        };
        self.session.introduce(id, doorbell)?;
        self.next_peer += 1;
        self.peers.insert(other, Peer { id, known: false });
        self.has_sent();
        Ok(true)
    }

    /// Sends a doorbell again that QEMU may not have read, which does no harm.
    pub fn reintroduce(&mut self, other: u64, doorbell: BorrowedFd<'_>) -> io::Result<()> {
        if let Some(peer) = self.peers.get(&other).filter(|peer| !peer.known) {
            self.session.introduce(peer.id, doorbell)?;
            self.has_sent();
        }
        Ok(())
    }

    /// Forgets a connection that is over.
    pub fn forget(&mut self, other: u64) {
        if let Some(peer) = self.peers.remove(&other) {
            self.session.withdraw(peer.id);
        }
    }

    /// Whether doorbells that QEMU may lack can be sent now. True once.
    pub fn take_lack(&mut self) -> bool {
        self.lacks && self.session.queued() < QUEUED_MAX && std::mem::take(&mut self.lacks)
    }

    fn has_sent(&mut self) {
        self.unread.get_or_insert_with(Instant::now);
        self.drained = None;
    }

    /// Whether QEMU knows another connection's doorbell.
    pub fn knows(&self, other: u64) -> bool {
        self.peers.get(&other).is_some_and(|peer| peer.known)
    }

    /// How many doorbells QEMU was sent and may not know.
    pub fn unknown(&self) -> usize {
        self.peers.values().filter(|peer| !peer.known).count()
    }

    /// Sends what can be sent, and notices what QEMU has taken in. True if it
    /// knows more than before.
    pub fn digest(&mut self, now: Instant, poller: &Poller) -> io::Result<bool> {
        let congested = !self.session.flush()?;
        if congested != self.congested {
            self.congested = congested;
            let source = Source::Qemu(self.number);
            if let Err(error) = poller.rewatch(&self.session, source, self.flags()) {
                error!(connection = self.number, "cannot be watched: {error:#}");
            }
        }
        if self.unknown() == 0 || !self.session.drained() {
            return Ok(false);
        }
        if now.duration_since(*self.drained.get_or_insert(now)) < DIGEST {
            return Ok(false);
        }
        for peer in self.peers.values_mut() {
            peer.known = true;
        }
        self.unread = None;
        Ok(true)
    }

    /// Whether QEMU has not read for that long.
    pub fn lags(&self, limit: Duration) -> bool {
        self.unread.is_some_and(|since| since.elapsed() >= limit)
    }

    /// Whether QEMU is about to know more.
    pub fn is_busy(&self) -> bool {
        self.unknown() > 0 && (self.drained.is_some() || !self.lags(PATIENCE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_qemu_that_does_not_read_has_a_bounded_queue_of_doorbells_and_lacks_the_others() {
        let (ours, mut qemu) = UnixStream::pair().unwrap();
        let poller = Poller::new().unwrap();
        let mut line = Line::new(1, Stream::from(ours)).unwrap();
        line.watch(&poller).unwrap();
        assert!(line.take_lack());
        let doorbell = eventfd().unwrap();
        for other in 0..2000 {
            assert!(line.introduce(other, doorbell.as_fd()).unwrap());
            line.digest(Instant::now(), &poller).unwrap();
        }
        assert_eq!(line.session.queued(), QUEUED_MAX);
        assert!(line.peers.len() < 2000 && !line.take_lack());
        line.forget(line.peers.len() as u64 - 1);
        assert_eq!(line.session.queued(), QUEUED_MAX - 1);

        qemu.set_nonblocking(true).unwrap();
        while qemu.read(&mut [0; 64]).is_ok() {}
        line.digest(Instant::now(), &poller).unwrap();
        assert!(line.take_lack() && !line.take_lack());
    }
}
