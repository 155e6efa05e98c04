// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The private picture: all that the daemon knows, in components.
//!
//! | component | what it owns |
//! | --- | --- |
//! | [`Connections`] | the connections to QEMUs, and what their guests have joined |
//! | [`Regions`] | the regions that are served, and their members |
//! | [`Vms`] | the VMs of the configuration: monitors, ring memory, migrations |
//! | [`Pairs`] | which two VMs have a region of their own |
//! | [`Helpers`] | the processes that each share a region with one VM |
//! | [`Cpus`] | how many CPUs VMs are given |
//!
//! Each may read those above it in this table, and changes itself alone. What is
//! to happen to another follows from what it returns: [`Effect`]s, for which
//! [`Picture::apply`] is the one place, or a plain answer. Nothing here is seen
//! from outside before the loop's commit carries it there.

use hallway_abi::tunnel::HOST_UUID;
use hallway_control::{NotRunning, Plug};
use hallway_membership::{printable, Uuid};
use tracing::{error, info, warn};

use crate::config::{Config, HelperId, Role};
use crate::connections::{Connection, Connections};
use crate::cpus::Cpus;
use crate::effect::Effect;
use crate::helpers::{Helpers, HELPER_SLOT};
use crate::pairs::{self, Pairs};
use crate::regions::{Admission, Regions, Served};
use crate::vms::Vms;

/// All that the daemon knows.
pub struct Picture {
    /// The configuration.
    pub config: Config,
    /// The connections to QEMUs.
    pub connections: Connections,
    /// The regions.
    pub regions: Regions,
    /// The VMs of the configuration.
    pub vms: Vms,
    /// The pairs of VMs that have a region of their own.
    pub pairs: Pairs,
    /// The helpers.
    pub helpers: Helpers,
    /// The CPUs of VMs.
    pub cpus: Cpus,
}

impl Picture {
    /// Hands effects to the components that they are for, in their order.
    pub fn apply(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Leave {
                    label,
                    region,
                    slot,
                } => self.regions.leave(&label, &region, slot),
                Effect::Disown(number) => {
                    let effects = self.connections.disown(number);
                    self.apply(effects);
                }
                Effect::PutOut(number, region) => {
                    let effects = self.connections.put_out(number, &region);
                    self.apply(effects);
                }
                Effect::Verified(pid, uuid) => self.connections.verify(pid, uuid),
                Effect::Recognise(vm) => {
                    let found = self.vms.recognise(vm, &self.connections);
                    if let Some((number, uuid, name)) = found {
                        self.connections.recognise(number, uuid, name);
                    }
                }
                Effect::Started(uuid) => self.vms.hear_started(uuid),
                Effect::Ended(pid) => self.vms.hear_ended(pid),
                Effect::AskVcpus(number) => self.vms.ask_vcpus(number),
            }
        }
    }

    /// Whether a VM may join a region.
    pub fn admits(&self, served: &Served, uuid: Uuid) -> bool {
        match served.admission {
            Admission::All => true,
            Admission::Configured => {
                !self.is_withdrawn(&served.name) && self.config.admits(&served.name, uuid)
            }
            Admission::Members => served.has_member(uuid),
            Admission::None => false,
        }
    }

    /// Whether a region is on its way out.
    pub fn is_withdrawn(&self, region: &str) -> bool {
        self.pairs.is_withdrawn(region) || self.helpers.is_withdrawn(region)
    }

    /// Has the memory of members plugged out that the configuration no longer admits. Their
    /// membership ends with it: so their connections go on over TCP, and nothing that the
    /// member can still write is taken for another's. Without a monitor it ends at once.
    pub fn put_out_revoked(&mut self) {
        let mut revoked = Vec::new();
        for one in self.connections.iter() {
            let joined = one
                .entries
                .iter()
                .filter_map(|entry| entry.region.as_deref());
            for served in joined.filter_map(|name| self.regions.get(name)) {
                let uuid = one.uuid.unwrap_or_default();
                if !self.admits(served, uuid) {
                    revoked.push((one.number, one.label(), uuid, served.name.clone()));
                }
            }
        }
        for (number, label, uuid, region) in revoked {
            if self.vms.revoke(uuid, &region) {
                info!(vm = label, region, "may no longer be a member: plugged out");
                continue;
            }
            let effects = self.connections.put_out(number, &region);
            self.apply(effects);
            warn!(
                vm = label,
                region,
                "may no longer be a member: taken out. It has no monitor by which hallwayd could \
                 plug the region out: do so by hand, or end the VM; until then it can read and \
                 write the region"
            );
        }
    }

    /// Takes in the news of the monitors.
    pub fn hear_monitors(&mut self) {
        for (number, news) in self.vms.take_news() {
            let effects = self.vms.hear(number, news, &self.connections);
            self.apply(effects);
        }
    }

    /// Makes the regions of pairs that have traffic, and of which both VMs can have them.
    pub fn make_pairs(&mut self) {
        for two in pairs::with_traffic(&self.connections, &self.config) {
            // The other VM alone would get a region of two, perhaps in place of one in use.
            if [two.0, two.1].map(|number| self.vms.is_released(number)) != [false; 2] {
                continue;
            }
            if let Some(wanted) = self.pairs.want(two, &self.regions, &self.config) {
                let owners = self.config.owners(&wanted.region);
                let made = self.regions.make(&wanted.region, wanted.geometry, owners);
                self.pairs.enter(two, wanted, made);
            }
        }
    }

    /// Regions of a VM that cannot be made, as memory that it lacks.
    pub fn unmade(&self, number: usize) -> Vec<Plug> {
        let vms = &self.config.vms;
        let plug = |((a, b), why): (pairs::Two, &str)| {
            let other = &vms[if a == number { b } else { a }].name;
            Plug {
                region: self.config.pair_name(a, b),
                plugged: false,
                problem: Some(printable(
                    format!("its region with {other} cannot be made: {why}").as_bytes(),
                )),
            }
        };
        self.pairs.troubles(number).map(plug).collect()
    }

    /// Gets the regions of idle pairs out of their VMs, and removes those that are
    /// out of both.
    pub fn withdraw_pairs(&mut self) {
        for (two, region) in self.pairs.withdraw_idle(&self.regions) {
            let out =
                [two.0, two.1].map(|number| self.vms.plug_out(number, &region, &self.connections));
            if out == [true, true] {
                self.pairs.remove(two);
                self.vms.forget_plugs(&region);
                self.regions.remove(&region);
            }
        }
    }

    /// Makes the regions of VMs that have a helper, and gives each one that is to be
    /// started its place.
    pub fn make_helpers(&mut self) {
        let (config, helpers) = (&self.config, &mut self.helpers);
        for id in helpers.lacking(config, &self.connections, &self.regions) {
            let (name, region) = (&config.vms[id.vm].name, config.helper_region(id));
            let Some(helper) = config.helper(id) else {
                continue;
            };
            let made = self
                .regions
                .make(&region, helper.geometry, config.owners(&region));
            match made.and_then(|()| self.connections.add_helper(&region, HELPER_SLOT)) {
                Ok(()) => helpers.enter(id, region, Ok(())),
                Err(error) => {
                    error!(vm = name, region, "cannot be made: {error:#}");
                    self.regions.remove(&region);
                    helpers.enter(id, region, Err(error));
                }
            }
        }
        for (id, region) in helpers.take_due(&self.regions) {
            let named = match id.role {
                // Such a process is no VM, and each is another member.
                Role::Outsource => Uuid::random().map(|uuid| (uuid, "outsourcer")),
                // Its CID follows from it, and is the same for each guest.
                Role::Tunnels => Ok((Uuid(HOST_UUID), "host")),
            };
            let Ok((uuid, name)) = named else {
                continue;
            };
            let generation = self.regions.enter_own(&region, HELPER_SLOT, uuid, name);
            helpers.hear_entered(id, generation);
        }
    }

    /// Why a helper of the configuration does not run.
    pub fn not_running(&self, id: HelperId) -> Option<NotRunning> {
        // One that is to go is not tried again.
        self.config.helper(id)?;
        let (why, next_try) = self.helpers.trouble(id)?;
        Some(NotRunning {
            helper: id.role.to_string(),
            why: printable(why.as_bytes()),
            next_try_seconds: next_try.as_secs_f64().ceil() as u64,
        })
    }

    /// Forgets which helpers could not be made for guests that have gone.
    pub fn forget_refused(&mut self) {
        self.helpers.forget_refused(&self.config, &self.connections);
    }

    /// Gets the regions of helpers out of VMs that may no longer have them, and
    /// removes those that are out.
    pub fn withdraw_helpers(&mut self) {
        let leaving = self.helpers.leaving(&self.config, &self.connections);
        for (id, region) in leaving {
            if self.vms.plug_out(id.vm, &region, &self.connections) {
                self.helpers.remove(id);
                // QEMU keeps a descriptor of each doorbell: the next region of that VM has the
                // same.
                let served = self.regions.get(&region);
                let stays = served.is_none_or(|one| one.owners == self.config.owners(&region));
                if self.config.helper(id).is_none() || !stays {
                    self.connections.remove_helper(&region);
                }
                self.vms.forget_plugs(&region);
                self.regions.remove(&region);
            }
        }
    }

    /// Removes regions that the configuration no longer asks for, once they are out of its VMs.
    pub fn remove_orphans(&mut self) {
        let (config, connections) = (&self.config, &self.connections);
        // No monitor shows what the QEMU of another VM has.
        let may_keep = |one: &Connection, served: &Served| match one.verified.or(one.uuid) {
            Some(uuid) => config.vm_of(uuid).is_none() && served.had_member(uuid),
            None => true,
        };
        let orphans = self.regions.orphans();
        let orphans = orphans.filter(|served| !connections.iter().any(|one| may_keep(one, served)));
        let orphans: Vec<String> = orphans.map(|served| served.name.clone()).collect();
        for region in orphans {
            let (vms, numbers) = (&mut self.vms, 0..self.config.vms.len());
            let out = numbers.map(|number| vms.plug_out(number, &region, &self.connections));
            // Each is asked, also behind one that still has it.
            if out.fold(true, |all, one| all & one) {
                self.vms.forget_plugs(&region);
                self.regions.remove(&region);
            }
        }
    }

    /// An error if a VM has outsourced connections, which `what` would reset and may not.
    pub fn check_outsourced(&self, vm: &str, what: &str, may_reset: bool) -> Result<(), String> {
        if may_reset {
            return Ok(());
        }
        let number = self.vms.number(vm)?;
        self.helpers.check_migration(number).map_err(|why| {
            format!(
                "{vm} stays: {why}, and {what} would reset them: wait until they have ended, or \
                 give --reset-outsourced"
            )
        })
    }

    /// Has a VM get no more outsourced connections for a while. Returns how many it has.
    pub fn drain_outsourced(&mut self, vm: &str) -> Result<u32, String> {
        let number = self.vms.number(vm)?;
        self.helpers.drain(number, &self.config)
    }

    /// Has VMs get no more outsourced connections while their ring memory is taken out.
    pub fn drain_leaving(&mut self) {
        for number in self.vms.leaving() {
            // One without an outsourcer that listens has no more to lose.
            let _ = self.helpers.drain(number, &self.config);
        }
    }

    /// Measures VMs whose CPUs are scheduled, and decides which one gets or loses one.
    pub fn schedule_cpus(&mut self) {
        let (config, connections) = (&self.config, &self.connections);
        let effects = self
            .cpus
            .every_second(config, connections, &self.regions, &self.vms);
        self.apply(effects);
    }

    /// Has the regions plugged in that VMs lack, and those out that they may not have.
    pub fn plug_regions(&mut self) {
        let effects = self.vms.plug_out_revoked(&self.connections);
        self.apply(effects);
        for (number, vm) in self.config.vms.iter().enumerate() {
            let shared = self.config.shared_of(vm);
            let shared = shared.into_iter().map(|(region, _)| region);
            let wanted: Vec<_> = shared
                .chain(self.pairs.of(number))
                .chain(self.helpers.of(number))
                .map(String::from)
                .collect();
            self.vms
                .plug(number, &wanted, &self.connections, &self.regions);
        }
    }
}
