// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The VMs of the configuration, and getting each the ring memory that it should
//! have, through its monitor.
//!
//! Memory is plugged in once the guest's module has asked something: before
//! that, firmware may place it where the guest maps it uncached. What others take
//! out (an operator, a migration) stays out until the guest's module starts again. What a
//! release takes out stays out until it is resumed, or another QEMU runs the VM.

mod bridge;
mod migrate;
mod monitor;
mod news;
mod vm;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use hallway_control::{self as control, Migration, Release};
use hallway_membership::Uuid;
use nix::sys::epoll::EpollFlags;
use tracing::warn;

use self::bridge::Bridge;
use self::monitor::{Handle, Newsroom, Way};
pub use self::news::News;
use self::news::PREFIX;
use self::vm::Vm;
use crate::config::{Config, Place};
use crate::connections::{Connection, Connections};
use crate::effect::Effect;
use crate::keeper::SavedRelease;
use crate::poller::{Poller, Source};
use crate::regions::Regions;

/// What is said of a guest that does not let go what it may no longer have.
const KEPT: &str = "may no longer be a member, and does not let the memory go: taken out; until \
     the VM ends it can read and write the region";

/// Every VM of the configuration, by its number there.
pub struct Vms {
    all: Vec<Vm>,
    /// The releases that the holder knows of.
    saved: Vec<SavedRelease>,
    newsroom: Newsroom,
    bridge: Arc<Bridge>,
}

impl Vms {
    /// Starts looking after the monitors of the configuration. `released`: VMs that a daemon
    /// before this one had release their ring memory.
    pub fn start(config: &Config, released: &[SavedRelease]) -> Result<Self> {
        let newsroom = Newsroom::new()?;
        let bridge = Arc::new(Bridge::default());
        let mut all = Vec::new();
        for (number, vm) in config.vms.iter().enumerate() {
            let start = |place| {
                let way = match place {
                    Place::Socket(path) => Way::Socket(path),
                    Place::Libvirt => Way::Libvirt(bridge.clone(), vm.uuid),
                };
                Handle::new(number, way, vm.ports.clone(), &newsroom)
            };
            let monitor = vm.monitor.clone().map(start).transpose()?;
            let place = vm.monitor.as_ref().map(|place| place.word().into());
            let mut made = Vm::new(vm.name.clone(), vm.uuid, place, monitor);
            if let Some(saved) = released.iter().find(|saved| saved.vm == vm.uuid) {
                made.recover_release(saved.qemu);
            }
            all.push(made);
        }
        Ok(Self {
            all,
            saved: released.to_vec(),
            newsroom,
            bridge,
        })
    }

    /// Ends the process that speaks with libvirt.
    pub fn end(&self) {
        self.bridge.end();
    }

    /// Watches for news of the monitors.
    pub fn watch(&self, poller: &Poller) -> Result<()> {
        poller.watch(&self.newsroom, Source::Monitors, EpollFlags::EPOLLIN)
    }

    /// The news that came, each with the number of its VM.
    pub fn take_news(&self) -> Vec<(usize, News)> {
        self.newsroom.hush();
        let all = self.all.iter().enumerate();
        let news = all.flat_map(|(number, vm)| vm.take_news().map(move |news| (number, news)));
        news.collect()
    }

    /// Numbers of those that are about to lose their ring memory.
    pub fn leaving(&self) -> impl Iterator<Item = usize> + '_ {
        let all = self.all.iter().enumerate();
        all.filter_map(|(number, vm)| vm.is_leaving().then_some(number))
    }

    /// Does what is due once a second.
    pub fn every_second(&mut self) {
        self.all.iter_mut().for_each(Vm::every_second);
    }

    /// Takes in news of one VM.
    pub fn hear(&mut self, number: usize, news: News, connections: &Connections) -> Vec<Effect> {
        let vm = &mut self.all[number];
        if !vm.is_up() && !matches!(news, News::Up(..) | News::Down(_) | News::Off(_)) {
            // It is of a QEMU that is another VM's.
            return Vec::new();
        }
        match news {
            News::Up(identity, elsewhere, found) => {
                let known = identity.pid.and_then(|pid| known_as(pid, connections));
                let other = other_qemu(vm, identity.pid, connections);
                if !vm.hear_up(identity, elsewhere, known, other) {
                    return Vec::new();
                }
                vm.hear_found(&found);
                let (qemu, uuid) = (vm.qemu(), vm.uuid);
                // The page of a guest that was reset shows what it asked before that.
                let is_reset = connections.of_guest(uuid).is_none()
                    && self.recognise(number, connections).is_some()
                    && self.all[number].hear_reset_before();
                let mut effects = self.disown_impostors(connections);
                effects.extend(qemu.map(|pid| Effect::Verified(pid, uuid)));
                if !elsewhere && !is_reset {
                    effects.push(Effect::Recognise(number));
                }
                return effects;
            }
            News::Runs => {
                vm.hear_runs();
                return vec![Effect::Recognise(number)];
            }
            News::Reset => {
                vm.hear_reset();
                return self.disown_guest(number, connections);
            }
            News::Migrates(stage) => {
                if vm.hear_migrates(stage) {
                    return self.disown_guest(number, connections);
                }
            }
            News::Released(end) => vm.hear_released(end),
            News::Stays => vm.hear_stays(),
            News::Down(why) => vm.hear_down(why),
            News::Off(why) => vm.hear_off(why),
            News::Plugged(id) => vm.hear_plugged(&id),
            News::Vcpus(threads) => vm.hear_vcpus(threads),
            News::Failed(id, why) => vm.hear_failed(&id, why),
            News::Held(id, why) => vm.hear_held(&id, why),
            News::Gone(id, asked) => {
                vm.hear_gone(&id, asked);
                return self.put_out_guest(number, &id, asked, connections);
            }
        }
        Vec::new()
    }

    /// The module of the guest with this UUID has started.
    pub fn hear_started(&mut self, uuid: Uuid) {
        if let Some(vm) = self.all.iter_mut().find(|vm| vm.uuid == uuid) {
            vm.hear_started();
        }
    }

    /// The QEMU with this process has ended.
    pub fn hear_ended(&mut self, pid: i32) {
        self.all.iter_mut().for_each(|vm| vm.hear_ended(pid));
    }

    // -- Whose guest a connection has -------------------------------------------

    /// Whether the guest of a connection is the VM that it says, as far as monitors
    /// show: the QEMU of a monitor, if it is connected here, speaks for its own VM
    /// and for no other.
    pub fn is_genuine(&self, one: &Connection, uuid: Uuid, connections: &Connections) -> bool {
        // A monitor that showed it may be silent now.
        if one.verified.is_some_and(|verified| verified != uuid) {
            return false;
        }
        let (mut monitored, mut by_another) = (false, false);
        for vm in &self.all {
            let Some(qemu) = connected_qemu(vm, connections) else {
                continue;
            };
            let claimed = vm.uuid == uuid;
            if one.is_of(qemu) {
                if claimed {
                    return true;
                }
                monitored = true;
            } else {
                by_another |= claimed && !vm.is_elsewhere();
            }
        }
        !monitored && !by_another
    }

    /// The QEMU and UUID of a guest whose claim its QEMU's monitor has confirmed.
    pub fn confirmed(&self, one: &Connection) -> Option<(i32, Uuid)> {
        let pid = one.pid.filter(|pid| one.is_of(*pid))?;
        let mut all = self.all.iter();
        let vm = all.find(|vm| Some(vm.uuid) == one.uuid && vm.qemu() == Some(pid))?;
        Some((pid, vm.uuid))
    }

    /// A monitor may show that a guest is another than it said before.
    fn disown_impostors(&self, connections: &Connections) -> Vec<Effect> {
        let is_impostor = |one: &&Connection| {
            one.uuid
                .is_some_and(|uuid| !self.is_genuine(one, uuid, connections))
        };
        let impostors: Vec<_> = connections.iter().filter(is_impostor).collect();
        // There may be many: one line is for all of them.
        if let [first, others @ ..] = &impostors[..] {
            warn!(
                vm = %first.label(),
                others = others.len(),
                "is another VM than it said, by its QEMU's monitor"
            );
        }
        let disown = |one: &&Connection| Effect::Disown(one.number);
        impostors.iter().map(disown).collect()
    }

    /// A guest that migrated or was reset leaves a page that nothing reads or
    /// writes, and memberships. Where it migrated to another QEMU of this host,
    /// that one has memberships of its own.
    fn disown_guest(&self, number: usize, connections: &Connections) -> Vec<Effect> {
        let vm = &self.all[number];
        let qemu = connected_qemu(vm, connections);
        let is_its = |one: &&Connection| {
            one.uuid == Some(vm.uuid) && qemu.is_none_or(|qemu| one.is_of(qemu))
        };
        let its = connections.iter().filter(is_its);
        its.map(|one| Effect::Disown(one.number)).collect()
    }

    /// Ends a guest's membership once its QEMU has released the memory: the guest may
    /// never say LEAVE.
    fn put_out_guest(
        &self,
        number: usize,
        id: &str,
        asked: bool,
        connections: &Connections,
    ) -> Vec<Effect> {
        let region = id.strip_prefix(PREFIX).filter(|_| asked);
        let guest = connections.of_guest(self.all[number].uuid);
        let (Some(region), Some(guest)) = (region, guest) else {
            return Vec::new();
        };
        vec![Effect::PutOut(guest.number, region.into())]
    }

    /// The connection of a VM whose guest came by migration, the VM's UUID, and the
    /// name of its guest. Such a guest asks nothing before it has memory. Its page
    /// shows its requests to the daemon of the host before.
    pub fn recognise(
        &self,
        number: usize,
        connections: &Connections,
    ) -> Option<(u64, Uuid, String)> {
        let uuid = self.all[number].uuid;
        connections.iter().find_map(|one| {
            let past = one.past().filter(|past| past.vm == uuid)?;
            let known = one.uuid.is_none_or(|known| known == uuid);
            let is_it = known && self.is_genuine(one, uuid, connections);
            is_it.then_some((one.number, uuid, past.name))
        })
    }

    // -- Ring memory -------------------------------------------------------------

    /// Has the `wanted` regions plugged into a VM that lacks them.
    pub fn plug(
        &mut self,
        number: usize,
        wanted: &[String],
        connections: &Connections,
        regions: &Regions,
    ) {
        let vm = &mut self.all[number];
        if vm.can_plug() {
            vm.revoke_found(wanted);
        }
        let Some(guest) = connections.of_guest(vm.uuid).filter(|_| vm.can_plug()) else {
            return;
        };
        // The guest's memory goes to no other process than the one with its doorbell.
        if let (Some(pid @ 1..), Some(qemu)) = (guest.pid, vm.qemu()) {
            if !guest.is_of(qemu) {
                let why = format!(
                    "the process at its monitor is {qemu}, and that at its doorbell {pid}: have \
                     QEMU itself listen at the monitor's socket, and end what stands in for it"
                );
                for name in wanted.iter().filter(|name| regions.get(name).is_some()) {
                    if vm.lacks(name) {
                        vm.hear_failed(&format!("{PREFIX}{name}"), why.clone());
                    }
                }
                return;
            }
        }
        for name in wanted {
            if let Some(served) = regions.get(name).filter(|_| vm.lacks(name)) {
                match served.source() {
                    Ok(source) => vm.plug(name, source, served.size()),
                    Err(error) => vm.hear_failed(&format!("{PREFIX}{name}"), error.to_string()),
                }
            }
        }
    }

    /// Has a region plugged out of a VM that may no longer have it. False if the VM
    /// has no monitor.
    pub fn revoke(&mut self, uuid: Uuid, region: &str) -> bool {
        let vm = self.all.iter_mut().find(|vm| vm.uuid == uuid);
        vm.is_some_and(|vm| vm.revoke(region))
    }

    /// Plugs out what VMs may no longer have, or tries again. Guests that have kept it for
    /// too long are put out of the region all the same.
    pub fn plug_out_revoked(&mut self, connections: &Connections) -> Vec<Effect> {
        let now = Instant::now();
        let mut effects = Vec::new();
        for vm in &mut self.all {
            vm.plug_out_revoked();
            for region in vm.take_overdue(now) {
                warn!(vm = vm.name, region, "{KEPT}");
                let guest = connections.of_guest(vm.uuid);
                effects.extend(guest.map(|guest| Effect::PutOut(guest.number, region)));
            }
        }
        effects
    }

    /// Logs regions that guests do not join though they are plugged in.
    pub fn look_at_joins(&mut self, connections: &Connections) {
        for vm in &mut self.all {
            let uuid = vm.uuid;
            vm.look_at_joins(|region| has_joined(uuid, region, connections));
        }
    }

    /// Gets a region out of a VM. True once it is out, or the VM has gone.
    pub fn plug_out(&mut self, number: usize, region: &str, connections: &Connections) -> bool {
        let vm = &mut self.all[number];
        match connections.of_guest(vm.uuid) {
            None => true,
            Some(guest) => vm.plug_out(region, guest.entry(region).is_some()),
        }
    }

    /// Forgets a region that is no more.
    pub fn forget_plugs(&mut self, region: &str) {
        self.all.iter_mut().for_each(|vm| vm.forget_plug(region));
    }

    // -- CPUs ----------------------------------------------------------------------

    /// QEMU's process and the threads of its vCPUs, while its guest runs here and stays.
    /// Nothing also if they are not known: see [`Self::ask_vcpus`].
    pub fn vcpus(&self, number: usize) -> Option<(i32, &[i32])> {
        self.all[number].vcpus()
    }

    /// Has the threads of a VM's vCPUs looked for, unless that was done just now.
    pub fn ask_vcpus(&mut self, number: usize) {
        self.all[number].ask_vcpus();
    }

    // -- What people ask ---------------------------------------------------------

    /// Number of the VM with that name or UUID.
    pub fn number(&self, vm: &str) -> Result<usize, String> {
        let uuid = vm.parse::<Uuid>().ok();
        self.all
            .iter()
            .position(|one| one.name == vm || Some(one.uuid) == uuid)
            .ok_or_else(|| format!("no VM {vm:?} is in the configuration: see hallway status"))
    }

    fn find(&mut self, vm: &str) -> Result<&mut Vm, String> {
        let number = self.number(vm)?;
        Ok(&mut self.all[number])
    }

    /// Begins to migrate a VM.
    pub fn migrate(&mut self, vm: &str, uri: String) -> Result<Migration, String> {
        self.find(vm)?.migrate(uri)
    }

    /// Stage of the last migration of a VM.
    pub fn migration(&mut self, vm: &str) -> Result<Migration, String> {
        self.find(vm)?.migration()
    }

    /// Has the migration of a VM end.
    pub fn cancel_migration(&mut self, vm: &str) -> Result<Migration, String> {
        self.find(vm)?.cancel_migration()
    }

    /// Begins to have a VM release its ring memory.
    pub fn release(&mut self, vm: &str, limit: Duration) -> Result<Release, String> {
        self.find(vm)?.release(limit)
    }

    /// Stage of the last release of a VM's ring memory.
    pub fn release_stage(&mut self, vm: &str) -> Result<Release, String> {
        self.find(vm)?.release_stage()
    }

    /// Has ring memory that a VM released plugged in again.
    pub fn resume(&mut self, vm: &str) -> Result<(), String> {
        self.find(vm)?.resume()
    }

    /// Whether a VM is not here, as [`Vm::is_away`] says.
    pub fn is_away(&self, vm: &str) -> bool {
        let number = self.number(vm);
        number.is_ok_and(|number| self.all[number].is_away())
    }

    /// Whether a VM's ring memory is released, or on its way out.
    pub fn is_released(&self, number: usize) -> bool {
        self.all[number].is_released()
    }

    /// Releases of ring memory that are not over, for a later daemon.
    pub fn releases(&self) -> Vec<SavedRelease> {
        let saved = |vm: &Vm| {
            let qemu = vm.released_qemu()?;
            Some(SavedRelease { vm: vm.uuid, qemu })
        };
        self.all.iter().filter_map(saved).collect()
    }

    /// Whether a later daemon would not know of each of them.
    pub fn is_unsaved(&self) -> bool {
        self.releases() != self.saved
    }

    /// The holder has them.
    pub fn on_saved(&mut self) {
        self.saved = self.releases();
    }

    /// What `hallway status` shows of them.
    pub fn status(&self, connections: &Connections) -> Vec<control::Vm> {
        let status = |vm: &Vm| vm.status(|region| has_joined(vm.uuid, region, connections));
        self.all.iter().map(status).collect()
    }
}

/// Whether the guest of a VM has joined a region.
fn has_joined(uuid: Uuid, region: &str, connections: &Connections) -> bool {
    let guest = connections.of_guest(uuid);
    guest.is_some_and(|guest| guest.entry(region).is_some())
}

/// The VM that a QEMU is, by the monitor that it had.
fn known_as(pid: i32, connections: &Connections) -> Option<Uuid> {
    let mut its = connections.iter().filter(|one| one.is_of(pid));
    its.find_map(|one| one.verified)
}

/// Another QEMU than `pid` that had the VM's monitor, and that runs the VM.
fn other_qemu(vm: &Vm, pid: Option<i32>, connections: &Connections) -> Option<i32> {
    let pid = pid.filter(|pid| *pid > 0 && !vm.is_elsewhere())?;
    let mut its = connections.iter().filter(|one| {
        let is_other = one.pid.is_some_and(|other| other > 0 && other != pid);
        is_other && one.verified == Some(vm.uuid) && !one.line.closed()
    });
    its.find_map(|one| one.pid)
}

/// Process of the QEMU that has a VM's monitor, if it is connected here too.
fn connected_qemu(vm: &Vm, connections: &Connections) -> Option<i32> {
    let pid = vm.qemu()?;
    let is_here = connections.iter().any(|one| one.is_of(pid));
    is_here.then_some(pid)
}
