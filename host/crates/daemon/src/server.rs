// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon proper: one thread, one epoll, nothing that blocks.
//!
//! Every event changes the private picture (regions' headers, VMs' entries and
//! peers) and nothing else. Then [`Server::commit`] carries it outward, always
//! in this order: the holder gets the new state, the regions their headers, the
//! pages their replies, and last the doorbells ring. Whatever instant the
//! daemon dies at, the next one has a state at least as new as what any guest
//! saw, and carries the same picture outward again; each step may be repeated.
//! A QEMU that just connected is greeted in the same way, once the holder has it:
//! a QEMU that was greeted and is lost would never connect again, while one that
//! is greeted twice says so in its log and goes by the first.
//!
//! What VMs of a configuration should have plugged in follows from the picture
//! too (machines.rs, pairs.rs), and is asked for after it was carried outward.
//!
//! A guest may ring another only once its own QEMU has read of it, and QEMU
//! acknowledges nothing. A join therefore waits until all QEMUs concerned have
//! read what they were sent, or a moment if they do not read; after that the
//! doorbell table of who lags is completed, and it rung, when its QEMU has.

mod clients;
mod commit;
mod event;
mod keep;
mod machines;
mod pairs;
mod regions;
mod requests;
mod served;
mod start;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use hallway_control as control;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signalfd::SignalFd;
use tracing::{debug, error, info, warn};

use self::clients::Client;
use self::event::Source;
use self::machines::Machine;
use self::pairs::Pairs;
use self::served::Served;
use crate::access::Access;
use crate::config::Config;
use crate::holder::Holder;
use crate::monitor::Newsroom;
use crate::run::{self, RunDir};
use crate::state::Entry;
use crate::vm::Vm;

/// Connections that one user may have: each takes descriptors and memory, here and of
/// the holder, and who is in the group of `--group` can make any number.
const QEMUS_OF_ONE: usize = 1024;

/// The daemon.
pub struct Server {
    run: RunDir,
    socket: PathBuf,
    made: Vec<PathBuf>,
    epoll: Epoll,
    listener: UnixListener,
    control: UnixListener,
    signals: SignalFd,
    holder: Holder,
    regions: Vec<Served>,
    /// To lose their files once the holder knows that they are not served.
    removed: Vec<Served>,
    vms: BTreeMap<u64, Vm>,
    next_vm: u64,
    clients: BTreeMap<u64, Client>,
    next_client: u64,
    config: Config,
    machines: Vec<Machine>,
    newsroom: Newsroom,
    pairs: Pairs,
    region_dir: PathBuf,
    access: Access,
    started: Instant,
    next_second: Instant,
    heartbeat: u32,
    recovered: usize,
    dirty: bool,
    /// A VM came, went, or is elsewhere: others may have other neighbours.
    moved: bool,
    stopping: Option<Stop>,
}

/// How to end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// By a signal: the holder keeps the VMs.
    Handover,
    /// On request: nothing stays.
    Clean,
}

impl Server {
    /// Serves until told to stop.
    pub fn run(mut self) -> Result<()> {
        self.every_second();
        self.commit();
        info!(socket = %self.socket.display(), pid = std::process::id(), "ready");
        let mut events = [EpollEvent::empty(); 64];
        while self.stopping.is_none() {
            let now = Instant::now();
            let timeout = if self.vms.values().any(|vm| vm.unsettled()) {
                2
            } else {
                self.next_second.saturating_duration_since(now).as_millis() as u16 + 1
            };
            let count = match self.epoll.wait(&mut events, EpollTimeout::from(timeout)) {
                Ok(count) => count,
                Err(nix::errno::Errno::EINTR) => 0,
                Err(error) => return Err(error.into()),
            };
            for event in &events[..count] {
                self.handle(Source::from(event.data()));
            }
            if Instant::now() >= self.next_second {
                self.every_second();
            }
            self.answer_requests(true);
            self.digest();
            self.meet_wants();
            for served in &mut self.regions {
                served.guard();
            }
            self.commit();
            self.plug_regions();
        }
        self.finish()
    }

    fn handle(&mut self, source: Source) {
        match source {
            Source::Listener => self.accept_qemus(),
            Source::Control => self.accept_clients(),
            Source::Signal => {
                while let Ok(Some(signal)) = self.signals.read_signal() {
                    info!(signal = signal.ssi_signo, "told to end");
                    self.stopping.get_or_insert(Stop::Handover);
                }
            }
            Source::Holder => {
                if let Err(error) = self.replace_holder() {
                    error!("no holder: VMs would not survive this daemon's end: {error:#}");
                }
            }
            Source::Monitors => self.hear_monitors(),
            Source::Qemu(number) => {
                if self
                    .vms
                    .get(&number)
                    .is_some_and(|vm| vm.connection.closed())
                {
                    self.drop_vm(number, "its QEMU is gone");
                }
            }
            Source::Ask(number) => {
                if let Some(vm) = self.vms.get_mut(&number) {
                    vm.hear();
                    self.moved |= vm.look_home();
                    self.answer_vm(number, false);
                }
            }
            Source::Client(number) => self.serve_client(number),
        }
    }

    fn accept_qemus(&mut self) {
        for _ in 0..16 {
            let socket: OwnedFd = match self.listener.accept() {
                Ok((stream, _)) => stream.into(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    error!("cannot accept a QEMU: {error}");
                    // Out of descriptors: not in a tight loop, please.
                    std::thread::sleep(Duration::from_millis(10));
                    return;
                }
            };
            let number = self.next_vm;
            match Vm::new(number, socket) {
                Ok(vm) if self.of_user(vm.uid) >= QEMUS_OF_ONE => warn!(
                    vm = %vm.label(),
                    uid = vm.uid,
                    "refused: its user has {QEMUS_OF_ONE} connections, and may not have more"
                ),
                Ok(vm) => {
                    self.next_vm += 1;
                    self.dirty = true;
                    info!(vm = %vm.label(), "QEMU connected");
                    let kept = vm.keep(&self.holder).map_err(Into::into);
                    if let Err(error) = self.watch_vm(&vm).and(kept) {
                        error!(vm = %vm.label(), "cannot be looked after: {error:#}");
                    }
                    self.vms.insert(number, vm);
                }
                Err(error) => error!("cannot serve a QEMU: {error:#}"),
            }
        }
    }

    fn of_user(&self, uid: Option<u32>) -> usize {
        self.vms.values().filter(|vm| vm.uid == uid).count()
    }

    fn drop_vm(&mut self, number: u64, why: &str) {
        let Some(vm) = self.vms.remove(&number) else {
            return;
        };
        info!(vm = %vm.label(), "{why}");
        let _ = self.epoll.delete(&vm.connection);
        let _ = self.epoll.delete(&vm.ask);
        vm.forget(&self.holder);
        for entry in &vm.saved.entries {
            self.leave_region(&vm.label(), entry);
        }
        for other in self.vms.values_mut() {
            other.saved.peers.remove(&number);
        }
        self.dirty = true;
        self.moved = true;
    }

    /// Takes an entry's member out of its region.
    fn leave_region(&mut self, label: &str, entry: &Entry) {
        let Some(name) = entry.region.as_deref() else {
            return;
        };
        if let Some(served) = self.regions.iter_mut().find(|served| served.name == name) {
            served.region.leave(entry.slot as usize);
            served.changed = true;
            info!(vm = label, region = name, slot = entry.slot, "left");
        }
    }

    /// Sends to QEMUs, and notices what they have read.
    fn digest(&mut self) {
        let now = Instant::now();
        let mut lost = Vec::new();
        for (number, vm) in &mut self.vms {
            let before = vm.congested;
            match vm.digest(now) {
                Ok(more) => self.dirty |= more,
                Err(error) => {
                    debug!(vm = %vm.label(), "cannot be told more: {error}");
                    lost.push(*number);
                }
            }
            if vm.congested != before {
                let mut flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP;
                flags.set(EpollFlags::EPOLLOUT, vm.congested);
                let mut event = EpollEvent::new(flags, Source::Qemu(*number).into());
                if let Err(error) = self.epoll.modify(&vm.connection, &mut event) {
                    error!(vm = %vm.label(), "cannot be watched: {error}");
                }
            }
        }
        for number in lost {
            self.drop_vm(number, "its QEMU is gone");
        }
    }

    fn every_second(&mut self) {
        let now = Instant::now();
        self.next_second = now + Duration::from_secs(1);
        self.heartbeat = self.heartbeat.wrapping_add(1);
        for served in &mut self.regions {
            served.region.beat(self.heartbeat);
            served.listen(now);
        }
        for vm in self.vms.values_mut() {
            vm.refill();
            self.moved |= vm.look_home();
        }
        self.withdraw_idle();
        // Those that had to wait; and should a ring ever be lost, it was not.
        self.answer_requests(false);
    }

    fn finish(self) -> Result<()> {
        let control_path = control::socket(self.run.path());
        let _ = std::fs::remove_file(control_path);
        if self.stopping == Some(Stop::Handover) && !self.vms.is_empty() {
            info!(
                vms = self.vms.len(),
                "ends; the holder keeps the VMs for the next hallwayd"
            );
            return Ok(());
        }
        // Those of pairs are made anew when they are wanted.
        let clean = self.stopping == Some(Stop::Clean);
        let mut regions = self.regions;
        regions.retain(|served| clean || self.config.pair_named(&served.name).is_some());
        let files: Vec<PathBuf> = regions.into_iter().map(|s| s.region.path).collect();
        self.holder.quit();
        run::clean(&self.run, &self.socket, &files, &self.made);
        info!("ends");
        Ok(())
    }
}
