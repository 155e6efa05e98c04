// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CPUs of VMs: how many each is given, of those that the configuration names.
//!
//! Once a second the threads of their vCPUs and the host are measured, and the policy of
//! `hallway_cpus` decides. The order is in the private page of a guest, whose module parks
//! the other CPUs. It stays there while no daemon runs, and the next one goes on with it.
//! With `mechanism = "weight"`, the weight of a cgroup is written instead: [`weight`].

mod weight;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, Result};
use hallway_abi::region as abi;
use hallway_control as control;
use hallway_cpus::{
    idle_cpus, Answer, Change, Host, Idle, Limits, Look, Mechanism, Meter, Sample, Scheduler,
};
use hallway_membership::{CpuReport, Uuid};
use tracing::{info, warn};

use self::weight::Weight;
use crate::config::Config;
use crate::connections::{Connection, Connections};
use crate::effect::Effect;
use crate::keeper::SavedWeight;
use crate::regions::Regions;
use crate::vms::Vms;

const PROC: &str = "/proc";

/// The CPUs of all VMs.
pub struct Cpus {
    scheduler: Scheduler,
    all: BTreeMap<usize, Watched>,
    idle: Option<Idle>,
    started: Instant,
    /// The daemon ends for good: all CPUs come back.
    over: bool,
    /// Weights of cgroups that are given none any more, and have to get their base back.
    leaving: Vec<Weight>,
    /// The weights that the holder has.
    saved: Vec<SavedWeight>,
}

/// A VM of the configuration whose CPUs are scheduled.
#[derive(Default)]
struct Watched {
    limits: control::Cpus,
    meter: Meter,
    report: Option<CpuReport>,
    /// That of its cgroup, if it is given weight.
    weight: Option<Weight>,
    sample: Option<Sample>,
    /// Why it could not be measured.
    problem: Option<String>,
}

impl Cpus {
    /// Begins with the configuration, and weights that a daemon before this one may have raised.
    pub fn new(config: &Config, weights: Vec<SavedWeight>) -> Self {
        let watched = |limits: Limits| Watched {
            limits: control::Cpus {
                mechanism: match limits.mechanism {
                    Mechanism::Park => "park".into(),
                    Mechanism::Weight => "weight".into(),
                },
                min: limits.min,
                max: limits.max,
                ..control::Cpus::default()
            },
            ..Watched::default()
        };
        let all = config.vms.iter().enumerate();
        let mut all: BTreeMap<usize, Watched> = all
            .filter_map(|(number, vm)| Some((number, watched(vm.cpus?))))
            .collect();
        let mut leaving = Vec::new();
        for saved in weights.clone() {
            let number = config.vm_of(saved.vm);
            let number = number.filter(|number| has(config, *number, Mechanism::Weight));
            let watched = number.and_then(|number| all.get_mut(&number));
            let weight = Weight::recover(saved);
            match watched.filter(|watched| watched.weight.is_none()) {
                Some(watched) => watched.weight = Some(weight),
                None => leaving.push(weight),
            }
        }
        let mut cpus = Self {
            scheduler: Scheduler::new(config.cpus.clone().unwrap_or_default()),
            all,
            idle: None,
            started: Instant::now(),
            over: false,
            leaving,
            saved: weights,
        };
        cpus.restore_left();
        cpus
    }

    /// How many CPUs the guest with this UUID is to have online; 0: all. Nothing: that stays
    /// as it is.
    pub fn order(&self, uuid: Option<Uuid>, config: &Config) -> Option<u32> {
        if self.over {
            return Some(0);
        }
        let number = config.vm_of(uuid?);
        match number.filter(|number| has(config, *number, Mechanism::Park)) {
            None => Some(0),
            Some(number) => self.scheduler.get(number).map(|vm| vm.given()),
        }
    }

    /// All CPUs come back.
    pub fn end(&mut self) {
        self.over = true;
        self.restore_weights();
    }

    /// Gives cgroups back the weights that they had.
    pub fn restore_weights(&mut self) {
        let all = self.all.values_mut();
        self.leaving
            .extend(all.filter_map(|watched| watched.weight.take()));
        self.restore_left();
    }

    /// Gives their base back to those that are given no weight any more. What fails is tried
    /// again.
    fn restore_left(&mut self) {
        self.leaving.retain_mut(|weight| match weight.restore() {
            Ok(()) => false,
            Err(error) => {
                if weight.report() {
                    let SavedWeight { file, base, .. } = weight.saved();
                    warn!("weight {base} for {}: {error}", file.display());
                }
                true
            }
        });
    }

    /// Writes weights of VMs that were given something else. The holder has to know of them.
    pub fn write_weights(&mut self) {
        if self.is_unsaved() {
            return;
        }
        for (number, watched) in &mut self.all {
            let vm = self.scheduler.get(*number);
            if let (Some(vm), Some(weight)) = (vm, &mut watched.weight) {
                if let Err(error) = weight.set(vm.given(), watched.limits.min) {
                    watched.problem = Some(format!("{error:#}"));
                }
            }
        }
    }

    /// Weights of cgroups, for a later daemon.
    pub fn weights(&self) -> Vec<SavedWeight> {
        self.all_weights().map(Weight::saved).cloned().collect()
    }

    fn all_weights(&self) -> impl Iterator<Item = &Weight> {
        let given = self
            .all
            .values()
            .filter_map(|watched| watched.weight.as_ref());
        given.chain(&self.leaving)
    }

    /// Whether the holder lacks some of them.
    pub fn is_unsaved(&self) -> bool {
        !self.all_weights().map(Weight::saved).eq(&self.saved)
    }

    /// The holder has them.
    pub fn on_saved(&mut self) {
        self.saved = self.weights();
    }

    /// Measures, and decides.
    pub fn every_second(
        &mut self,
        config: &Config,
        connections: &Connections,
        regions: &Regions,
        vms: &Vms,
    ) -> Vec<Effect> {
        self.restore_left();
        if self.all.is_empty() {
            return Vec::new();
        }
        // Of a VM before, which has the same one: it gets its base back first.
        let taken: Vec<SavedWeight> = self.weights();
        let now = self.started.elapsed();
        let host = self.measure_host(now);
        let (mut looks, mut effects) = (BTreeMap::new(), Vec::new());
        for (number, watched) in &mut self.all {
            let vm = &config.vms[*number];
            let (Some(limits), Some(guest)) = (vm.cpus, connections.of_guest(vm.uuid)) else {
                self.scheduler.forget(*number);
                watched.report = None;
                watched.problem = None;
                self.leaving.extend(watched.weight.take());
                continue;
            };
            let senders = count_senders(guest, regions);
            let vcpus = vms.vcpus(*number);
            let is_measured = watched.measure(vcpus, senders, now);
            if !is_measured {
                effects.push(Effect::AskVcpus(*number));
            }
            watched.report = guest.page.cpu_report();
            let ordered = match limits.mechanism {
                Mechanism::Park => guest.page.cpu_order(),
                Mechanism::Weight => {
                    if let Some((qemu, threads)) = vcpus.filter(|_| is_measured) {
                        let found = if guest.is_of(qemu) {
                            Weight::find(Path::new(PROC), vm.uuid, qemu, threads)
                        } else {
                            Err(anyhow!(
                                "its monitor is not that of the QEMU which has its guest"
                            ))
                        };
                        let left = watched.follow_weight(found, &taken);
                        self.leaving.extend(left);
                    }
                    let weight = watched.weight.as_ref();
                    let Some(given) = weight.and_then(|weight| weight.given(limits.min)) else {
                        self.scheduler.forget(*number);
                        continue;
                    };
                    given
                }
            };
            if self.scheduler.get(*number).is_none() {
                self.scheduler.enter(*number, limits, ordered, now);
            }
            let given = self.scheduler.get(*number).map_or(0, |vm| vm.given());
            let look = Look {
                sample: watched.sample.clone(),
                answer: match &watched.weight {
                    None => answer(watched.report, given),
                    Some(weight) if weight.is_of(given, limits.min) => Answer::Done,
                    Some(_) => Answer::Working,
                },
            };
            looks.insert(*number, look);
        }
        for change in self.scheduler.step(now, host, &looks) {
            let Change { vm, from, to, why } = change;
            info!(vm = config.vms[vm].name, from, to, "CPUs: {why}");
        }
        effects
    }

    fn measure_host(&mut self, now: Duration) -> Option<Host> {
        let read = Idle::read(Path::new(PROC), now).ok();
        let before = std::mem::replace(&mut self.idle, read);
        let idle = idle_cpus(&before?, &read?);
        Some(Host { idle })
    }

    /// What `hallway cpus` shows of a VM.
    pub fn status(&self, number: usize) -> Option<control::Cpus> {
        let watched = self.all.get(&number)?;
        let Some(vm) = self.scheduler.get(number) else {
            let unknown = || "its guest is not known: its module, hallway, must run".into();
            return Some(control::Cpus {
                problem: Some(watched.problem.clone().unwrap_or_else(unknown)),
                ..watched.limits.clone()
            });
        };
        let percent = |share: f64| (share * 100.0).round() as u32;
        let mean = |of: fn(&hallway_cpus::Usage) -> f64| {
            let busiest = watched.sample.as_ref()?.busiest(vm.given());
            let sum: f64 = busiest.iter().map(of).sum();
            Some(percent(sum / busiest.len().max(1) as f64))
        };
        Some(control::Cpus {
            given: Some(vm.given()),
            why: vm.why().to_string(),
            since_seconds: self
                .started
                .elapsed()
                .saturating_sub(vm.changed())
                .as_secs(),
            online: watched.report.map(|report| report.online),
            weight: watched.weight.as_ref().and_then(Weight::now),
            senders: vm.senders(),
            busy_percent: mean(|one| one.run),
            waiting_percent: mean(|one| one.delay),
            problem: watched.find_problem(vm),
            ..watched.limits.clone()
        })
    }
}

impl Watched {
    /// Measures the threads of its vCPUs. False if they are to be looked for.
    fn measure(&mut self, vcpus: Option<(i32, &[i32])>, senders: u32, now: Duration) -> bool {
        self.sample = None;
        let Some((pid, threads)) = vcpus else {
            self.problem = Some("its monitor has not named the threads of its vCPUs".into());
            return false;
        };
        match self.meter.measure(Path::new(PROC), pid, threads, now) {
            Ok(cpus) => {
                self.problem = None;
                self.sample = cpus.map(|cpus| Sample { senders, cpus });
                true
            }
            Err(error) => {
                self.problem = Some(format!("the threads of its vCPUs: {error}"));
                false
            }
        }
    }

    /// Takes the weight of its cgroup that was found, or why that is left alone. Returns one
    /// that it has no more.
    fn follow_weight(&mut self, found: Result<Weight>, taken: &[SavedWeight]) -> Option<Weight> {
        let before = self.weight.take();
        let found = found.and_then(|found| {
            let is_its = before.as_ref().is_some_and(|before| found.is_same(before));
            match found.find_user(taken).filter(|_| !is_its) {
                Some(vm) => bail!("its cgroup still has the weight of VM {vm}"),
                None => Ok(found),
            }
        });
        match (found, before) {
            (Ok(mut found), Some(before)) if found.is_same(&before) => {
                found.follow(&before);
                self.weight = Some(found);
                None
            }
            (Ok(found), before) => {
                self.weight = Some(found);
                before
            }
            (Err(error), before) => {
                self.problem = Some(format!("{error:#}"));
                before
            }
        }
    }

    fn find_problem(&self, vm: &hallway_cpus::Vm) -> Option<String> {
        if self.weight.is_some() {
            return self.problem.clone();
        }
        let Some(report) = self.report else {
            return Some("its module says nothing of CPUs: it does not run, or is older".into());
        };
        let refused = match report.status {
            abi::CPUS_REFUSED => Some("its guest refuses: its module has cpus=N"),
            abi::CPUS_FAILED => Some("its guest's kernel or administrator does not let it"),
            abi::CPUS_INVALID => Some("its guest has fewer CPUs"),
            _ if vm.refuses() => Some("its guest does not carry orders out"),
            _ => None,
        };
        let few = report.present < self.limits.max;
        refused
            .map(Into::into)
            .or_else(|| self.problem.clone())
            .or_else(|| {
                few.then(|| {
                    format!(
                        "it has {} CPUs, fewer than max: start QEMU with -smp {}",
                        report.present, self.limits.max
                    )
                })
            })
    }
}

/// Gives cgroups back the weights that they had, where no daemon is to follow. Returns what is
/// left to do by hand.
pub fn restore_saved(weights: Vec<SavedWeight>) -> Vec<String> {
    let left = weights.into_iter().filter_map(|saved| {
        let (file, base) = (saved.file.clone(), saved.base);
        let error = Weight::recover(saved).restore().err()?;
        Some(format!("write {base} to {}: {error}", file.display()))
    });
    left.collect()
}

/// Whether a VM of the configuration gets CPUs in this way.
fn has(config: &Config, vm: usize, mechanism: Mechanism) -> bool {
    config.vms[vm]
        .cpus
        .is_some_and(|limits| limits.mechanism == mechanism)
}

/// What a report says of an order.
fn answer(report: Option<CpuReport>, order: u32) -> Answer {
    match report {
        None => Answer::Silent,
        Some(report) if report.order != order => Answer::Working,
        Some(report) => match report.status {
            abi::CPUS_DONE => Answer::Done,
            abi::CPUS_WORKING => Answer::Working,
            _ => Answer::Refused,
        },
    }
}

/// On how many connections and tunnels a guest says that it sends, in all of its regions.
fn count_senders(guest: &Connection, regions: &Regions) -> u32 {
    let joined = guest.entries.iter().filter_map(|entry| {
        let served = regions.get(entry.region.as_deref()?)?;
        Some(served.senders(entry.slot as usize))
    });
    joined.fold(0, u32::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_about_its_order() {
        let report = |order, status| {
            Some(CpuReport {
                order,
                status,
                online: 1,
                present: 2,
            })
        };
        assert_eq!(answer(None, 2), Answer::Silent);
        assert_eq!(answer(report(1, abi::CPUS_DONE), 2), Answer::Working);
        assert_eq!(answer(report(2, abi::CPUS_DONE), 2), Answer::Done);
        assert_eq!(answer(report(2, abi::CPUS_WORKING), 2), Answer::Working);
        for status in [
            abi::CPUS_FAILED,
            abi::CPUS_REFUSED,
            abi::CPUS_INVALID,
            u32::MAX,
        ] {
            assert_eq!(answer(report(2, status), 2), Answer::Refused);
        }
    }
}
