// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Outsourcers: processes of the host that execute sockets for guests.
//!
//! Each shares a region with one VM, and is an ordinary member there, with a slot and
//! a generation. The region is made once the VM's guest is known, and is removed with
//! that guest. A process that ends departs, and another one takes its slot with a new
//! generation. Its doorbell stays: QEMU keeps a descriptor for each one that it ever
//! heard of.
//!
//! No outsourcer outlives its daemon by more than the start of the next one. A daemon
//! that ends in order kills its outsourcers, and says that they have departed. The holder
//! keeps a descriptor of each process, and by it the next daemon, or `hallwayd
//! --stop`, kills those that a daemon left that died. A process gets its first order once
//! the holder has it, and ends by itself if none ever comes. Where the holder is killed together
//! with its daemon, nothing knows of them any more: they are left, as the VMs are that
//! have to be restarted then.

mod process;

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hallway_control::Outsourcer;
use hallway_membership::printable;
use hallway_outsource::orders::Order;
use tracing::{error, info, warn};

use self::process::Process;
use crate::config::{Config, VmConfig};
use crate::connections::Connections;
use crate::effect::Effect;
use crate::keeper::{pidfd, Holder, Kept};
use crate::poller::Poller;
use crate::regions::{Regions, Served};

/// Slot of the guest in a region that it has with an outsourcer.
pub const GUEST_SLOT: usize = 1;
/// Slot of the outsourcer there.
pub const OUTSOURCER_SLOT: usize = 2;

/// The variable that names another program than the one beside `hallwayd`.
const PROGRAM_VARIABLE: &str = "HALLWAY_OUTSOURCE";
const PROGRAM: &str = "hallway-outsource";

/// Time between two tries to make a region that could not be made.
const TRY_AGAIN: Duration = Duration::from_secs(10);
/// A process that ends earlier than this counts as failed.
const HEALTHY: Duration = Duration::from_secs(10);
/// Longest time between two processes.
const REST_MAX: Duration = Duration::from_secs(60);

/// Causes of refusals that are shown of one process.
const CAUSES_MAX: usize = 64;

/// A guest that an outsourcer knows: its connection, slot and generation.
type Known = (u64, u32, u32);

/// State of the process of one VM.
enum State {
    /// There is none. Members know once that is `published`.
    Down { published: bool },
    /// It is a member with this generation, and is to be started.
    Due { generation: u32 },
    /// It runs.
    Up {
        process: Process,
        guest: Option<Known>,
    },
}

/// A VM's region, and the process that shares it.
struct Outsourced {
    region: String,
    state: State,
    /// The configuration no longer has it so: it goes.
    withdrawn: bool,
    /// Processes that failed, one after another.
    failures: u32,
    /// No process is started before.
    rest: Instant,
}

impl Outsourced {
    fn new(region: String, withdrawn: bool) -> Self {
        Self {
            region,
            state: State::Down { published: true },
            withdrawn,
            failures: 0,
            rest: Instant::now(),
        }
    }

    /// Its process is no more, or could not be started. The first failure is followed by
    /// another try at once, later ones by longer and longer rests.
    fn fall(&mut self, lived: Duration) {
        self.state = State::Down { published: false };
        self.failures = match lived >= HEALTHY {
            true => 0,
            false => self.failures + 1,
        };
        let rest = match self.failures {
            0 | 1 => Duration::ZERO,
            more => REST_MAX.min(Duration::from_secs(1 << (more - 2).min(6))),
        };
        self.rest = Instant::now() + rest;
    }
}

/// Every outsourcer.
pub struct Outsourcers {
    program: PathBuf,
    /// By the VM's number in the configuration.
    all: BTreeMap<usize, Outsourced>,
    /// VMs without a region, as it could not be made; and when that was.
    refused: BTreeMap<usize, Instant>,
    /// Processes that were killed, and are no VM's any more.
    ending: Vec<Process>,
    /// Number of the next process.
    next: u64,
}

impl Outsourcers {
    /// Goes on with the regions of a daemon before this one. Its processes end: nothing
    /// else than that daemon could tell them of guests.
    pub fn recover(regions: &Regions, config: &Config, kept: &Kept) -> Result<Self> {
        pidfd::kill_outsourcers(kept);
        let mut all = BTreeMap::new();
        for served in regions.iter() {
            let Some(vm) = config.outsourced_named(&served.name) else {
                continue;
            };
            let outsource = config.vms[vm].outsource.as_ref();
            let fits = |geometry| served.region.geometry() == geometry;
            let withdrawn = !outsource.is_some_and(|outsource| fits(outsource.geometry));
            all.insert(vm, Outsourced::new(served.name.clone(), withdrawn));
        }
        Ok(Self {
            program: program()?,
            all,
            refused: BTreeMap::new(),
            ending: Vec::new(),
            next: 0,
        })
    }

    /// Names of all regions.
    pub fn regions(&self) -> Vec<String> {
        self.all.values().map(|one| one.region.clone()).collect()
    }

    /// Name of the region that a VM should have.
    pub fn of(&self, vm: usize) -> Option<&str> {
        let own = self.all.get(&vm).filter(|one| !one.withdrawn);
        own.map(|one| one.region.as_str())
    }

    /// What is known of a VM's outsourcer, if one runs.
    pub fn status(&self, vm: usize) -> Option<Outsourcer> {
        let State::Up { process, .. } = &self.all.get(&vm)?.state else {
            return None;
        };
        let report = &process.report;
        let causes = report.refused.iter().take(CAUSES_MAX);
        Some(Outsourcer {
            pid: process.pid,
            sockets: report.sockets,
            listeners: report.listeners,
            sent_bytes: report.sent,
            received_bytes: report.received,
            refused: causes
                .map(|(cause, count)| (printable(cause.as_bytes()), *count))
                .collect(),
            corrupt: report.corrupt,
        })
    }

    /// Why a VM may not migrate now without the loss of connections.
    pub fn check_migration(&self, vm: usize) -> Result<(), String> {
        let state = self.all.get(&vm).map(|one| &one.state);
        let Some(State::Up {
            process,
            guest: Some(_),
        }) = state
        else {
            return Ok(());
        };
        match process.sockets() {
            Some(0) => Ok(()),
            Some(count) => Err(format!("it has {count} outsourced connections")),
            None => Err("its outsourcer does not say how many connections it has".into()),
        }
    }

    /// Asks each process for its state.
    pub fn every_second(&mut self, config: &Config) {
        for (vm, one) in &mut self.all {
            let State::Up { process, guest } = &mut one.state else {
                continue;
            };
            // One without a guest has nothing to say, and may not be confined yet.
            if guest.is_none() {
                continue;
            }
            if let Err(error) = process.ask_report() {
                let vm = &config.vms[*vm].name;
                warn!(vm, "its outsourcer gives no report: {error:#}");
                process.kill();
            }
        }
    }

    /// Whether a region is on its way out.
    pub fn is_withdrawn(&self, region: &str) -> bool {
        let mut all = self.all.values();
        all.any(|one| one.withdrawn && one.region == region)
    }

    /// The VMs with a known guest and without a region.
    pub fn lacking(
        &self,
        config: &Config,
        connections: &Connections,
        regions: &Regions,
    ) -> Vec<usize> {
        let waits = |at: &Instant| at.elapsed() < TRY_AGAIN;
        let is_lacking = |(number, vm): &(usize, &VmConfig)| {
            vm.outsource.is_some()
                && !self.all.contains_key(number)
                && !self.refused.get(number).is_some_and(waits)
                && connections.of_guest(vm.uuid).is_some()
                && !regions.lingers(&config.outsourced_name(*number))
        };
        let vms = config.vms.iter().enumerate().filter(is_lacking);
        vms.map(|(number, _)| number).collect()
    }

    /// Enters whether the region of a VM could be `made`. One that could not is tried
    /// again later.
    pub fn enter(&mut self, vm: usize, region: String, made: bool) {
        if made {
            self.refused.remove(&vm);
            self.all.insert(vm, Outsourced::new(region, false));
        } else {
            self.refused.insert(vm, Instant::now());
        }
    }

    /// Where a process is to be started. Each gets a place in its region first.
    pub fn take_due(&mut self) -> Vec<(usize, String)> {
        let now = Instant::now();
        let is_due = |(_, one): &(&usize, &Outsourced)| {
            let rests = now < one.rest || one.withdrawn;
            matches!(one.state, State::Down { published: true }) && !rests
        };
        let due = self.all.iter().filter(is_due);
        due.map(|(vm, one)| (*vm, one.region.clone())).collect()
    }

    /// A process is a member, and is to be started with the next commit.
    pub fn hear_entered(&mut self, vm: usize, generation: u32) {
        if let Some(one) = self.all.get_mut(&vm) {
            one.state = State::Due { generation };
        }
    }

    /// Starts the processes that are due, and tells each whether its guest is there.
    /// Members have read of them.
    pub fn run(
        &mut self,
        config: &Config,
        connections: &Connections,
        regions: &Regions,
        holder: Option<&Holder>,
        poller: &Poller,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        for (vm, one) in &mut self.all {
            let (vm, served) = (&config.vms[*vm], regions.get(&one.region));
            let (Some(served), Some(outsource)) = (served, &vm.outsource) else {
                continue;
            };
            match &mut one.state {
                State::Down { published } => *published = true,
                State::Due { generation } => {
                    let order = Order::Start {
                        size: served.size(),
                        slot: OUTSOURCER_SLOT as u32,
                        generation: *generation,
                        slots: served.region.geometry().slots(),
                        slice_offset: served.region.geometry().slice_offset(OUTSOURCER_SLOT),
                        slice_size: served.region.geometry().slice_size(),
                        policy: outsource.policy.clone(),
                    };
                    self.next += 1;
                    let ended = &mut self.ending;
                    let started = Process::start(self.next, &self.program, outsource);
                    let started = started.and_then(|mut process| {
                        keep(&mut process, holder);
                        let watched = process.watch(poller);
                        let ready = watched.and_then(|()| {
                            introduce(&process, &order, &one.region, served, connections)
                        });
                        match ready {
                            Ok(()) => Ok(process),
                            Err(error) => {
                                process.kill();
                                ended.push(process);
                                Err(error)
                            }
                        }
                    });
                    match started {
                        Ok(process) => {
                            info!(vm = vm.name, pid = process.pid, "its outsourcer runs");
                            let guest = None;
                            one.state = State::Up { process, guest };
                        }
                        Err(error) => {
                            error!(vm = vm.name, "no outsourcer can be started: {error:#}");
                            one.fall(Duration::ZERO);
                            effects.push(left(&vm.name, &one.region));
                        }
                    }
                }
                State::Up { process, .. } => keep(process, holder),
            }
            if let State::Up { process, guest } = &mut one.state {
                if let Err(error) = tell(process, guest, &one.region, served, connections) {
                    warn!(vm = vm.name, "its outsourcer does not listen: {error:#}");
                    process.kill();
                }
            }
        }
        effects
    }

    /// Has the holder keep nothing yet: it is another one.
    pub fn keep_again(&mut self) {
        for one in self.all.values_mut() {
            if let State::Up { process, .. } = &mut one.state {
                process.kept = false;
            }
        }
    }

    /// A process has ended.
    pub fn hear_ended(
        &mut self,
        number: u64,
        config: &Config,
        holder: &Holder,
        poller: &Poller,
    ) -> Vec<Effect> {
        if let Some(at) = self.ending.iter().position(|one| one.number == number) {
            self.ending.swap_remove(at).bury(Some(holder), poller);
            return Vec::new();
        }
        for (vm, one) in &mut self.all {
            let State::Up { process, .. } = &one.state else {
                continue;
            };
            if process.number == number {
                let why = process.bury(Some(holder), poller);
                let (name, lived) = (&config.vms[*vm].name, process.started.elapsed());
                warn!(vm = name, "its outsourcer ended: {why}");
                one.fall(lived);
                return vec![left(name, &one.region)];
            }
        }
        Vec::new()
    }

    /// The regions that are to go: they are withdrawn, or their guest has gone.
    pub fn leaving(&self, config: &Config, connections: &Connections) -> Vec<(usize, String)> {
        let is_leaving = |(vm, one): &(&usize, &Outsourced)| {
            one.withdrawn || connections.of_guest(config.vms[**vm].uuid).is_none()
        };
        let leaving = self.all.iter().filter(is_leaving);
        leaving.map(|(vm, one)| (*vm, one.region.clone())).collect()
    }

    /// Forgets a VM after its region is removed, and ends its process.
    pub fn remove(&mut self, vm: usize) {
        let state = self.all.remove(&vm).map(|one| one.state);
        if let Some(State::Up { process, .. }) = state {
            process.kill();
            self.ending.push(process);
        }
    }

    /// Ends all processes, and waits for that.
    pub fn end(&mut self, config: &Config) -> Vec<Effect> {
        let mut effects = Vec::new();
        let mut ended = std::mem::take(&mut self.ending);
        for (vm, one) in &mut self.all {
            let down = State::Down { published: false };
            match std::mem::replace(&mut one.state, down) {
                State::Down { .. } => continue,
                State::Due { .. } => {}
                State::Up { process, .. } => {
                    process.kill();
                    ended.push(process);
                }
            }
            effects.push(left(&config.vms[*vm].name, &one.region));
        }
        for process in ended {
            if !process.wait() {
                warn!(pid = process.pid, "an outsourcer does not end");
            }
        }
        effects
    }
}

/// The departure of a VM's outsourcer.
fn left(vm: &str, region: &str) -> Effect {
    Effect::Leave {
        label: format!("outsourcer of {vm}"),
        region: region.into(),
        slot: OUTSOURCER_SLOT,
    }
}

/// Has the holder keep a process. Where that fails, the holder has ended; the next one gets it.
fn keep(process: &mut Process, holder: Option<&Holder>) {
    if let Some(holder) = holder.filter(|_| !process.kept) {
        process.kept = process.keep(holder).is_ok();
    }
}

/// Tells a process what it is.
fn introduce(
    process: &Process,
    order: &Order,
    region: &str,
    served: &Served,
    connections: &Connections,
) -> Result<()> {
    let memory = served.region.descriptor().context("it is a file")?;
    let bell = connections.outsourcer_bell(region);
    process.send(order, &[memory, bell.context("it has no doorbell")?])
}

/// Tells a process whether its guest is there, if that has changed.
fn tell(
    process: &mut Process,
    known: &mut Option<Known>,
    region: &str,
    served: &Served,
    connections: &Connections,
) -> Result<()> {
    let mut all = connections.iter();
    let guest = all.find_map(|one| Some((one, one.entry(region)?)));
    let now = guest.map(|(one, entry)| (one.number, entry.slot, entry.generation));
    if now == *known {
        return Ok(());
    }
    if known.take().is_some() {
        process.send(&Order::Departed, &[])?;
        process.forget_guest();
    }
    if let Some((one, entry)) = guest {
        let geometry = served.region.geometry();
        let order = Order::Guest {
            slot: entry.slot,
            generation: entry.generation,
            slice_offset: geometry.slice_offset(entry.slot as usize),
            slice_size: geometry.slice_size(),
        };
        process.send(&order, &[one.line.bell()?.as_fd()])?;
    }
    *known = now;
    Ok(())
}

/// The program that executes sockets.
fn program() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(PROGRAM_VARIABLE).filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    let own = std::env::current_exe().context("/proc/self/exe")?;
    Ok(own.with_file_name(PROGRAM))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_fails_again_and_again_rests_longer_and_longer() {
        let mut one = Outsourced::new("out.a".into(), false);
        let mut fall = |lived| {
            let now = Instant::now();
            one.fall(lived);
            one.rest
                .saturating_duration_since(now)
                .as_secs_f64()
                .round() as u64
        };
        let rests: Vec<u64> = (0..10).map(|_| fall(Duration::ZERO)).collect();
        assert_eq!(rests, [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(fall(HEALTHY), 0);
    }
}
