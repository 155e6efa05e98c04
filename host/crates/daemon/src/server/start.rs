// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The beginning: starting afresh, or taking over from a daemon that ended.

use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{bail, Context, Result};
use hallway_control as control;
use hallway_membership::HOST_SLOT;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollFlags};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use tracing::{info, warn};

use super::event::Source;
use super::pairs::Pairs;
use super::regions::open_regions;
use super::Server;
use crate::access::Access;
use crate::config::Config;
use crate::holder::Holder;
use crate::monitor::Newsroom;
use crate::options::Options;
use crate::run::RunDir;
use crate::state::State;
use crate::vm::Vm;

impl Server {
    /// Takes over from a daemon that ended, or starts afresh.
    pub fn new(
        options: &Options,
        config: Config,
        access: &Access,
        run: RunDir,
        mut made: Vec<PathBuf>,
    ) -> Result<Self> {
        let socket = options.socket();
        let holder_path = run.holder();
        let found = Holder::find(&holder_path)?;
        let mut kept = found
            .as_ref()
            .map(Holder::list)
            .transpose()?
            .unwrap_or_default();
        let state = kept.remove("state").map(State::load).transpose()?;
        if let Some(state) = state.as_ref().filter(|state| state.socket != socket) {
            bail!(
                "VMs of this run directory are served at {}: give that as --socket, or end it \
                 with hallwayd --stop --run-dir {} first",
                state.socket.display(),
                run.path().display()
            );
        }
        let known_listener = kept.remove("listener").filter(|_| socket.exists());
        let listener: UnixListener = match known_listener {
            Some(fd) => fd.into(),
            None => listen(&socket)?,
        };
        listener.set_nonblocking(true)?;
        access.share(&socket)?;

        let (saved_regions, saved_vms, next_vm) = match state {
            Some(state) => {
                made.extend(state.made);
                (state.regions, state.vms, state.next_vm)
            }
            None => (Vec::new(), Vec::new(), 1),
        };
        made.sort();
        made.dedup();

        let regions = open_regions(options, &config, saved_regions)?;
        for served in &regions {
            access.share(&served.region.path)?;
        }
        let mut vms = BTreeMap::new();
        for saved in saved_vms {
            let number = saved.number;
            match Vm::recover(saved, &mut kept) {
                Ok(vm) => {
                    vms.insert(number, vm);
                }
                Err(error) => warn!(connection = number, "a VM cannot be taken over: {error:#}"),
            }
        }
        let holder = match found {
            Some(holder) => {
                for name in kept.keys() {
                    holder.del(name)?;
                }
                holder
            }
            None => Holder::start(&holder_path)?,
        };

        let control_path = control::socket(run.path());
        let _ = std::fs::remove_file(&control_path);
        let control = UnixListener::bind(&control_path)
            .with_context(|| format!("{}: cannot listen", control_path.display()))?;
        control.set_nonblocking(true)?;

        let mut set = SigSet::empty();
        set.add(Signal::SIGTERM);
        set.add(Signal::SIGINT);
        set.thread_block()?;
        let signals = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;

        let mut server = Self {
            run,
            socket,
            made,
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            listener,
            control,
            signals,
            holder,
            regions,
            removed: Vec::new(),
            recovered: vms.len(),
            vms,
            next_vm,
            clients: BTreeMap::new(),
            next_client: 0,
            machines: Vec::new(),
            newsroom: Newsroom::new()?,
            pairs: Pairs::new(),
            region_dir: options.region_dir.clone(),
            access: access.clone(),
            config,
            started: Instant::now(),
            next_second: Instant::now(),
            heartbeat: 0,
            dirty: true,
            moved: true,
            stopping: None,
        };
        server.settle_recovered()?;
        server.start_monitors()?;
        server.recover_pairs();
        Ok(server)
    }

    /// Makes one picture of what was recovered, and watches everything.
    fn settle_recovered(&mut self) -> Result<()> {
        // Members of whose VM nothing is left.
        for served in &mut self.regions {
            for slot in HOST_SLOT + 1..served.region.header.members.len() {
                let held = self.vms.values().any(|vm| {
                    vm.entry(&served.name)
                        .is_some_and(|entry| entry.slot as usize == slot)
                });
                if served.region.header.members[slot].present && !held {
                    served.region.leave(slot);
                }
            }
        }
        // Peers that are gone, and those of which QEMU may not have heard.
        let numbers: Vec<u64> = self.vms.keys().copied().collect();
        for number in &numbers {
            let peers: Vec<u64> = self.vms[number].saved.peers.keys().copied().collect();
            for peer in peers {
                let bell = self
                    .vms
                    .get(&peer)
                    .map(|vm| vm.bell().try_clone())
                    .transpose()?;
                let Some(vm) = self.vms.get_mut(number) else {
                    continue;
                };
                match bell {
                    Some(bell) => vm.reintroduce(peer, &bell)?,
                    None => drop(vm.saved.peers.remove(&peer)),
                }
            }
        }
        self.watch(&self.listener, Source::Listener, EpollFlags::EPOLLIN)?;
        self.watch(&self.control, Source::Control, EpollFlags::EPOLLIN)?;
        self.watch(&self.signals, Source::Signal, EpollFlags::EPOLLIN)?;
        self.watch(&self.newsroom, Source::Monitors, EpollFlags::EPOLLIN)?;
        for vm in self.vms.values() {
            self.watch_vm(vm)?;
        }
        self.supply_holder()?;
        if self.recovered > 0 {
            info!(vms = self.recovered, "took over from the daemon before");
        }
        Ok(())
    }
}

/// Listens for QEMU, in place of a socket that nobody listens at any more.
fn listen(path: &Path) -> Result<UnixListener> {
    if let Ok(meta) = std::fs::symlink_metadata(path) {
        if !meta.file_type().is_socket() {
            bail!(
                "{} is there and is no socket: give another --socket",
                path.display()
            );
        }
        if UnixStream::connect(path).is_ok() {
            bail!(
                "another program listens at {}: end it, or give another --socket",
                path.display()
            );
        }
        std::fs::remove_file(path)?;
    }
    UnixListener::bind(path).with_context(|| format!("{}: cannot listen", path.display()))
}
