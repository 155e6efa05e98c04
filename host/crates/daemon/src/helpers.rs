// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Helpers: processes of the host that each serve one guest. An outsourcer executes sockets
//! for it, a host end connects programs of the host with it.
//!
//! Each shares a region with one VM, and is an ordinary member there, with a slot and
//! a generation. The region is made once the VM's guest is known, and is removed with
//! that guest. A process that ends departs, and another one takes its slot with a new
//! generation. Its doorbell stays: QEMU keeps a descriptor for each one that it ever
//! heard of.
//!
//! The holder keeps doorbell, control socket and a descriptor of each process, so the
//! next daemon goes on with the same processes, and no connection notices. It gives them
//! the policy of its configuration. Those that do not fit that, and those that the state
//! does not name, it kills, as does `hallwayd --stop`. A process gets its first order
//! once the holder has it, and ends by itself if none ever comes. Where the holder is
//! killed together with its daemon, nothing knows of them any more: they are left, as the
//! VMs are that have to be restarted then.

mod cgroups;
mod listen;
mod process;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hallway_control::Helper as Shown;
use hallway_endpoint::orders::Order;
use hallway_membership::printable;
use hallway_outsource::orders::Policy;
use tracing::{error, info, warn};

use self::cgroups::Cgroups;
use self::process::Process;
use crate::config::{Config, Helper, HelperId, Role, Task};
use crate::connections::Connections;
use crate::effect::Effect;
use crate::keeper::{pidfd, Holder, Kept, SavedHelper};
use crate::poller::Poller;
use crate::program;
use crate::regions::{Regions, Served};

/// Slot of the guest in a region that it has with a helper.
pub const GUEST_SLOT: usize = 1;
/// Slot of the helper there.
pub const HELPER_SLOT: usize = 2;

/// A program, and the variable that names another one than that beside `hallwayd`.
fn names(role: Role) -> (&'static str, &'static str) {
    match role {
        Role::Outsource => ("hallway-outsource", "HALLWAY_OUTSOURCE"),
        Role::Tunnels => ("hallway-host", "HALLWAY_HOST"),
    }
}

/// Time between two tries to make a region that could not be made.
const TRY_AGAIN: Duration = Duration::from_secs(10);
/// How long a guest may take to be drained of a process that ended.
const DRAIN: Duration = Duration::from_secs(2);
/// A process that ends earlier than this counts as failed.
const HEALTHY: Duration = Duration::from_secs(10);
/// Longest time between two processes.
const REST_MAX: Duration = Duration::from_secs(60);

/// Causes of refusals that are shown of one process.
const CAUSES_MAX: usize = 64;

/// A guest that a helper knows: its connection, slot and generation.
type Known = (u64, u32, u32);

/// State of a process.
enum State {
    /// There is none. Its guest may still read what it had received.
    Down { left: Left },
    /// It is a member with this generation, and is to be started.
    Due { generation: u32 },
    /// It runs.
    Up {
        process: Process,
        generation: u32,
        /// What it knows of its guest. Nothing: a daemon before this one knew that.
        knows: Option<Option<Known>>,
    },
}

/// How far the departure of a process is.
#[derive(Clone, Copy)]
enum Left {
    /// Members do not know of it.
    Unknown,
    /// They do since then, by this change of the region.
    Published(Instant, u32),
    /// There was none, or the guest is drained of it.
    Drained,
}

/// A VM's region, and the process that shares it.
struct Helped {
    region: String,
    state: State,
    /// The configuration no longer has it so: it goes.
    withdrawn: bool,
    /// Processes that failed, one after another.
    failures: u32,
    /// No process is started before.
    rest: Instant,
    /// How the last one ended, or why it could not be started.
    why: Option<String>,
}

impl Helped {
    fn new(region: String, withdrawn: bool) -> Self {
        Self {
            region,
            state: State::Down {
                left: Left::Drained,
            },
            withdrawn,
            failures: 0,
            rest: Instant::now(),
            why: None,
        }
    }

    /// Its process is no more, or could not be started. The first failure is followed by
    /// another try at once, later ones by longer and longer rests.
    fn fall(&mut self, lived: Duration, why: String) {
        self.why = Some(why);
        self.state = State::Down {
            left: Left::Unknown,
        };
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

    /// Why none runs, if one has failed. Nothing: one runs, or is to be started at once.
    fn trouble(&self) -> Option<&str> {
        let is_up = matches!(self.state, State::Up { .. });
        self.why
            .as_deref()
            .filter(|_| !is_up && !self.withdrawn && self.failures > 0)
    }
}

/// Every helper.
pub struct Helpers {
    all: BTreeMap<HelperId, Helped>,
    /// Those without a region, as it could not be made; when that was, and why.
    refused: BTreeMap<HelperId, (Instant, String)>,
    /// Processes that were killed, and are no VM's any more.
    ending: Vec<Process>,
    /// Number of the next process.
    next: u64,
    /// Where the processes are.
    cgroups: Cgroups,
    /// What a later daemon must know has changed.
    unsaved: bool,
}

impl Helpers {
    /// Goes on with the regions of a daemon before this one, and with its processes.
    /// Those that do not fit the configuration end.
    pub fn recover(
        regions: &Regions,
        connections: &Connections,
        config: &Config,
        saved: &[SavedHelper],
        kept: &mut Kept,
    ) -> Result<Self> {
        let (mut all, mut next) = (BTreeMap::new(), 0);
        let ids = config.helper_ids();
        let names: Vec<_> = ids.map(|id| config.helper_region(id)).collect();
        let cgroups = Cgroups::make(&names);
        for served in regions.iter() {
            let Some(id) = config.helper_named(&served.name) else {
                continue;
            };
            let helper = config.helper(id);
            let fits = |geometry| served.region.geometry() == geometry;
            // Another VM may have that name now.
            let is_its = served.owners == config.owners(&served.name);
            let helper = helper.filter(|helper| is_its && fits(helper.geometry));
            let mut one = Helped::new(served.name.clone(), helper.is_none());
            // The first commit says so: its guest may have to read what is left.
            let members = &served.region.header.members;
            if members.get(HELPER_SLOT).is_some_and(|one| one.present) {
                one.state = State::Down {
                    left: Left::Unknown,
                };
            }
            let its = saved.iter().find(|saved| saved.region == served.name);
            let doorbell = connections.helper_doorbell(&served.name);
            if let (Some(helper), Some(its), Some(_)) = (helper, its, doorbell) {
                next += 1;
                if let Some(process) = adopt(next, helper, its, served, &cgroups, kept) {
                    info!(
                        vm = config.vms[id.vm].name,
                        pid = its.pid,
                        "its {} goes on",
                        id.role
                    );
                    one.state = State::Up {
                        process,
                        generation: its.generation,
                        knows: None,
                    };
                }
            }
            all.insert(id, one);
        }
        pidfd::kill_helpers(kept);
        Ok(Self {
            all,
            refused: BTreeMap::new(),
            ending: Vec::new(),
            next,
            cgroups,
            unsaved: true,
        })
    }

    /// Watches for the end of the processes that were there before.
    pub fn watch(&self, poller: &Poller) -> Result<()> {
        for one in self.all.values() {
            if let State::Up { process, .. } = &one.state {
                process.watch(poller)?;
            }
        }
        Ok(())
    }

    /// Whether a process serves a region.
    pub fn serves(&self, region: &str) -> bool {
        let mut all = self.all.values();
        all.any(|one| one.region == region && matches!(one.state, State::Up { .. }))
    }

    /// Whether a later daemon does not know all that it must.
    pub fn is_unsaved(&self) -> bool {
        self.unsaved
    }

    /// What a later daemon must know of the processes.
    pub fn saved(&self, config: &Config) -> Vec<SavedHelper> {
        let saved = |(id, one): (&HelperId, &Helped)| {
            let helper = config.helper(*id)?;
            let State::Up {
                process,
                generation,
                ..
            } = &one.state
            else {
                return None;
            };
            Some(save(helper, &one.region, *generation, process.pid))
        };
        self.all.iter().filter_map(saved).collect()
    }

    /// The holder has the state.
    pub fn on_saved(&mut self) {
        self.unsaved = false;
    }

    /// Has a holder keep the processes that it does not keep yet.
    pub fn keep(&mut self, holder: &Holder) {
        for one in self.all.values_mut() {
            if let State::Up { process, .. } = &mut one.state {
                keep(process, Some(holder));
            }
        }
    }

    /// Names of all regions.
    pub fn regions(&self) -> Vec<String> {
        self.all.values().map(|one| one.region.clone()).collect()
    }

    /// Names of the regions that a VM should have.
    pub fn of(&self, vm: usize) -> impl Iterator<Item = &str> {
        let all = self.all.iter();
        let own = all.filter(move |(id, one)| id.vm == vm && !one.withdrawn);
        own.map(|(_, one)| one.region.as_str())
    }

    /// What is known of a helper, if it runs.
    pub fn status(&self, id: HelperId) -> Option<Shown> {
        let State::Up { process, .. } = &self.all.get(&id)?.state else {
            return None;
        };
        let report = &process.report;
        let causes = report.refused.iter().take(CAUSES_MAX);
        Some(Shown {
            pid: process.pid,
            sockets: report.sockets,
            closing: report.closing,
            listeners: report.listeners,
            datagrams: report.datagrams,
            sent_bytes: report.sent,
            received_bytes: report.received,
            refused: causes
                .map(|(cause, count)| (printable(cause.as_bytes()), *count))
                .collect(),
            delayed: report.delayed,
            corrupt: report.corrupt,
        })
    }

    /// Why a helper does not run though it should, and how long till it is tried again.
    pub fn trouble(&self, id: HelperId) -> Option<(String, Duration)> {
        let now = Instant::now();
        if let Some((at, why)) = self.refused.get(&id) {
            let next_try = (*at + TRY_AGAIN).saturating_duration_since(now);
            return Some((format!("its region cannot be made: {why}"), next_try));
        }
        let one = self.all.get(&id)?;
        let why = one.trouble()?;
        Some((why.into(), one.rest.saturating_duration_since(now)))
    }

    /// Why a VM may not migrate now without the loss of connections.
    pub fn check_migration(&self, vm: usize) -> Result<(), String> {
        let state = self
            .all
            .get(&HelperId::outsourcer(vm))
            .map(|one| &one.state);
        let Some(State::Up {
            process,
            knows: None | Some(Some(_)),
            ..
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

    /// Has a VM get no more connections for a while. Returns how many it has, or one where
    /// its process has not said so lately.
    pub fn drain(&mut self, vm: usize, config: &Config) -> Result<u32, String> {
        let one = self.all.get_mut(&HelperId::outsourcer(vm));
        let state = one.map(|one| &mut one.state);
        let Some(State::Up {
            process,
            knows: None | Some(Some(_)),
            ..
        }) = state
        else {
            return Ok(0);
        };
        let task = config.helper(HelperId::outsourcer(vm)).map(|one| &one.task);
        let policy = match task {
            Some(Task::Outsource(policy)) => policy.clone(),
            _ => Policy::default(),
        };
        let drained = Task::Outsource(Policy {
            is_draining: true,
            sockets: 0,
            ..policy
        });
        process
            .drain(&drained)
            .map_err(|error| format!("its outsourcer does not listen: {error:#}"))?;
        Ok(process.sockets().unwrap_or(1))
    }

    /// Asks each process for its state.
    pub fn every_second(&mut self, config: &Config) {
        for (id, one) in &mut self.all {
            // One without a guest has nothing to say, and may not be confined yet.
            let State::Up {
                process,
                knows: Some(Some(_)),
                ..
            } = &mut one.state
            else {
                continue;
            };
            let helper = config.helper(*id);
            let undrained = helper.map_or(Ok(()), |one| process.end_drain(&one.task));
            if let Err(error) = undrained.and_then(|()| process.ask_report()) {
                let vm = &config.vms[id.vm].name;
                warn!(vm, "its {} gives no report: {error:#}", id.role);
                process.kill();
            }
        }
    }

    /// Whether a region is on its way out.
    pub fn is_withdrawn(&self, region: &str) -> bool {
        let mut all = self.all.values();
        all.any(|one| one.withdrawn && one.region == region)
    }

    /// Those with a known guest and without a region.
    pub fn lacking(
        &self,
        config: &Config,
        connections: &Connections,
        regions: &Regions,
    ) -> Vec<HelperId> {
        let waits = |(at, _): &(Instant, String)| at.elapsed() < TRY_AGAIN;
        let is_lacking = |id: &HelperId| {
            !self.all.contains_key(id)
                && !self.refused.get(id).is_some_and(waits)
                && connections.of_guest(config.vms[id.vm].uuid).is_some()
                && !regions.lingers(&config.helper_region(*id))
        };
        config.helper_ids().filter(is_lacking).collect()
    }

    /// Enters whether the region of a helper could be `made`. One that could not is tried
    /// again later.
    pub fn enter(&mut self, id: HelperId, region: String, made: Result<()>) {
        match made {
            Ok(()) => {
                self.refused.remove(&id);
                self.all.insert(id, Helped::new(region, false));
            }
            Err(error) => {
                self.refused
                    .insert(id, (Instant::now(), format!("{error:#}")));
            }
        }
    }

    /// Forgets what could not be made for guests that have gone.
    pub fn forget_refused(&mut self, config: &Config, connections: &Connections) {
        let is_here = |id: &HelperId| connections.of_guest(config.vms[id.vm].uuid).is_some();
        self.refused.retain(|id, _| is_here(id));
    }

    /// Where a process is to be started. Each gets a place in its region first: that of
    /// the one before, once the guest is drained of it.
    pub fn take_due(&mut self, regions: &Regions) -> Vec<(HelperId, String)> {
        let now = Instant::now();
        for one in self.all.values_mut() {
            let State::Down { left } = &mut one.state else {
                continue;
            };
            if let Left::Published(since, change) = *left {
                let served = regions.get(&one.region);
                let drained = served.is_none_or(|served| served.is_drained(GUEST_SLOT, change));
                if drained || now - since >= DRAIN {
                    *left = Left::Drained;
                }
            }
        }
        let is_due = |(_, one): &(&HelperId, &Helped)| {
            let rests = now < one.rest || one.withdrawn;
            matches!(
                one.state,
                State::Down {
                    left: Left::Drained
                }
            ) && !rests
        };
        let due = self.all.iter().filter(is_due);
        due.map(|(id, one)| (*id, one.region.clone())).collect()
    }

    /// Whether a guest is waited for, which does not ring when it is drained.
    pub fn are_waiting(&self) -> bool {
        let is_waiting = |one: &Helped| {
            matches!(
                one.state,
                State::Down {
                    left: Left::Published(..)
                }
            )
        };
        self.all.values().any(is_waiting)
    }

    /// A process is a member, and is to be started with the next commit.
    pub fn hear_entered(&mut self, id: HelperId, generation: u32) {
        if let Some(one) = self.all.get_mut(&id) {
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
        for (id, one) in &mut self.all {
            let (vm, role) = (&config.vms[id.vm], id.role);
            let served = regions.get(&one.region);
            let (Some(served), Some(helper)) = (served, config.helper(*id)) else {
                continue;
            };
            match &mut one.state {
                State::Down { left } => {
                    if let Left::Unknown = left {
                        *left = Left::Published(Instant::now(), served.region.header.change);
                    }
                }
                State::Due { generation } => {
                    let order = Order::Start {
                        size: served.size(),
                        slot: HELPER_SLOT as u32,
                        generation: *generation,
                        slots: served.region.geometry().slots(),
                        slice_offset: served.region.geometry().slice_offset(HELPER_SLOT),
                        slice_size: served.region.geometry().slice_size(),
                        policy: helper.task.clone(),
                    };
                    self.next += 1;
                    let ended = &mut self.ending;
                    let listeners = listen::listen(helper.listen.as_ref());
                    let started = listeners.and_then(|listeners| {
                        let cgroup = self.cgroups.open(&one.region)?;
                        let (name, variable) = names(role);
                        let program = program::find(name, variable)?;
                        let process = Process::start(self.next, &program, helper, cgroup)?;
                        Ok((process, listeners))
                    });
                    let started = started.and_then(|(mut process, listeners)| {
                        keep(&mut process, holder);
                        let watched = process.watch(poller);
                        let ready = watched.and_then(|()| {
                            introduce(
                                &process,
                                &order,
                                &listeners,
                                &one.region,
                                served,
                                connections,
                            )
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
                            info!(vm = vm.name, pid = process.pid, "its {role} runs");
                            one.state = State::Up {
                                process,
                                generation: *generation,
                                knows: Some(None),
                            };
                            self.unsaved = true;
                        }
                        Err(error) => {
                            error!(vm = vm.name, "no {role} can be started: {error:#}");
                            one.fall(Duration::ZERO, format!("{error:#}"));
                            effects.push(left(&vm.name, role, &one.region));
                        }
                    }
                }
                State::Up { .. } => {}
            }
            if let State::Up { process, knows, .. } = &mut one.state {
                if let Err(error) = tell(process, knows, &one.region, served, connections) {
                    warn!(vm = vm.name, "its {role} does not listen: {error:#}");
                    process.kill();
                }
            }
        }
        effects
    }

    /// The holder keeps nothing: it has ended, or is another one.
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
        for (id, one) in &mut self.all {
            let State::Up { process, .. } = &one.state else {
                continue;
            };
            if process.number == number {
                let why = process.bury(Some(holder), poller);
                let (name, lived) = (&config.vms[id.vm].name, process.started.elapsed());
                warn!(vm = name, "its {} ended: {why}", id.role);
                one.fall(lived, format!("it ended: {why}"));
                return vec![left(name, id.role, &one.region)];
            }
        }
        Vec::new()
    }

    /// The regions that are to go: they are withdrawn, or their guest has gone.
    pub fn leaving(&self, config: &Config, connections: &Connections) -> Vec<(HelperId, String)> {
        let is_leaving = |(id, one): &(&HelperId, &Helped)| {
            one.withdrawn || connections.of_guest(config.vms[id.vm].uuid).is_none()
        };
        let leaving = self.all.iter().filter(is_leaving);
        leaving.map(|(id, one)| (*id, one.region.clone())).collect()
    }

    /// Forgets a helper after its region is removed, and ends its process.
    pub fn remove(&mut self, id: HelperId) {
        let state = self.all.remove(&id).map(|one| one.state);
        if let Some(State::Up { process, .. }) = state {
            process.kill();
            self.ending.push(process);
        }
    }

    /// Ends all processes, and waits for that.
    pub fn end(&mut self, config: &Config) -> Vec<Effect> {
        let mut effects = Vec::new();
        let mut ended = std::mem::take(&mut self.ending);
        for (id, one) in &mut self.all {
            let down = State::Down {
                left: Left::Unknown,
            };
            match std::mem::replace(&mut one.state, down) {
                State::Down { .. } => continue,
                State::Due { .. } => {}
                State::Up { process, .. } => {
                    process.kill();
                    ended.push(process);
                }
            }
            effects.push(left(&config.vms[id.vm].name, id.role, &one.region));
        }
        for process in ended {
            if !process.wait() {
                warn!(pid = process.pid, "a helper does not end");
            }
        }
        effects
    }
}

/// The departure of a VM's helper.
fn left(vm: &str, role: Role, region: &str) -> Effect {
    Effect::Leave {
        label: format!("{role} of {vm}"),
        region: region.into(),
        slot: HELPER_SLOT,
    }
}

/// What a later daemon must know of a process.
fn save(helper: &Helper, region: &str, generation: u32, pid: u32) -> SavedHelper {
    SavedHelper {
        region: region.into(),
        generation,
        pid,
        netns: helper.netns.clone(),
        user: helper.user.as_raw(),
        group: helper.group.as_raw(),
        listen: helper.listen.clone(),
    }
}

/// Takes over the process of the daemon before, with the policy that it is to have from
/// now on. Nothing: it does not fit, or has ended.
fn adopt(
    number: u64,
    helper: &Helper,
    saved: &SavedHelper,
    served: &Served,
    cgroups: &Cgroups,
    kept: &mut Kept,
) -> Option<Process> {
    let member = served.region.header.members.get(HELPER_SLOT)?;
    let is_member = member.present && member.generation == saved.generation;
    if !is_member || *saved != save(helper, &served.name, saved.generation, saved.pid) {
        return None;
    }
    let process = Process::recover(number, saved.pid, kept)?;
    let netns = helper.netns.as_ref();
    if netns.is_some_and(|netns| !process.is_in(netns)) {
        return None;
    }
    if !cgroups.holds(&served.name, saved.pid) {
        return None;
    }
    match process.change_policy(&helper.task) {
        Ok(()) => {
            process.claim(kept);
            Some(process)
        }
        Err(error) => {
            warn!(pid = saved.pid, "a helper does not listen: {error:#}");
            None
        }
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
    order: &Order<Task>,
    listeners: &[OwnedFd],
    region: &str,
    served: &Served,
    connections: &Connections,
) -> Result<()> {
    let memory = served.region.descriptor().context("it is a file")?;
    let doorbell = connections.helper_doorbell(region);
    let mut fds = vec![memory, doorbell.context("it has no doorbell")?];
    fds.extend(listeners.iter().map(AsFd::as_fd));
    process.send(order, &fds)
}

/// Tells a process whether its guest is there, if that has changed.
fn tell(
    process: &mut Process,
    knows: &mut Option<Option<Known>>,
    region: &str,
    served: &Served,
    connections: &Connections,
) -> Result<()> {
    let mut all = connections.iter();
    let guest = all.find_map(|one| Some((one, one.entry(region)?)));
    let now = guest.map(|(one, entry)| (one.number, entry.slot, entry.generation));
    if *knows == Some(now) {
        return Ok(());
    }
    // The order about the same guest again changes nothing.
    if knows.map_or(now.is_none(), |known| known.is_some()) {
        process.send(&Order::<Task>::Departed, &[])?;
        process.forget_guest();
    }
    if let Some((one, entry)) = guest {
        let geometry = served.region.geometry();
        let order: Order<Task> = Order::Guest {
            slot: entry.slot,
            generation: entry.generation,
            slice_offset: geometry.slice_offset(entry.slot as usize),
            slice_size: geometry.slice_size(),
        };
        process.send(&order, &[one.line.doorbell()?.as_fd()])?;
    }
    *knows = Some(now);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_fails_again_and_again_rests_longer_and_longer() {
        let mut one = Helped::new("out.a".into(), false);
        let mut fall = |lived| {
            let now = Instant::now();
            one.fall(lived, "no program".into());
            one.rest
                .saturating_duration_since(now)
                .as_secs_f64()
                .round() as u64
        };
        let rests: Vec<u64> = (0..10).map(|_| fall(Duration::ZERO)).collect();
        assert_eq!(rests, [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(fall(HEALTHY), 0);
    }

    #[test]
    fn one_that_has_failed_says_why_until_another_is_healthy() {
        let mut one = Helped::new("out.a".into(), false);
        assert_eq!(one.trouble(), None);
        one.fall(Duration::ZERO, "no program".into());
        assert_eq!(one.trouble(), Some("no program"));
        one.withdrawn = true;
        assert_eq!(one.trouble(), None);
        one.withdrawn = false;
        one.fall(HEALTHY, "it ended: SIGKILL".into());
        assert_eq!(one.trouble(), None);
    }
}
