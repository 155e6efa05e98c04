// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The loop's epoll, and what its events are about.

use std::os::fd::{AsFd, BorrowedFd};

use anyhow::Result;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// QEMU's socket: a QEMU connects.
    Listener,
    /// The control socket: a client connects.
    Control,
    /// A signal to the daemon.
    Signal,
    /// The holder's socket: the holder ended.
    Holder,
    /// A monitor's thread has sent news.
    Monitors,
    /// The socket of this connection to a QEMU.
    Qemu(u64),
    /// The doorbell by which the guest of this connection rings the daemon.
    Ask(u64),
    /// The process of a helper has ended.
    Helper(u64),
    /// The socket of this client of the control socket.
    Client(u64),
}

impl From<Source> for u64 {
    fn from(source: Source) -> u64 {
        match source {
            Source::Listener => 0,
            Source::Control => 1 << 3,
            Source::Signal => 2 << 3,
            Source::Holder => 3 << 3,
            Source::Monitors => 4 << 3,
            Source::Qemu(n) => n << 3 | 1,
            Source::Ask(n) => n << 3 | 2,
            Source::Client(n) => n << 3 | 3,
            Source::Helper(n) => n << 3 | 4,
        }
    }
}

impl From<u64> for Source {
    fn from(data: u64) -> Source {
        match (data & 7, data >> 3) {
            (1, n) => Source::Qemu(n),
            (2, n) => Source::Ask(n),
            (3, n) => Source::Client(n),
            (4, n) => Source::Helper(n),
            (_, 0) => Source::Listener,
            (_, 1) => Source::Control,
            (_, 2) => Source::Signal,
            (_, 3) => Source::Holder,
            _ => Source::Monitors,
        }
    }
}

/// An epoll whose events name their source.
pub struct Poller(Epoll);

impl Poller {
    /// Makes one that watches nothing yet.
    pub fn new() -> Result<Self> {
        Ok(Self(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?))
    }

    /// Watches a descriptor for `flags`.
    pub fn watch(&self, fd: impl AsFd, source: Source, flags: EpollFlags) -> Result<()> {
        Ok(self.0.add(fd, EpollEvent::new(flags, source.into()))?)
    }

    /// Watches a descriptor, which is watched already, for other `flags`.
    pub fn rewatch(&self, fd: impl AsFd, source: Source, flags: EpollFlags) -> Result<()> {
        let mut event = EpollEvent::new(flags, source.into());
        Ok(self.0.modify(fd, &mut event)?)
    }

    /// Ends the watch of a descriptor. Closing it would not: the holder has it too.
    pub fn unwatch(&self, fd: BorrowedFd<'_>) {
        let _ = self.0.delete(fd);
    }

    /// Waits for events, at most `timeout` milliseconds.
    pub fn wait(&self, timeout: u16) -> Result<Vec<Source>> {
        let mut events = [EpollEvent::empty(); 64];
        let count = match self.0.wait(&mut events, EpollTimeout::from(timeout)) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(error) => return Err(error.into()),
        };
        let sources = events[..count].iter().map(|event| event.data().into());
        Ok(sources.collect())
    }
}
