// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the holder must have, so that the next daemon can take over.

use std::os::fd::AsFd;

use anyhow::Result;
use nix::sys::epoll::EpollFlags;
use tracing::warn;

use super::event::Source;
use super::Server;
use crate::holder::Holder;
use crate::state::{SavedRegion, State};

impl Server {
    /// Gives the holder all that it must have.
    pub(super) fn supply_holder(&mut self) -> Result<()> {
        self.watch(&self.holder, Source::Holder, EpollFlags::EPOLLIN)?;
        self.holder.put("listener", self.listener.as_fd())?;
        for vm in self.vms.values() {
            vm.keep(&self.holder)?;
        }
        self.dirty = true;
        Ok(())
    }

    /// A holder that died is replaced while the daemon still has everything.
    pub(super) fn replace_holder(&mut self) -> Result<()> {
        warn!("the holder process died: starting another");
        let _ = self.epoll.delete(&self.holder);
        while let Ok(status) =
            nix::sys::wait::waitpid(None, Some(nix::sys::wait::WaitPidFlag::WNOHANG))
        {
            if status == nix::sys::wait::WaitStatus::StillAlive {
                break;
            }
        }
        self.holder = Holder::start(&self.run.holder())?;
        self.supply_holder()
    }

    pub(super) fn state(&self) -> State {
        State::new(
            self.socket.clone(),
            self.made.clone(),
            self.regions
                .iter()
                .map(|served| SavedRegion {
                    name: served.name.clone(),
                    file: served.region.path.clone(),
                    header: served.region.header.clone(),
                })
                .collect(),
            self.vms.values().map(|vm| vm.saved.clone()).collect(),
            self.next_vm,
        )
    }
}
