// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The beginning: with nothing, or with what a daemon before this one left.

use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result};
use hallway_control as control;
use nix::sys::epoll::EpollFlags;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use tracing::info;

use super::Server;
use crate::access::Access;
use crate::clients::Clients;
use crate::config::Config;
use crate::connections::Connections;
use crate::cpus::Cpus;
use crate::helpers::{Helpers, HELPER_SLOT};
use crate::keeper::{Inherited, Keeper, State, LISTENER};
use crate::options::Options;
use crate::pairs::Pairs;
use crate::picture::Picture;
use crate::poller::{Poller, Source};
use crate::regions::Regions;
use crate::run::RunDir;
use crate::vms::Vms;

impl Server {
    /// Takes over from a daemon before, or starts with nothing. `made` are the
    /// directories that were made for this; the groups are those that may start QEMUs, and
    /// that may ask for the status.
    pub fn new(
        options: &Options,
        config: Config,
        [access, askers]: [&Access; 2],
        run: Rc<RunDir>,
        mut made: Vec<PathBuf>,
    ) -> Result<Self> {
        // Before any thread starts, which would take them.
        let signals = signals()?;
        let socket = options.socket();
        let mut inherited = Inherited::find(&run, &socket)?;
        let kept = inherited.kept.remove(LISTENER);
        let (listener, mut unused) = match kept.filter(|_| is_socket(&socket)) {
            Some(fd) => (fd.into(), UnusedSocket(None)),
            None => listen(&socket)?,
        };
        // A daemon of before may have listened without.
        hallway_unix::refuse_descriptors(&listener);
        listener.set_nonblocking(true)?;
        access.share_socket(&socket)?;

        let state = inherited.state.take();
        let mut state = state.unwrap_or_else(|| State::new(socket.clone(), Vec::new()));
        made.append(&mut state.made);
        let kept = &mut inherited.kept;
        let saved = std::mem::take(&mut state.regions);
        let mut regions = Regions::open(options, &config, access, saved, kept)?;
        let mut connections = Connections::recover(listener, &mut state, kept)?;
        connections.retain_helpers(|region| {
            config
                .helper_named(region)
                .is_some_and(|id| config.helper(id).is_some() || regions.get(region).is_some())
        });
        let helpers = Helpers::recover(&regions, &connections, &config, &state.helpers, kept)?;
        for region in helpers.regions() {
            connections.add_helper(&region, HELPER_SLOT)?;
        }
        regions.retain_members(|region, slot| {
            let mut entries = connections.iter().filter_map(|one| one.entry(region));
            entries.any(|entry| entry.slot as usize == slot)
                || (slot == HELPER_SLOT && helpers.serves(region))
        });
        let holder = inherited.into_holder(&run)?;
        holder.put(LISTENER, connections.listener())?;
        let clients = Clients::listen(&control::socket(run.path()), askers)?;

        // Of one without a connection nothing would show its end.
        let mut releases = std::mem::take(&mut state.releases);
        releases.retain(|saved| connections.iter().any(|one| one.pid == Some(saved.qemu)));

        let recovered = connections.iter().count();
        let mut server = Self {
            picture: Picture {
                vms: Vms::start(&config, &releases)?,
                pairs: Pairs::recover(&regions, &config),
                helpers,
                cpus: Cpus::new(&config, std::mem::take(&mut state.weights)),
                config,
                connections,
                regions,
            },
            poller: Poller::new()?,
            keeper: Keeper::new(run, holder, socket, made),
            clients,
            options: options.clone(),
            signals,
            recovered,
            started: Instant::now(),
            domains: None,
            next_second: Instant::now(),
            heartbeat: 0,
            stopping: None,
        };
        server.picture.put_out_revoked();
        server.watch()?;
        unused.0 = None;
        if recovered > 0 {
            info!(vms = recovered, "took over from the daemon before");
        }
        Ok(server)
    }

    fn watch(&self) -> Result<()> {
        let poller = &self.poller;
        self.picture.connections.watch(poller)?;
        self.picture.vms.watch(poller)?;
        self.picture.helpers.watch(poller)?;
        self.clients.watch(poller)?;
        self.keeper.watch(poller)?;
        poller.watch(&self.signals, Source::Signal, EpollFlags::EPOLLIN)
    }
}

/// Has the signals for the daemon come by a descriptor.
fn signals() -> Result<SignalFd> {
    let mut set = SigSet::empty();
    set.add(Signal::SIGTERM);
    set.add(Signal::SIGINT);
    set.add(Signal::SIGHUP);
    set.thread_block()?;
    let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
    Ok(SignalFd::with_flags(&set, flags)?)
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
}

/// A socket that this process made. It goes unless the daemon starts.
struct UnusedSocket(Option<PathBuf>);

impl Drop for UnusedSocket {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Listens for QEMUs.
fn listen(path: &Path) -> Result<(UnixListener, UnusedSocket)> {
    let listener =
        hallway_unix::listen(path).with_context(|| format!("--socket {}", path.display()))?;
    Ok((listener, UnusedSocket(Some(path.into()))))
}
