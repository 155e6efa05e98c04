// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an epoll event is about, and watching for it.

use std::os::fd::AsFd;

use anyhow::Result;
use nix::sys::epoll::{EpollEvent, EpollFlags};

use super::Server;
use crate::vm::Vm;

/// What an epoll event is about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Listener,
    Control,
    Signal,
    Holder,
    Monitors,
    Qemu(u64),
    Ask(u64),
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
        }
    }
}

impl From<u64> for Source {
    fn from(data: u64) -> Source {
        match (data & 7, data >> 3) {
            (1, n) => Source::Qemu(n),
            (2, n) => Source::Ask(n),
            (3, n) => Source::Client(n),
            (_, 0) => Source::Listener,
            (_, 1) => Source::Control,
            (_, 2) => Source::Signal,
            (_, 3) => Source::Holder,
            _ => Source::Monitors,
        }
    }
}

impl Server {
    pub(super) fn watch(&self, fd: impl AsFd, source: Source, flags: EpollFlags) -> Result<()> {
        Ok(self.epoll.add(fd, EpollEvent::new(flags, source.into()))?)
    }

    pub(super) fn watch_vm(&self, vm: &Vm) -> Result<()> {
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP;
        self.watch(&vm.connection, Source::Qemu(vm.saved.number), flags)?;
        self.watch(&vm.ask, Source::Ask(vm.saved.number), EpollFlags::EPOLLIN)
    }
}
