// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon proper: one thread, one epoll, nothing that blocks.
//!
//! Every event changes the private picture (regions' headers, VMs' entries and
//! peers) and nothing else. Then [`Server::commit`] carries it outward, always
//! in this order: the holder gets the new state, the regions their headers, the
//! pages their replies, and last the doorbells ring. Whatever instant the
//! daemon dies at, the next one has a state at least as new as what any guest
//! saw, and carries the same picture outward again; each step may be repeated.
//!
//! A guest may ring another only once its own QEMU has read of it, and QEMU
//! acknowledges nothing. A join therefore waits until all QEMUs concerned have
//! read what they were sent, or a moment if they do not read; after that the
//! doorbell table of who lags is completed, and it rung, when its QEMU has.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use hallway_abi::region as abi;
use hallway_control::{self as control, Answer, Liveness, Query, Status};
use hallway_membership::{printable, slice, Geometry, Region, Reply, Request, Uuid, HOST_SLOT};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use tracing::{debug, error, info, warn};

use crate::holder::Holder;
use crate::options::Options;
use crate::run::{self, RunDir};
use crate::state::{Entry, SavedRegion, State};
use crate::vm::Vm;

/// How long a join waits for QEMUs that do not read.
const JOIN_WAIT: Duration = Duration::from_millis(200);
/// A member whose heartbeat stands still that long is silent.
const SILENT: Duration = Duration::from_secs(5);
/// A control client's longest question, and how many clients there may be.
const QUESTION_MAX: usize = 4096;
const CLIENTS_MAX: usize = 32;
/// Between two log lines about scribbles on one region.
const SCRIBBLE_LOG: Duration = Duration::from_secs(10);

/// What an epoll event is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Listener,
    Control,
    Signal,
    Holder,
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
            _ => Source::Holder,
        }
    }
}

/// A member's heartbeat, as last seen.
#[derive(Clone, Copy)]
struct Beat {
    generation: u32,
    value: u32,
    since: Instant,
}

struct Served {
    name: String,
    region: Region,
    beats: Vec<Option<Beat>>,
    changed: bool,
    scribble_logged: Option<Instant>,
}

struct Client {
    stream: UnixStream,
    question: Vec<u8>,
    answer: Vec<u8>,
}

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
    vms: BTreeMap<u64, Vm>,
    next_vm: u64,
    clients: BTreeMap<u64, Client>,
    next_client: u64,
    started: Instant,
    next_second: Instant,
    heartbeat: u32,
    recovered: usize,
    dirty: bool,
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
    /// Takes over from a daemon that ended, or starts afresh.
    pub fn new(options: &Options, run: RunDir, mut made: Vec<PathBuf>) -> Result<Self> {
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

        let (mut saved_regions, saved_vms, next_vm) = match state {
            Some(state) => {
                made.extend(state.made);
                (state.regions, state.vms, state.next_vm)
            }
            None => (Vec::new(), Vec::new(), 1),
        };
        made.sort();
        made.dedup();

        let mut wanted: Vec<(String, PathBuf, Geometry)> = options
            .regions
            .iter()
            .map(|spec| {
                (
                    spec.name.clone(),
                    options.region_dir.join(&spec.name),
                    spec.geometry,
                )
            })
            .collect();
        for saved in &saved_regions {
            if !wanted.iter().any(|(name, ..)| *name == saved.name) {
                warn!(
                    region = saved.name,
                    "was not asked for again, and goes on being served"
                );
                let slots = saved.header.members.len() as u32;
                let geometry = Geometry::new(saved.header.size, slots)?;
                wanted.push((saved.name.clone(), saved.file.clone(), geometry));
            }
        }
        let mut regions: Vec<Served> = Vec::new();
        for (name, file, geometry) in wanted {
            if regions.iter().any(|served| served.name == name) {
                bail!("region {name} was asked for twice: give each --region another name");
            }
            let at = saved_regions
                .iter()
                .position(|s| s.name == name && s.file == file);
            let known = at.map(|at| saved_regions.swap_remove(at).header);
            if known.as_ref().is_some_and(|known| {
                known.size != geometry.size() || known.members.len() as u32 != geometry.slots()
            }) {
                bail!(
                    "region {name} is in use with other dimensions: ask for the same as before, \
                     or end it with hallwayd --stop first"
                );
            }
            let fresh = known.is_none();
            let mut region = Region::open(&file, geometry, known)?;
            if fresh || !region.header.members[HOST_SLOT].present {
                let old = region.header.members[HOST_SLOT].uuid;
                let host = if old.is_nil() { Uuid::random()? } else { old };
                region.enter_host(host, &hostname());
            }
            info!(
                region = name,
                uuid = %region.header.uuid,
                file = %file.display(),
                size = geometry.size(),
                slots = geometry.slots(),
                "serves"
            );
            let beats = vec![None; geometry.slots() as usize];
            regions.push(Served {
                name,
                region,
                beats,
                changed: true,
                scribble_logged: None,
            });
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
            recovered: vms.len(),
            vms,
            next_vm,
            clients: BTreeMap::new(),
            next_client: 0,
            started: Instant::now(),
            next_second: Instant::now(),
            heartbeat: 0,
            dirty: true,
            stopping: None,
        };
        server.settle_recovered()?;
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
        for vm in self.vms.values() {
            self.watch_vm(vm)?;
        }
        self.supply_holder()?;
        if self.recovered > 0 {
            info!(vms = self.recovered, "took over from the daemon before");
        }
        Ok(())
    }

    fn watch(&self, fd: impl AsFd, source: Source, flags: EpollFlags) -> Result<()> {
        Ok(self.epoll.add(fd, EpollEvent::new(flags, source.into()))?)
    }

    fn watch_vm(&self, vm: &Vm) -> Result<()> {
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP;
        self.watch(&vm.connection, Source::Qemu(vm.saved.number), flags)?;
        self.watch(&vm.ask, Source::Ask(vm.saved.number), EpollFlags::EPOLLIN)
    }

    /// Gives the holder all that it must have.
    fn supply_holder(&mut self) -> Result<()> {
        self.watch(&self.holder, Source::Holder, EpollFlags::EPOLLIN)?;
        self.holder.put("listener", self.listener.as_fd())?;
        for vm in self.vms.values() {
            vm.keep(&self.holder)?;
        }
        self.dirty = true;
        Ok(())
    }

    /// A holder that died is replaced while the daemon still has everything.
    fn replace_holder(&mut self) -> Result<()> {
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
            self.guard();
            self.commit();
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
                if let Some(vm) = self.vms.get(&number) {
                    vm.hear();
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
            match Vm::greet(number, socket) {
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

    fn answer_requests(&mut self, only_waiting: bool) {
        let numbers: Vec<u64> = self.vms.keys().copied().collect();
        for number in numbers {
            self.answer_vm(number, only_waiting);
        }
    }

    /// Looks through a VM's page.
    fn answer_vm(&mut self, number: u64, only_waiting: bool) {
        for index in 0..abi::PAGE_ENTRIES {
            let Some(vm) = self.vms.get_mut(&number) else {
                return;
            };
            let waits = vm.waiting[index].is_some();
            if only_waiting && !waits {
                continue;
            }
            let serial = vm.page.serial(index);
            if serial == 0 || serial == vm.saved.entries[index].serial {
                vm.waiting[index] = None;
                continue;
            }
            // A join that waits has been paid for.
            if !waits && !vm.spend() {
                return;
            }
            let Some(request) = vm.page.read(index) else {
                continue;
            };
            let Some((status, slot)) = self.judge(number, index, &request) else {
                continue;
            };
            self.apply(number, index, &request, status, slot);
        }
    }

    /// Decides about a request: its status, and the region and slot if it is a
    /// join that may be. Nothing: not yet.
    fn judge(
        &mut self,
        number: u64,
        index: usize,
        request: &Request,
    ) -> Option<(u32, Option<(usize, usize)>)> {
        let vm = self.vms.get_mut(&number)?;
        if request.major != abi::MAJOR {
            if vm.may_warn() {
                warn!(
                    vm = %vm.label(),
                    "refused: guest {:?} speaks ABI version {}.{}, this hallwayd {}.{}: install \
                     the same release of Hallway on both",
                    request.name, request.major, request.minor, abi::MAJOR, abi::MINOR
                );
            }
            return Some((abi::STATUS_VERSION, None));
        }
        let at = self
            .regions
            .iter()
            .position(|s| s.region.header.uuid == request.region);
        let Some(at) = at else {
            if vm.may_warn() {
                warn!(
                    vm = %vm.label(),
                    "refused: asks for region {}, which is not served here: give the VM the file \
                     of a region that hallway status shows",
                    request.region
                );
            }
            return Some((abi::STATUS_UNKNOWN, None));
        };
        match request.command {
            abi::COMMAND_LEAVE => return Some((abi::STATUS_OK, None)),
            abi::COMMAND_JOIN => {}
            other => {
                if vm.may_warn() {
                    warn!(vm = %vm.label(), "refused: unknown command {other}");
                }
                return Some((abi::STATUS_INVALID, None));
            }
        }
        if request.vm.is_nil() {
            if vm.may_warn() {
                warn!(
                    vm = %vm.label(),
                    "refused: the VM has no UUID: start its QEMU with -uuid"
                );
            }
            return Some((abi::STATUS_INVALID, None));
        }
        if self.is_taken(number, request.vm) {
            let vm = self.vms.get_mut(&number)?;
            if vm.may_warn() {
                warn!(
                    vm = %vm.label(),
                    "refused: another running VM has UUID {} too: start each QEMU with a -uuid \
                     of its own",
                    request.vm
                );
            }
            return Some((abi::STATUS_DENIED, None));
        }
        let served = &self.regions[at];
        let Some(slot) = served.region.slot_for(request.vm) else {
            let vm = self.vms.get_mut(&number)?;
            if vm.may_warn() {
                warn!(
                    vm = %vm.label(),
                    region = served.name,
                    "refused: all {} slots are taken: make the region with more",
                    served.region.geometry().slots()
                );
            }
            return Some((abi::STATUS_FULL, None));
        };
        if self.introduce_all(number, at) {
            return Some((abi::STATUS_OK, Some((at, slot))));
        }
        let vm = self.vms.get_mut(&number)?;
        let since = *vm.waiting[index].get_or_insert_with(Instant::now);
        (since.elapsed() >= JOIN_WAIT).then_some((abi::STATUS_OK, Some((at, slot))))
    }

    /// Whether another living VM goes by this UUID.
    fn is_taken(&mut self, number: u64, uuid: Uuid) -> bool {
        let other = self.vms.values().find(|vm| {
            vm.saved.number != number
                && vm.saved.uuid == Some(uuid)
                && vm.saved.entries.iter().any(|entry| entry.region.is_some())
        });
        match other {
            None => false,
            // Its end may wait in this very round of events.
            Some(vm) if vm.connection.closed() => {
                let other = vm.saved.number;
                self.drop_vm(other, "its QEMU is gone");
                false
            }
            Some(_) => true,
        }
    }

    /// Makes a VM and the members of a region known to each other's QEMUs. True
    /// once all of them have read it.
    fn introduce_all(&mut self, number: u64, at: usize) -> bool {
        let name = &self.regions[at].name;
        let others: Vec<u64> = self
            .vms
            .values()
            .filter(|vm| vm.saved.number != number && vm.entry(name).is_some())
            .map(|vm| vm.saved.number)
            .collect();
        let mut known = true;
        for other in others {
            for (to, about) in [(number, other), (other, number)] {
                let Some(bell) = self.vms.get(&about).map(|vm| vm.bell().try_clone()) else {
                    continue;
                };
                let Some(vm) = self.vms.get_mut(&to) else {
                    continue;
                };
                if vm.knows(about) {
                    continue;
                }
                // Others need not wait for one that does not read.
                known &= vm.lags(JOIN_WAIT);
                self.dirty = true;
                match bell
                    .map_err(Into::into)
                    .and_then(|bell| vm.introduce(about, &bell))
                {
                    Ok(true) => {}
                    Ok(false) => {
                        if vm.may_warn() {
                            warn!(
                                vm = %vm.label(),
                                "has seen {} VMs come and go, and can be told of no more: restart \
                                 it",
                                ivshmem_server::ID_MAX
                            );
                        }
                    }
                    Err(error) => error!(vm = %vm.label(), "cannot introduce a VM: {error:#}"),
                }
            }
        }
        known
    }

    /// Enters a decision into the private picture.
    fn apply(
        &mut self,
        number: u64,
        index: usize,
        request: &Request,
        status: u32,
        join: Option<(usize, usize)>,
    ) {
        let region = self
            .regions
            .iter()
            .find(|served| served.region.header.uuid == request.region)
            .map(|served| served.name.clone());
        let Some(vm) = self.vms.get_mut(&number) else {
            return;
        };
        let label = vm.label();
        let mut left = Vec::new();
        for (n, entry) in vm.saved.entries.iter_mut().enumerate() {
            if entry.region.is_some() && (n == index || entry.region == region) {
                left.push(entry.clone());
                entry.region = None;
            }
        }
        for entry in left {
            self.leave_region(&label, &entry);
        }
        let mut entry = Entry {
            serial: request.serial,
            status,
            ..Entry::default()
        };
        if let Some((at, slot)) = join {
            let served = &mut self.regions[at];
            entry.generation = served.region.enter(slot, request.vm, &request.name);
            entry.slot = slot as u32;
            entry.region = Some(served.name.clone());
            served.changed = true;
            served.beats[slot] = None;
            info!(
                vm = label, name = request.name, uuid = %request.vm, region = served.name, slot,
                generation = entry.generation, "joined"
            );
        }
        let Some(vm) = self.vms.get_mut(&number) else {
            return;
        };
        if join.is_some() {
            vm.saved.uuid = Some(request.vm);
            vm.saved.name = Some(request.name.clone());
        }
        vm.saved.entries[index] = entry;
        vm.waiting[index] = None;
        vm.requests += 1;
        self.dirty = true;
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

    fn guard(&mut self) {
        for served in &mut self.regions {
            if !served.changed && served.region.guard() {
                let due = served
                    .scribble_logged
                    .is_none_or(|at| at.elapsed() >= SCRIBBLE_LOG);
                if due {
                    served.scribble_logged = Some(Instant::now());
                    warn!(
                        region = served.name,
                        times = served.region.repairs(),
                        "a member wrote on the region's header; it was put back"
                    );
                }
            }
        }
    }

    fn every_second(&mut self) {
        let now = Instant::now();
        self.next_second = now + Duration::from_secs(1);
        self.heartbeat = self.heartbeat.wrapping_add(1);
        for served in &mut self.regions {
            let region = &served.region;
            region.beat(self.heartbeat);
            for (slot, member) in region.header.members.iter().enumerate() {
                let base = region.geometry().slice_offset(slot) as usize;
                let seen = slice::read(region.memory(), base)
                    .filter(|seen| member.present && seen.generation == member.generation);
                let beat = &mut served.beats[slot];
                *beat = seen.map(|seen| match *beat {
                    Some(old)
                        if old.generation == seen.generation && old.value == seen.heartbeat =>
                    {
                        old
                    }
                    _ => Beat {
                        generation: seen.generation,
                        value: seen.heartbeat,
                        since: now,
                    },
                });
            }
        }
        for vm in self.vms.values_mut() {
            vm.refill();
        }
        // Those that had to wait; and should a ring ever be lost, it was not.
        self.answer_requests(false);
    }

    /// Carries the private picture outward (see the head of this file).
    fn commit(&mut self) {
        if self.dirty || self.regions.iter().any(|served| served.changed) {
            self.dirty = false;
            let saved = self
                .state()
                .save()
                .and_then(|fd| Ok(self.holder.put("state", fd.as_fd())?));
            if let Err(error) = saved {
                error!("cannot save the state: {error:#}");
                // The holder is gone, and its replacement gets all.
                self.dirty = true;
            }
        }
        let mut changed = Vec::new();
        for served in &mut self.regions {
            if std::mem::take(&mut served.changed) {
                served.region.publish();
                changed.push(served.name.clone());
            }
        }
        let mut rings = Vec::new();
        for (number, vm) in &self.vms {
            let mut ring = changed.iter().any(|name| vm.entry(name).is_some());
            let mut replies = Vec::new();
            for (index, entry) in vm.saved.entries.iter().enumerate() {
                let reply = self.reply(vm, entry);
                if entry.serial != 0 && vm.written[index].as_ref() != Some(&reply) {
                    replies.push((index, reply));
                    ring = true;
                }
            }
            rings.push((*number, replies, ring));
        }
        for (number, replies, _) in &mut rings {
            let Some(vm) = self.vms.get_mut(number) else {
                continue;
            };
            for (index, reply) in std::mem::take(replies) {
                vm.page.write(index, &reply);
                vm.written[index] = Some(reply);
            }
        }
        for (number, _, ring) in rings {
            if let Some(vm) = self.vms.get(&number).filter(|_| ring) {
                vm.ring();
            }
        }
    }

    /// The reply that follows from the private picture.
    fn reply(&self, vm: &Vm, entry: &Entry) -> Reply {
        let mut doorbells = [0; abi::SLOTS_MAX];
        if let Some(name) = entry.region.as_deref() {
            doorbells[HOST_SLOT] = abi::DAEMON_ID;
            for (other, peer) in vm.saved.peers.iter().filter(|(_, peer)| peer.known) {
                if let Some(entry) = self.vms.get(other).and_then(|vm| vm.entry(name)) {
                    doorbells[entry.slot as usize] = peer.id;
                }
            }
        }
        Reply {
            serial: entry.serial,
            status: entry.status,
            slot: entry.slot,
            generation: entry.generation,
            doorbells,
        }
    }

    fn state(&self) -> State {
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

    fn accept_clients(&mut self) {
        while let Ok((stream, _)) = self.control.accept() {
            let number = self.next_client;
            self.next_client += 1;
            let ready = stream
                .set_nonblocking(true)
                .map_err(Into::into)
                .and_then(|()| self.watch(&stream, Source::Client(number), EpollFlags::EPOLLIN));
            if ready.is_ok() && self.clients.len() < CLIENTS_MAX {
                let client = Client {
                    stream,
                    question: Vec::new(),
                    answer: Vec::new(),
                };
                self.clients.insert(number, client);
            }
        }
    }

    fn serve_client(&mut self, number: u64) {
        let Some(mut client) = self.clients.remove(&number) else {
            return;
        };
        // Done, or gone: closing it ends the watch too.
        if let Ok(false) = self.advance_client(number, &mut client) {
            self.clients.insert(number, client);
        }
    }

    /// Reads the question or writes the answer. True once that is done.
    fn advance_client(&mut self, number: u64, client: &mut Client) -> Result<bool> {
        if client.answer.is_empty() {
            let mut bytes = [0; 1024];
            loop {
                match client.stream.read(&mut bytes) {
                    Ok(0) => return Ok(true),
                    Ok(count) => client.question.extend_from_slice(&bytes[..count]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error.into()),
                }
                if client.question.len() > QUESTION_MAX {
                    return Ok(true);
                }
            }
            let Some(end) = client.question.iter().position(|byte| *byte == b'\n') else {
                return Ok(false);
            };
            let answer = match serde_json::from_slice(&client.question[..end]) {
                Ok(Query::Status) => Answer::Status(self.status()),
                Ok(Query::Stop) => {
                    self.stopping = Some(Stop::Clean);
                    Answer::Stopping
                }
                Err(error) => Answer::Error {
                    message: format!("unknown question: {error}"),
                },
            };
            client.answer = serde_json::to_vec(&answer)?;
            client.answer.push(b'\n');
        }
        while !client.answer.is_empty() {
            match client.stream.write(&client.answer) {
                Ok(count) => drop(client.answer.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let source = Source::Client(number).into();
                    let mut event = EpollEvent::new(EpollFlags::EPOLLOUT, source);
                    self.epoll.modify(&client.stream, &mut event)?;
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn status(&self) -> Status {
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            abi: format!("{}.{}", abi::MAJOR, abi::MINOR),
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs(),
            recovered_vms: self.recovered,
            socket: self.socket.clone(),
            regions: self.regions.iter().map(Served::status).collect(),
            vms: self
                .vms
                .values()
                .map(|vm| control::Vm {
                    connection: vm.saved.number,
                    pid: vm.pid,
                    name: vm.saved.name.clone(),
                    uuid: vm.saved.uuid.map(Into::into),
                    regions: vm
                        .saved
                        .entries
                        .iter()
                        .filter_map(|e| e.region.clone())
                        .collect(),
                    doorbells: vm.saved.peers.len() - vm.unknown(),
                    doorbells_pending: vm.unknown(),
                    requests: vm.requests,
                    throttled: vm.throttled(),
                })
                .collect(),
        }
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
        let files = if self.stopping == Some(Stop::Clean) {
            self.regions
                .iter()
                .map(|served| served.region.path.clone())
                .collect()
        } else {
            Vec::new()
        };
        self.holder.quit();
        run::clean(&self.run, &self.socket, &files, &self.made);
        info!("ends");
        Ok(())
    }
}

impl Served {
    fn status(&self) -> control::Region {
        let (header, geometry) = (&self.region.header, self.region.geometry());
        let members = header
            .members
            .iter()
            .enumerate()
            .filter(|(_, m)| m.generation != 0);
        control::Region {
            name: self.name.clone(),
            uuid: header.uuid.to_string(),
            file: self.region.path.clone(),
            size: geometry.size(),
            slots: geometry.slots(),
            slice_size: geometry.slice_size(),
            repairs: self.region.repairs(),
            members: members.map(|(slot, _)| self.member(slot)).collect(),
        }
    }

    fn member(&self, slot: usize) -> control::Member {
        let member = &self.region.header.members[slot];
        let base = self.region.geometry().slice_offset(slot) as usize;
        let seen = slice::read(self.region.memory(), base)
            .filter(|seen| seen.generation == member.generation);
        let silent = self.beats[slot]
            .filter(|beat| beat.generation == member.generation)
            .map(|beat| beat.since.elapsed());
        let liveness = match (member.present, &seen) {
            (false, _) => Liveness::Absent,
            (true, None) => Liveness::Joining,
            (true, Some(_)) if silent.is_some_and(|silent| silent > SILENT) => Liveness::Silent,
            (true, Some(_)) => Liveness::Alive,
        };
        let seen = seen.unwrap_or_default();
        control::Member {
            slot,
            host: slot == HOST_SLOT,
            name: printable(member.name.as_bytes()),
            uuid: member.uuid.to_string(),
            generation: member.generation,
            liveness,
            silent_seconds: silent.map(|silent| silent.as_secs()),
            addresses: if member.present {
                seen.addresses
            } else {
                Vec::new()
            },
            tx_bytes: seen.tx_bytes,
            rx_bytes: seen.rx_bytes,
            channels: if member.present { seen.channels } else { 0 },
        }
    }
}

fn hostname() -> String {
    let name = nix::unistd::gethostname().unwrap_or_default();
    printable(name.as_encoded_bytes())
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
