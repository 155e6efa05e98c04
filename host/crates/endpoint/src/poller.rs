// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The loop's epoll.

use std::os::fd::AsFd;

use anyhow::Result;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

/// Tag of the control socket. Tags of a table are larger: see `Table::insert`.
pub const CONTROL: u64 = 1;
/// Tag of the timer.
pub const TIMER: u64 = 2;
/// Tag of the signals.
pub const SIGNAL: u64 = 3;
/// Tag of the own doorbell.
pub const DOORBELL: u64 = 4;
/// First tag of what a program has besides, outside of its table.
pub const PROGRAM: u64 = 5;

/// What comes to a descriptor.
const INPUT: EpollFlags = EpollFlags::EPOLLIN
    .union(EpollFlags::EPOLLPRI)
    .union(EpollFlags::EPOLLRDHUP)
    .union(EpollFlags::EPOLLET);

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
        let flags = INPUT | EpollFlags::EPOLLOUT;
        self.0.add(fd, EpollEvent::new(flags, tag))
    }

    /// Watches a descriptor for what comes, and for its errors.
    pub fn watch_input(&self, fd: impl AsFd, tag: u64) -> Result<(), Errno> {
        self.0.add(fd, EpollEvent::new(INPUT, tag))
    }

    /// Has a descriptor of `watch_input` watched for space, too, or no more. Space that is
    /// there already is an event.
    pub fn watch_output(&self, fd: impl AsFd, tag: u64, is_wanted: bool) {
        let flags = match is_wanted {
            true => INPUT | EpollFlags::EPOLLOUT,
            false => INPUT,
        };
        // It fails for descriptors alone that are not watched.
        let _ = self.0.modify(fd, &mut EpollEvent::new(flags, tag));
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn space_is_an_event_for_those_alone_that_wait_for_it() {
        let poller = Poller::new().unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        poller.watch_input(&socket, 77).unwrap();
        let is_out = || {
            let events = poller.wait(Some(0)).unwrap();
            events.contains(&(77, EpollFlags::EPOLLOUT))
        };
        // Each datagram that is sent makes space again.
        let send = || socket.send_to(b"1", "127.0.0.1:9");
        send().unwrap();
        assert!(!is_out());
        poller.watch_output(&socket, 77, true);
        assert!(is_out());
        poller.watch_output(&socket, 77, false);
        let _ = send();
        assert!(!is_out());
    }
}
