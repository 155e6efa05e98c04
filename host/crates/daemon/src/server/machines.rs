// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The VMs of the configuration: which ring memory each should have, and
//! getting it there through its monitor.
//!
//! Memory is plugged in once the guest's module has asked something: before
//! that, firmware may place it where the guest maps it uncached. What another
//! takes out (an operator, a migration) stays out until the guest's module
//! starts anew.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use hallway_control::{self as control, Migration};
use hallway_membership::Uuid;
use hallway_qmp::{Identity, Memory};
use tracing::{info, warn};

use super::Server;
use crate::monitor::Handle;
use crate::news::{Job, News, PREFIX};
use crate::vm::Vm;

/// Between two tries to plug in what QEMU refused.
const TRY_AGAIN: Duration = Duration::from_secs(10);

/// A VM of the configuration.
pub(super) struct Machine {
    monitor: Option<Handle>,
    link: Link,
    /// Its ring memory, by region.
    plugs: BTreeMap<String, Plug>,
    /// Its guest runs in another QEMU: it has yet to come by migration, or went.
    elsewhere: bool,
    /// The last one from here.
    migration: Option<Migration>,
}

impl Machine {
    fn migrates(&self) -> bool {
        matches!(
            self.migration,
            Some(Migration::Unplugging | Migration::Moving { .. })
        )
    }
}

/// How things are with its monitor.
enum Link {
    /// Nobody looked yet.
    New,
    /// For this reason.
    Down(String),
    /// Of this QEMU.
    Up(Identity),
}

/// How things are with a device.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Plug {
    /// QEMU is asked for it.
    Asked,
    /// It is there.
    In,
    /// The guest is asked to let it go.
    Leaving,
    /// It was to go, and did not, then and for this reason.
    Held(Instant, String),
    /// Another took it out.
    TakenOut,
    /// It was there when the machine was reset: firmware has placed it since,
    /// where guests may map it uncached. No guest could let it go before its
    /// kernel runs, which its module's first request tells.
    Stale,
    /// QEMU refused it, then and for this reason.
    Failed(Instant, String),
}

impl Server {
    /// Starts looking after the monitors of the configuration.
    pub(super) fn start_monitors(&mut self) -> Result<()> {
        for (number, vm) in self.config.vms.iter().enumerate() {
            let start = |path| Handle::new(number, path, vm.ports.clone(), &self.newsroom);
            self.machines.push(Machine {
                monitor: vm.monitor.clone().map(start).transpose()?,
                link: Link::New,
                plugs: BTreeMap::new(),
                elsewhere: false,
                migration: None,
            });
        }
        Ok(())
    }

    /// Takes in what the monitors tell.
    pub(super) fn hear_monitors(&mut self) {
        for (number, news) in self.newsroom.take() {
            self.hear_monitor(number, news);
        }
    }

    fn hear_monitor(&mut self, number: usize, news: News) {
        let (config, machine) = (&self.config.vms[number], &mut self.machines[number]);
        let name = config.name.as_str();
        let known = matches!(machine.link, Link::Up(_));
        match news {
            // Of a QEMU that is not this VM's.
            _ if !known && !matches!(news, News::Up(..) | News::Down(_)) => {}
            News::Up(identity, elsewhere) if identity.uuid.parse() == Ok(config.uuid) => {
                info!(vm = name, "its monitor answers");
                // What was in a QEMU before this one is not in this one.
                machine.plugs.clear();
                machine.link = Link::Up(identity);
                machine.elsewhere = elsewhere;
                machine.migration = None;
                self.disown_impostors();
                if !elsewhere {
                    self.recognise(number);
                }
            }
            News::Runs => {
                machine.elsewhere = false;
                self.recognise(number);
            }
            News::Reset => {
                info!(vm = name, "was reset");
                for plug in machine.plugs.values_mut() {
                    if matches!(plug, Plug::Asked | Plug::In) {
                        *plug = Plug::Stale;
                    }
                }
                self.guest_is_gone(number);
            }
            News::Up(identity, _) => {
                let why = format!(
                    "the QEMU there has UUID {}, and {name} has {} in the configuration: correct \
                     the one or the other",
                    identity.uuid, config.uuid
                );
                warn!(vm = name, "{why}");
                machine.link = Link::Down(why);
            }
            News::Down(why) => {
                match &machine.migration {
                    Some(Migration::Unplugging) => {
                        machine.migration = Some(Migration::Stayed { why: why.clone() });
                    }
                    Some(Migration::Moving { .. }) => {
                        machine.migration = Some(Migration::Unknown { why: why.clone() });
                    }
                    _ => {}
                }
                if matches!(&machine.link, Link::Down(before) if *before == why) {
                    return;
                }
                warn!(vm = name, "monitor: {why}");
                machine.link = Link::Down(why);
            }
            News::Plugged(id) => {
                if let Some(region) = id.strip_prefix(PREFIX) {
                    info!(vm = name, region, "plugged in");
                    machine.plugs.insert(region.into(), Plug::In);
                }
            }
            News::Failed(id, why) => {
                if let Some(region) = id.strip_prefix(PREFIX) {
                    warn!(vm = name, region, "{why}");
                    let failed = Plug::Failed(Instant::now(), why);
                    machine.plugs.insert(region.into(), failed);
                }
            }
            News::Held(id, why) => {
                if let Some(region) = id.strip_prefix(PREFIX) {
                    warn!(vm = name, region, "{why}");
                    let held = Plug::Held(Instant::now(), why);
                    machine.plugs.insert(region.into(), held);
                }
            }
            News::Gone(id, asked) => {
                let Some(region) = id.strip_prefix(PREFIX) else {
                    return;
                };
                let plug = machine.plugs.get(region);
                let taken_out = plug == Some(&Plug::TakenOut);
                let late = matches!(
                    plug,
                    Some(Plug::Leaving | Plug::Held(..) | Plug::Failed(..))
                );
                match &machine.monitor {
                    Some(monitor) if !asked => {
                        let now = if late {
                            Plug::Leaving
                        } else {
                            info!(vm = name, region, "was plugged out by another");
                            Plug::TakenOut
                        };
                        machine.plugs.insert(region.into(), now);
                        // The device is gone; its memory is not.
                        monitor.ask(Job::Unplug(id.clone()));
                    }
                    // That was the memory, which followed.
                    _ if taken_out => {}
                    _ => {
                        info!(vm = name, region, "plugged out");
                        machine.plugs.remove(region);
                    }
                }
            }
            News::Migrates(stage) => {
                match &stage {
                    Migration::Unplugging
                    | Migration::Moving { .. }
                    | Migration::Unknown { .. } => {}
                    Migration::Done { .. } => {
                        info!(vm = name, "has migrated");
                        machine.elsewhere = true;
                        self.guest_is_gone(number);
                    }
                    Migration::Stayed { why } => warn!(vm = name, "does not migrate: {why}"),
                }
                self.machines[number].migration = Some(stage);
            }
        }
    }

    /// A guest that came by migration has nothing to ask before it has memory.
    /// Who it is stands in its page, in what it asked the daemon before; so do
    /// the neighbours that it had there.
    fn recognise(&mut self, number: usize) {
        let uuid = self.config.vms[number].uuid;
        let found = self.vms.iter().find_map(|(number, vm)| {
            let past = vm.past().filter(|past| past.vm == uuid)?;
            let known = vm.saved.uuid.is_none_or(|known| known == uuid);
            (known && self.is_genuine(*number, uuid)).then_some((*number, past.name))
        });
        let Some((connection, name)) = found else {
            return;
        };
        if let Some(vm) = self.vms.get_mut(&connection) {
            vm.told = None;
            vm.saved.uuid = Some(uuid);
            vm.saved.name = Some(name);
            self.dirty = true;
            self.moved = true;
        }
    }

    /// Of a guest that migrated or was reset, a page is left that nobody reads
    /// or writes, and members that are no more. Where it migrated to another QEMU
    /// of this host, that one has them.
    fn guest_is_gone(&mut self, number: usize) {
        let uuid = self.config.vms[number].uuid;
        let qemu = self.qemu_of(&self.machines[number]);
        let is_its = |vm: &&Vm| vm.saved.uuid == Some(uuid) && (qemu.is_none() || vm.pid == qemu);
        let all = self.vms.values().filter(is_its);
        for number in all.map(|vm| vm.saved.number).collect::<Vec<_>>() {
            self.disown(number);
        }
    }

    /// A monitor may tell of a guest that it is not who it said before.
    fn disown_impostors(&mut self) {
        let is_one = |vm: &&Vm| {
            let uuid = vm.saved.uuid;
            uuid.is_some_and(|uuid| !self.is_genuine(vm.saved.number, uuid))
        };
        let all = self.vms.values().filter(is_one);
        for number in all.map(|vm| vm.saved.number).collect::<Vec<_>>() {
            if let Some(vm) = self.vms.get(&number) {
                warn!(vm = %vm.label(), "is another VM than it said, by its QEMU's monitor");
            }
            self.disown(number);
        }
    }

    /// Takes from a connection whose guest it was, and its members.
    fn disown(&mut self, number: u64) {
        let Some(vm) = self.vms.get_mut(&number) else {
            return;
        };
        let label = vm.label();
        let left = vm.saved.entries.clone();
        for entry in &mut vm.saved.entries {
            entry.region = None;
        }
        vm.saved.uuid = None;
        vm.saved.name = None;
        self.dirty = true;
        self.moved = true;
        for entry in left {
            self.leave_region(&label, &entry);
        }
    }

    fn machine_of(&mut self, vm: &str) -> Result<&mut Machine, String> {
        let uuid = vm.parse::<Uuid>().ok();
        let at = self
            .config
            .vms
            .iter()
            .position(|config| config.name == vm || Some(config.uuid) == uuid);
        at.map(|at| &mut self.machines[at])
            .ok_or_else(|| format!("no VM {vm} is in the configuration: see hallway status"))
    }

    /// Begins to migrate a VM.
    pub(super) fn migrate(&mut self, vm: &str, uri: String) -> Result<Migration, String> {
        let machine = self.machine_of(vm)?;
        let monitor = match (&machine.monitor, &machine.link) {
            (Some(monitor), Link::Up(_)) => monitor,
            (None, _) => {
                return Err(format!(
                    "{vm} has no monitor in the configuration: give it one, or migrate by hand"
                ))
            }
            (Some(_), Link::Down(why)) => return Err(format!("its monitor: {why}")),
            (Some(_), Link::New) => return Err("its monitor has not answered yet".into()),
        };
        if machine.migrates() {
            return Err(format!(
                "{vm} migrates already: hallway migrate {vm} --cancel ends that"
            ));
        }
        if machine.elsewhere {
            return Err(format!(
                "{vm} does not run here: it has yet to arrive by migration, or it went, and its \
                 QEMU here is to be ended"
            ));
        }
        monitor.migrate(uri);
        machine.migration = Some(Migration::Unplugging);
        Ok(Migration::Unplugging)
    }

    /// How the last migration of a VM goes, or went.
    pub(super) fn migration(&mut self, vm: &str) -> Result<Migration, String> {
        let machine = self.machine_of(vm)?;
        match (&machine.migration, &machine.link) {
            (Some(stage), _) => Ok(stage.clone()),
            (None, Link::Down(why)) => Err(format!("its monitor: {why}")),
            (None, Link::New) => Err("its monitor has not answered yet".into()),
            (None, Link::Up(_)) if machine.elsewhere => Err(format!("{vm} does not run here")),
            (None, Link::Up(_)) => Err(format!("{vm} does not migrate: it stays here")),
        }
    }

    /// Has a migration end.
    pub(super) fn cancel_migration(&mut self, vm: &str) -> Result<Migration, String> {
        let machine = self.machine_of(vm)?;
        match (&machine.migration, &machine.monitor) {
            (Some(now), Some(monitor)) if machine.migrates() => {
                monitor.cancel();
                Ok(now.clone())
            }
            _ => Err(format!("{vm} does not migrate")),
        }
    }

    /// A guest's module started: it gets again what others took out before, and
    /// anew what a reset has left behind.
    pub(super) fn machine_starts(&mut self, uuid: Uuid) {
        let Some(number) = self.config.vms.iter().position(|vm| vm.uuid == uuid) else {
            return;
        };
        let machine = &mut self.machines[number];
        machine.plugs.retain(|_, plug| *plug != Plug::TakenOut);
        let (Some(monitor), Link::Up(_)) = (&machine.monitor, &machine.link) else {
            return;
        };
        for (region, plug) in &mut machine.plugs {
            if *plug == Plug::Stale {
                monitor.ask(Job::Unplug(format!("{PREFIX}{region}")));
                *plug = Plug::Leaving;
            }
        }
    }

    /// Has what lacks plugged in.
    pub(super) fn plug_regions(&mut self) {
        for (number, machine) in self.machines.iter_mut().enumerate() {
            let config = &self.config.vms[number];
            let guest = self
                .vms
                .values()
                .any(|vm| vm.saved.uuid == Some(config.uuid));
            let ready = guest && !machine.elsewhere && !machine.migrates();
            let (Link::Up(_), Some(monitor), true) = (&machine.link, &machine.monitor, ready)
            else {
                continue;
            };
            let shared = self.config.shared_of(config);
            let shared = shared.into_iter().map(|(region, _)| region.to_string());
            for region in shared.chain(self.pairs.of(number)) {
                let region = region.as_str();
                let due = match machine.plugs.get(region) {
                    None => true,
                    Some(Plug::Failed(at, _) | Plug::Held(at, _)) => at.elapsed() >= TRY_AGAIN,
                    Some(_) => false,
                };
                let Some(served) = self.regions.iter().find(|s| s.name == region && due) else {
                    continue;
                };
                monitor.ask(Job::Plug(Memory {
                    id: format!("{PREFIX}{region}"),
                    file: served.region.path.clone(),
                    size: served.region.geometry().size(),
                }));
                machine.plugs.insert(region.into(), Plug::Asked);
            }
        }
    }

    /// Whether a VM is who it says, as far as monitors tell: the QEMU of a
    /// monitor that is connected here speaks for its own VM, and for no other.
    pub(super) fn is_genuine(&self, number: u64, uuid: Uuid) -> bool {
        let pid = self.vms.get(&number).and_then(|vm| vm.pid);
        let (mut monitored, mut by_another) = (false, false);
        for (config, machine) in self.config.vms.iter().zip(&self.machines) {
            let Some(qemu) = self.qemu_of(machine) else {
                continue;
            };
            let claimed = config.uuid == uuid;
            if pid == Some(qemu) {
                if claimed {
                    return true;
                }
                monitored = true;
            } else {
                by_another |= claimed && !machine.elsewhere;
            }
        }
        !monitored && !by_another
    }

    /// The pid of the QEMU that has a monitor, if it is connected here too.
    fn qemu_of(&self, machine: &Machine) -> Option<i32> {
        let Link::Up(identity) = &machine.link else {
            return None;
        };
        // 0: out of sight, in a PID namespace that is not below this one.
        let pid = identity.pid.filter(|pid| *pid != 0)?;
        let mut connected = self.vms.values();
        connected.any(|vm| vm.pid == Some(pid)).then_some(pid)
    }

    /// Has a region plugged out of a VM, or tried again if that failed a while
    /// ago. True once it is out: nothing is known of it, and the guest has left.
    pub(super) fn plug_out(&mut self, number: usize, region: &str, joined: bool) -> bool {
        let machine = &mut self.machines[number];
        let due = match machine.plugs.get(region) {
            None | Some(Plug::TakenOut) if !joined => return true,
            None | Some(Plug::TakenOut) => true,
            Some(Plug::Leaving) => false,
            Some(Plug::Failed(at, _) | Plug::Held(at, _)) => at.elapsed() >= TRY_AGAIN,
            Some(Plug::Asked | Plug::In | Plug::Stale) => true,
        };
        match &machine.monitor {
            Some(monitor) if due && matches!(machine.link, Link::Up(_)) => {
                monitor.ask(Job::Unplug(format!("{PREFIX}{region}")));
                machine.plugs.insert(region.into(), Plug::Leaving);
            }
            _ => {}
        }
        false
    }

    /// Forgets what was about a region that is no more, save where a machine that
    /// was reset has it yet: one of the same name is not to be taken for it.
    pub(super) fn forget_plugs(&mut self, region: &str) {
        for machine in &mut self.machines {
            let plugs = &mut machine.plugs;
            plugs.retain(|name, plug| name != region || *plug == Plug::Stale);
        }
    }

    /// For `hallway status`.
    pub(super) fn machine_status(&self) -> Vec<control::Machine> {
        let all = self.config.vms.iter().zip(&self.machines);
        all.map(|(config, machine)| control::Machine {
            name: config.name.clone(),
            uuid: config.uuid.to_string(),
            monitor: config.monitor.clone(),
            connected: matches!(machine.link, Link::Up(_)),
            problem: match &machine.link {
                Link::Down(why) => Some(why.clone()),
                Link::New | Link::Up(_) => None,
            },
            plugs: machine
                .plugs
                .iter()
                .map(|(region, plug)| control::Plug {
                    region: region.clone(),
                    plugged: matches!(plug, Plug::In | Plug::Leaving | Plug::Held(..)),
                    problem: match plug {
                        Plug::Failed(_, why) | Plug::Held(_, why) => Some(why.clone()),
                        Plug::TakenOut => Some("another took it out".into()),
                        Plug::Stale => Some("its guest was reset".into()),
                        Plug::Asked | Plug::In | Plug::Leaving => None,
                    },
                })
                .collect(),
        })
        .collect()
    }
}
