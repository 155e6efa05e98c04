// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The loop's epoll.

use std::os::fd::AsFd;

use anyhow::Result;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

/// Tag of the control socket. Tags of sockets are larger: see `Table::insert`.
pub const CONTROL: u64 = 1;
/// Tag of the timer.
pub const TIMER: u64 = 2;
/// Tag of the signals.
pub const SIGNAL: u64 = 3;
/// Tag of the own doorbell.
pub const DOORBELL: u64 = 4;

/// An epoll with tagged events.
pub struct Poller(Epoll);

impl Poller {
    /// Makes one that watches nothing yet.
    pub fn new() -> Result<Self> {
        Ok(Self(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?))
    }

    /// Watches a descriptor that has something to read.
    pub fn watch(&self, fd: impl AsFd, tag: u64) -> Result<()> {
        Ok(self.0.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, tag))?)
    }

    /// Watches a descriptor for all that changes.
    pub fn watch_edges(&self, fd: impl AsFd, tag: u64) -> Result<(), Errno> {
        let flags = EpollFlags::EPOLLIN
            | EpollFlags::EPOLLOUT
            | EpollFlags::EPOLLPRI
            | EpollFlags::EPOLLRDHUP
            | EpollFlags::EPOLLET;
        self.0.add(fd, EpollEvent::new(flags, tag))
    }

    /// Ends the watch of a descriptor.
    pub fn unwatch(&self, fd: impl AsFd) {
        let _ = self.0.delete(fd);
    }

    /// Waits for events, `timeout` milliseconds at most; nothing: for ever.
    pub fn wait(&self, timeout: Option<u16>) -> Result<Vec<(u64, EpollFlags)>> {
        let mut events = [EpollEvent::empty(); 128];
        let timeout = timeout.map_or(EpollTimeout::NONE, EpollTimeout::from);
        let count = match self.0.wait(&mut events, timeout) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(error) => return Err(error.into()),
        };
        let events = events[..count].iter();
        Ok(events.map(|event| (event.data(), event.events())).collect())
    }
}
