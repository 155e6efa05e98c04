// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One VM of the configuration: its monitor, its ring memory, its migration.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hallway_control::{self as control, Migration, Release};
use hallway_membership::Uuid;
use hallway_qmp::{Identity, Memory, Source};
use tracing::{info, warn};

use super::monitor::Handle;
use super::news::{Job, News, LET_GO, PLUGS_MAX, PREFIX};
use crate::config::LIBVIRT;
use crate::lines::Lines;

/// Time between two tries to plug in or out what QEMU or the guest refused.
const TRY_AGAIN: Duration = Duration::from_secs(10);

/// How long a guest stays a member of a region that it may no longer have, and does not let
/// go: a little longer than one try takes.
const OVERDUE: Duration = LET_GO.saturating_add(Duration::from_secs(10));

/// Log lines a second that the monitor of one VM may cause: a hostile QEMU has events
/// without end.
const LINES: usize = 8;

/// How long a guest may take to join a region that is plugged in.
const JOINS: Duration = Duration::from_secs(10);

/// What may be wrong with a region that a guest does not join.
const NOT_JOINED: &str = "plugged in and not joined: hallway status and dmesg in the guest say \
     why. On q35 the root port may have no room for it: start QEMU with -global \
     pcie-root-port.pref64-reserve=SIZE, twice that of the region";

fn is_late(since: Instant) -> bool {
    since.elapsed() >= JOINS
}

/// A VM of the configuration.
pub struct Vm {
    /// Its name in the configuration.
    pub name: String,
    /// Its UUID in the configuration.
    pub uuid: Uuid,
    /// Path of its monitor's socket, or the word for libvirt.
    path: Option<PathBuf>,
    monitor: Option<Handle>,
    link: Link,
    /// Its ring memory, by region.
    plugs: BTreeMap<String, Plug>,
    /// Regions that its QEMU had when it answered, and that are yet to be looked at.
    found: BTreeSet<String>,
    /// Regions that it may no longer have, and that may still be plugged in, each with the
    /// time since when; nothing: its guest is no member, or was put out.
    revoked: BTreeMap<String, Option<Instant>>,
    /// Regions that its thread is to plug out, and has yet to say how that ended.
    unplugging: BTreeSet<String>,
    lines: Lines,
    /// It is shut off, which the link's reason says.
    off: bool,
    /// Its guest runs in another QEMU: it has yet to arrive by migration, or went.
    elsewhere: bool,
    /// The last migration from here.
    migration: Option<Migration>,
    /// The last release of its ring memory, unless it was resumed since.
    release: Option<Release>,
    /// Process of the QEMU that this release is of, where that is known.
    release_qemu: Option<i32>,
    /// Threads of its vCPUs.
    vcpus: Vec<i32>,
    /// When they were asked for last.
    vcpus_asked: Option<Instant>,
}

/// State of the connection to a monitor.
enum Link {
    /// No try has ended yet.
    New,
    /// There is none, for this reason.
    Down(String),
    /// It is to this QEMU.
    Up(Identity),
}

/// State of a region's device in a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Plug {
    /// QEMU is asked for it.
    Asked,
    /// It is plugged in, since this time. The flag: its guest has joined since, or that
    /// it has not was logged.
    In(Instant, bool),
    /// The guest is asked to let it go.
    Leaving,
    /// The guest was asked to let it go, and did not, at this time, for this reason.
    Held(Instant, String),
    /// Another client of QEMU took it out, or the guest let it go unasked.
    TakenOut,
    /// It was plugged in when the guest was reset: firmware has placed it since,
    /// where guests may map it uncached. No guest could let it go before its
    /// kernel runs; the first request of its module shows that it does.
    Stale,
    /// QEMU refused it, at this time, for this reason.
    Failed(Instant, String),
}

impl Vm {
    /// A VM of which nothing is known but what the configuration says.
    pub fn new(name: String, uuid: Uuid, path: Option<PathBuf>, monitor: Option<Handle>) -> Self {
        Self {
            name,
            uuid,
            path,
            monitor,
            link: Link::New,
            plugs: BTreeMap::new(),
            found: BTreeSet::new(),
            revoked: BTreeMap::new(),
            unplugging: BTreeSet::new(),
            lines: Lines::new(LINES),
            off: false,
            elsewhere: false,
            migration: None,
            release: None,
            release_qemu: None,
            vcpus: Vec::new(),
            vcpus_asked: None,
        }
    }

    /// A daemon before this one had this QEMU's guest release its ring memory.
    pub fn recover_release(&mut self, qemu: i32) {
        self.release = Some(Release::Out);
        self.release_qemu = Some(qemu);
    }

    /// Whether its monitor answers, and is that of its own QEMU.
    pub fn is_up(&self) -> bool {
        matches!(self.link, Link::Up(_))
    }

    /// Whether its guest runs in another QEMU.
    pub fn is_elsewhere(&self) -> bool {
        self.elsewhere
    }

    fn is_migrating(&self) -> bool {
        matches!(
            self.migration,
            Some(Migration::Unplugging | Migration::Moving { .. })
        )
    }

    /// Process of the QEMU that has its monitor.
    pub fn qemu(&self) -> Option<i32> {
        match &self.link {
            // 0: out of sight, in a PID namespace that is not below this one.
            Link::Up(identity) => identity.pid.filter(|pid| *pid != 0),
            Link::New | Link::Down(_) => None,
        }
    }

    /// The monitor, where it answers.
    fn reachable(&self) -> Option<&Handle> {
        self.monitor.as_ref().filter(|_| self.is_up())
    }

    /// Does what is due once a second.
    pub fn every_second(&mut self) {
        if let more @ 1.. = self.lines.every_second() {
            warn!(
                vm = self.name,
                more, "events of its monitor, too many to log each"
            );
        }
    }

    // -- News of its monitor -----------------------------------------------------

    /// Takes the news that came.
    pub fn take_news(&self) -> impl Iterator<Item = News> + '_ {
        self.monitor.iter().flat_map(Handle::take_news)
    }

    /// A QEMU answers at its monitor, which is `known` as the QEMU of a VM by the
    /// monitor that it had. False if that is another VM's, or this VM runs in an `other` one.
    pub fn hear_up(
        &mut self,
        identity: Identity,
        elsewhere: bool,
        known: Option<Uuid>,
        other: Option<i32>,
    ) -> bool {
        self.off = false;
        if let Some(pid) = other {
            let why = format!(
                "another QEMU is there, and {} runs in that with process {pid}: end the one or \
                 the other",
                self.name
            );
            // It is looked for again.
            if let Some(monitor) = &self.monitor {
                monitor.ask(Job::HangUp(why.clone()));
            }
            self.hear_down(why);
            return false;
        }
        let other = if identity.uuid.parse() != Ok(self.uuid) {
            Some(format!(
                "the QEMU there has UUID {}, and {} has {} in the configuration: correct the one \
                 or the other",
                identity.uuid, self.name, self.uuid
            ))
        } else {
            known.filter(|known| *known != self.uuid).map(|known| {
                format!(
                    "the QEMU there is that of VM {known}, and stands in for {}: end it, and give \
                     each QEMU a directory for its monitor that no other can write to",
                    self.name
                )
            })
        };
        if let Some(why) = other {
            warn!(vm = self.name, "{why}");
            self.link = Link::Down(why);
            return false;
        }
        info!(vm = self.name, "its monitor answers");
        // What was plugged into a QEMU before this one is not in this one.
        self.plugs.clear();
        self.unplugging.clear();
        self.link = Link::Up(identity);
        self.elsewhere = elsewhere;
        self.migration = None;
        // Another QEMU is another run of the VM, or a VM that came here.
        if self.release_qemu.is_none() || self.release_qemu != self.qemu() {
            self.release = None;
        }
        self.vcpus.clear();
        self.vcpus_asked = None;
        true
    }

    /// It is shut off.
    pub fn hear_off(&mut self, why: String) {
        self.hear_down(why);
        self.off = true;
    }

    /// No QEMU answers.
    pub fn hear_down(&mut self, why: String) {
        self.off = false;
        match &self.migration {
            Some(Migration::Unplugging) => {
                self.migration = Some(Migration::Stayed { why: why.clone() });
            }
            Some(Migration::Moving { .. }) => {
                self.migration = Some(Migration::Unknown { why: why.clone() });
            }
            _ => {}
        }
        if self.release == Some(Release::Unplugging) {
            self.release = Some(Release::Failed { why: why.clone() });
        }
        match &self.link {
            Link::Down(before) if *before == why => return,
            // A VM that is not started yet.
            Link::New => info!(vm = self.name, "monitor: {why}"),
            Link::Down(_) | Link::Up(_) => warn!(vm = self.name, "monitor: {why}"),
        }
        self.link = Link::Down(why);
    }

    /// Its guest runs here.
    pub fn hear_runs(&mut self) {
        self.elsewhere = false;
    }

    /// Its guest was reset.
    pub fn hear_reset(&mut self) {
        if self.lines.may() {
            info!(vm = self.name, "was reset");
        }
        for plug in self.plugs.values_mut() {
            if matches!(plug, Plug::Asked | Plug::In(..) | Plug::Held(..)) {
                *plug = Plug::Stale;
            }
        }
    }

    /// A device is plugged in.
    pub fn hear_plugged(&mut self, id: &str) {
        if let Some(region) = id.strip_prefix(PREFIX) {
            if self.lines.may() {
                info!(vm = self.name, region, "plugged in");
            }
            let plug = Plug::In(Instant::now(), false);
            self.plugs.insert(region.into(), plug);
        }
    }

    /// QEMU refused a device, or kept the memory of one that has gone.
    pub fn hear_failed(&mut self, id: &str, why: String) {
        if let Some(region) = id.strip_prefix(PREFIX) {
            self.unplugging.remove(region);
            if self.lines.may() {
                warn!(vm = self.name, region, "{why}");
            }
            let failed = Plug::Failed(Instant::now(), why);
            self.plugs.insert(region.into(), failed);
        }
    }

    /// The guest did not let a device go.
    pub fn hear_held(&mut self, id: &str, why: String) {
        if let Some(region) = id.strip_prefix(PREFIX) {
            self.unplugging.remove(region);
            if self.lines.may() {
                warn!(vm = self.name, region, "{why}");
            }
            let held = Plug::Held(Instant::now(), why);
            self.plugs.insert(region.into(), held);
        }
    }

    /// A device is gone; `asked`: with its memory, as the daemon asked.
    pub fn hear_gone(&mut self, id: &str, asked: bool) {
        let Some(region) = id.strip_prefix(PREFIX) else {
            return;
        };
        if asked {
            self.unplugging.remove(region);
        }
        let plug = self.plugs.get(region);
        if plug.is_none() && self.plugs.len() >= PLUGS_MAX {
            return;
        }
        let taken_out = plug == Some(&Plug::TakenOut);
        let late = matches!(
            plug,
            Some(Plug::Leaving | Plug::Held(..) | Plug::Failed(..))
        );
        match &self.monitor {
            Some(_) if !asked => {
                if !late && self.lines.may() {
                    info!(vm = self.name, region, "was plugged out by another");
                }
                let now = if late { Plug::Leaving } else { Plug::TakenOut };
                self.plugs.insert(region.into(), now);
                // The device is gone; its memory is not.
                self.ask_unplug(region);
            }
            // That was the memory, which followed.
            _ if taken_out => {}
            _ => {
                if self.lines.may() {
                    info!(vm = self.name, region, "plugged out");
                }
                self.plugs.remove(region);
                self.revoked.remove(region);
                self.found.remove(region);
            }
        }
    }

    /// Its migration has reached another stage. True if its guest has gone.
    pub fn hear_migrates(&mut self, stage: Migration) -> bool {
        let done = matches!(stage, Migration::Done { .. });
        if done {
            info!(vm = self.name, "has migrated");
            self.elsewhere = true;
        }
        if let Migration::Stayed { why } = &stage {
            warn!(vm = self.name, "does not migrate: {why}");
            self.hear_stays();
        }
        self.migration = Some(stage);
        done
    }

    /// The release of its ring memory ended so.
    pub fn hear_released(&mut self, end: Release) {
        match &end {
            Release::Failed { why } => warn!(vm = self.name, "keeps its ring memory: {why}"),
            _ => info!(vm = self.name, "has released its ring memory"),
        }
        self.release = Some(end);
    }

    /// A migration of it failed: memory that was released for that comes back.
    pub fn hear_stays(&mut self) {
        if self.release == Some(Release::Out) {
            info!(vm = self.name, "stays, and gets its ring memory again");
            self.release = None;
        }
    }

    /// The QEMU with this process has ended. Another one may get the same number.
    pub fn hear_ended(&mut self, pid: i32) {
        if self.released_qemu() == Some(pid) {
            info!(vm = self.name, "its QEMU ended: its release is over");
            self.release = None;
        }
    }

    /// Has its thread plug a region out, once at a time, and not too many: a hostile QEMU may
    /// say without end that a device went, and that another one did.
    /// False: there are too many.
    fn ask_unplug(&mut self, region: &str) -> bool {
        let Some(monitor) = &self.monitor else {
            return true;
        };
        if self.unplugging.contains(region) {
            return true;
        }
        if self.unplugging.len() >= PLUGS_MAX {
            return false;
        }
        self.unplugging.insert(region.into());
        monitor.ask(Job::Unplug(format!("{PREFIX}{region}")));
        true
    }

    // -- Ring memory -------------------------------------------------------------

    /// Its guest's module started: regions that others took out are plugged in
    /// again, and those that a reset left behind are plugged out first.
    pub fn hear_started(&mut self) {
        self.plugs.retain(|_, plug| *plug != Plug::TakenOut);
        if self.reachable().is_none() {
            return;
        }
        let stale = self.plugs.iter().filter(|(_, plug)| **plug == Plug::Stale);
        for region in stale.map(|(region, _)| region.clone()).collect::<Vec<_>>() {
            if self.ask_unplug(&region) {
                self.plugs.insert(region, Plug::Leaving);
            }
        }
    }

    /// Logs, once, regions that its guest does not join though they are plugged in.
    pub fn look_at_joins(&mut self, has_joined: impl Fn(&str) -> bool) {
        let is_up = self.is_up();
        let plugs = self.plugs.iter_mut().filter(|_| is_up);
        for (region, plug) in plugs {
            let Plug::In(since, done @ false) = plug else {
                continue;
            };
            let joined = has_joined(region);
            if !joined && is_late(*since) {
                warn!(vm = self.name, region, "{NOT_JOINED}");
            }
            *done = joined || is_late(*since);
        }
    }

    /// Whether regions can be plugged in: its monitor answers, its guest is not elsewhere
    /// nor on its way, and its memory was not released.
    pub fn can_plug(&self) -> bool {
        let is_here = self.reachable().is_some() && !self.elsewhere;
        is_here && !self.is_migrating() && !self.is_released()
    }

    /// Whether a region is to be plugged in, and was not refused just now. A guest that has not
    /// let it go has it still, and may let it go at any moment.
    pub fn lacks(&self, region: &str) -> bool {
        match self.plugs.get(region) {
            None => true,
            Some(Plug::Failed(at, _)) => at.elapsed() >= TRY_AGAIN,
            Some(_) => false,
        }
    }

    /// Has a region plugged in.
    pub fn plug(&mut self, region: &str, source: Source, size: u64) {
        if let Some(monitor) = self.reachable() {
            monitor.ask(Job::Plug(Memory {
                id: format!("{PREFIX}{region}"),
                source,
                size,
            }));
            self.plugs.insert(region.into(), Plug::Asked);
            // To plug it out again is another job, after this one.
            self.unplugging.remove(region);
        }
    }

    /// Whether a daemon before this one may have plugged a region in that is there still.
    fn may_have(&self, region: &str) -> bool {
        let is_unknown = self.monitor.is_some() && matches!(self.link, Link::New);
        is_unknown || self.revoked.contains_key(region) || self.found.contains(region)
    }

    /// Has a region plugged out, or tries again if that failed a while ago. True
    /// once it is out: no device is known of, and the guest has not `joined`.
    pub fn plug_out(&mut self, region: &str, joined: bool) -> bool {
        let due = match self.plugs.get(region) {
            // What was revoked may be there still: its monitor has yet to say.
            None | Some(Plug::TakenOut) if !joined && !self.may_have(region) => return true,
            None | Some(Plug::TakenOut) => true,
            Some(Plug::Leaving) => false,
            Some(Plug::Failed(at, _) | Plug::Held(at, _)) => at.elapsed() >= TRY_AGAIN,
            Some(Plug::Asked | Plug::In(..) | Plug::Stale) => true,
        };
        if due && self.reachable().is_some() && self.ask_unplug(region) {
            self.plugs.insert(region.into(), Plug::Leaving);
        }
        false
    }

    /// Has a region plugged out that it may no longer have, and of which its guest is a
    /// member. False if it has no monitor.
    pub fn revoke(&mut self, region: &str) -> bool {
        self.revoked.insert(region.into(), Some(Instant::now()));
        self.monitor.is_some()
    }

    /// Takes the regions that it has kept for too long `now`, though it may no longer have
    /// them.
    pub fn take_overdue(&mut self, now: Instant) -> Vec<String> {
        let mut overdue = Vec::new();
        for (region, since) in &mut self.revoked {
            let is_late = |since: &mut Instant| now.saturating_duration_since(*since) > OVERDUE;
            if since.take_if(is_late).is_some() {
                overdue.push(region.clone());
            }
        }
        overdue
    }

    /// Enters which memory devices its QEMU has. A daemon before this one, with another
    /// configuration, may have plugged them in.
    pub fn hear_found(&mut self, ids: &[String]) {
        let regions = ids.iter().filter_map(|id| id.strip_prefix(PREFIX));
        self.found = regions.map(String::from).collect();
    }

    /// Its guest was reset before the monitor answered, and its module has not started since: what
    /// its QEMU has is from before that. False: it has nothing.
    pub fn hear_reset_before(&mut self) -> bool {
        let found = self.found.iter().take(PLUGS_MAX);
        self.plugs
            .extend(found.map(|region| (region.clone(), Plug::Stale)));
        !self.found.is_empty()
    }

    /// Has what its QEMU had and what is not `wanted` plugged out. A QEMU that names
    /// others each time that it answers has only the first ones kept in mind.
    pub fn revoke_found(&mut self, wanted: &[String]) {
        let found = std::mem::take(&mut self.found).into_iter();
        let room = PLUGS_MAX.saturating_sub(self.revoked.len());
        let is_new = |name: &String| !wanted.contains(name) && !self.revoked.contains_key(name);
        let found: Vec<_> = found.filter(is_new).take(room).collect();
        self.revoked
            .extend(found.into_iter().map(|name| (name, None)));
    }

    /// Plugs out the regions that it may no longer have, or tries again.
    pub fn plug_out_revoked(&mut self) {
        for region in self.revoked.keys().cloned().collect::<Vec<_>>() {
            self.plug_out(&region, true);
        }
    }

    /// Forgets a region that is no more, save where a reset left its device: a
    /// region of the same name is not to be taken for it.
    pub fn forget_plug(&mut self, region: &str) {
        self.plugs
            .retain(|name, plug| name != region || *plug == Plug::Stale);
    }

    // -- CPUs ----------------------------------------------------------------------

    /// These are the threads of its vCPUs.
    pub fn hear_vcpus(&mut self, threads: Vec<i32>) {
        self.vcpus = threads;
    }

    /// Process and threads of its vCPUs, where they are known and its guest stays here.
    pub fn vcpus(&self) -> Option<(i32, &[i32])> {
        let stays = !self.elsewhere && !self.is_migrating() && !self.vcpus.is_empty();
        self.qemu()
            .filter(|_| stays)
            .map(|pid| (pid, &self.vcpus[..]))
    }

    /// Has its monitor look for them, unless it did just now.
    pub fn ask_vcpus(&mut self) {
        let is_due = self
            .vcpus_asked
            .is_none_or(|asked| asked.elapsed() >= TRY_AGAIN);
        if let Some(monitor) = self.reachable().filter(|_| is_due) {
            monitor.ask(Job::Vcpus);
            self.vcpus_asked = Some(Instant::now());
        }
    }

    // -- Migration ---------------------------------------------------------------

    /// Its monitor, if its guest runs here, and does not migrate.
    fn staying(&self) -> Result<&Handle, String> {
        let monitor = match (&self.monitor, &self.link) {
            (Some(monitor), Link::Up(_)) => monitor,
            (None, _) => {
                return Err(format!(
                    "{} has no monitor in the configuration: give it one, or take its memory out \
                     by hand",
                    self.name
                ))
            }
            (Some(_), Link::Down(why)) => return Err(format!("its monitor: {why}")),
            (Some(_), Link::New) => return Err("its monitor has not answered yet".into()),
        };
        if self.is_migrating() {
            return Err(format!(
                "{0} migrates already: hallway migrate {0} --cancel ends that",
                self.name
            ));
        }
        if self.elsewhere {
            return Err(format!(
                "{} does not run here: it has yet to arrive by migration, or it went, and its \
                 QEMU here is to be ended",
                self.name
            ));
        }
        Ok(monitor)
    }

    /// Begins to migrate it.
    pub fn migrate(&mut self, uri: String) -> Result<Migration, String> {
        if self.path.as_deref() == Some(Path::new(LIBVIRT)) {
            return Err(format!(
                "libvirt runs {0}, and migrates it: hallway release {0} -- virsh migrate --live {0} \
                 URI",
                self.name
            ));
        }
        self.staying()?.migrate(uri);
        self.migration = Some(Migration::Unplugging);
        Ok(Migration::Unplugging)
    }

    /// Begins to have it release its ring memory, each region within `limit`.
    pub fn release(&mut self, limit: Duration) -> Result<Release, String> {
        let monitor = self.staying()?;
        if !self.is_released() {
            monitor.ask(Job::Release(limit));
            self.release = Some(Release::Unplugging);
            self.release_qemu = self.qemu();
        }
        self.release_stage()
    }

    /// Stage of its last release.
    pub fn release_stage(&self) -> Result<Release, String> {
        let none = || format!("{} was not asked to release its ring memory", self.name);
        self.release.clone().ok_or_else(none)
    }

    /// Whether nothing of it is here that could get ring memory: no QEMU answers, or its guest
    /// runs elsewhere.
    pub fn is_away(&self) -> bool {
        let is_gone = !self.is_up() || self.elsewhere && !self.is_migrating();
        self.monitor.is_some() && is_gone && !self.is_released()
    }

    /// Has its ring memory plugged in again.
    pub fn resume(&mut self) -> Result<(), String> {
        match self.release {
            Some(Release::Unplugging) => {
                return Err(format!(
                    "{}'s ring memory is being taken out: wait until that is over",
                    self.name
                ))
            }
            // Its monitor may answer later.
            Some(Release::Out) => {}
            _ => drop(self.staying()?),
        }
        self.release = None;
        self.plugs.retain(|_, plug| *plug != Plug::TakenOut);
        Ok(())
    }

    /// Whether its ring memory is released, or on its way out.
    pub fn is_released(&self) -> bool {
        matches!(self.release, Some(Release::Unplugging | Release::Out))
    }

    /// Whether it is about to lose its ring memory, to migrate or by a release.
    pub fn is_leaving(&self) -> bool {
        self.is_migrating() || self.release == Some(Release::Unplugging)
    }

    /// The QEMU of a release of ring memory that is not over.
    pub fn released_qemu(&self) -> Option<i32> {
        self.release_qemu
            .filter(|_| self.release == Some(Release::Out))
    }

    /// Stage of its last migration.
    pub fn migration(&self) -> Result<Migration, String> {
        match (&self.migration, &self.link) {
            (Some(stage), _) => Ok(stage.clone()),
            (None, Link::Down(why)) => Err(format!("its monitor: {why}")),
            (None, Link::New) => Err("its monitor has not answered yet".into()),
            (None, Link::Up(_)) if self.elsewhere => {
                Err(format!("{} does not run here", self.name))
            }
            (None, Link::Up(_)) => Err(format!("{} does not migrate: it stays here", self.name)),
        }
    }

    /// Has its migration end.
    pub fn cancel_migration(&self) -> Result<Migration, String> {
        match (&self.migration, &self.monitor) {
            (Some(stage), Some(monitor)) if self.is_migrating() => {
                monitor.cancel();
                Ok(stage.clone())
            }
            _ => Err(format!("{} does not migrate", self.name)),
        }
    }

    /// What `hallway status` shows of it. `has_joined`: whether its guest has joined a
    /// region.
    pub fn status(&self, has_joined: impl Fn(&str) -> bool) -> control::Vm {
        // What the daemon before plugged in is there until its monitor says otherwise.
        let revoked = self.revoked.keys().chain(&self.found);
        let unconfirmed = revoked.filter(|region| !self.plugs.contains_key(*region));
        let unconfirmed = unconfirmed.map(|region| control::Plug {
            region: region.clone(),
            plugged: true,
            problem: None,
        });
        control::Vm {
            name: self.name.clone(),
            uuid: self.uuid.to_string(),
            monitor: self.path.clone(),
            connected: self.is_up(),
            off: self.off,
            released: self.is_up() && self.release == Some(Release::Out),
            outsourcer: None,
            host_end: None,
            not_running: Vec::new(),
            cpus: None,
            problem: match &self.link {
                Link::Down(why) => Some(why.clone()),
                Link::New | Link::Up(_) => None,
            },
            plugs: self
                .plugs
                .iter()
                .map(|(region, plug)| control::Plug {
                    region: region.clone(),
                    plugged: matches!(plug, Plug::In(..) | Plug::Leaving | Plug::Held(..))
                        || self.may_have(region),
                    problem: match plug {
                        Plug::Failed(_, why) | Plug::Held(_, why) => Some(why.clone()),
                        Plug::TakenOut => Some("another took it out".into()),
                        Plug::Stale => Some("its guest was reset".into()),
                        Plug::In(since, _)
                            if self.is_up() && is_late(*since) && !has_joined(region) =>
                        {
                            Some(NOT_JOINED.into())
                        }
                        Plug::Asked | Plug::In(..) | Plug::Leaving => None,
                    },
                })
                .chain(unconfirmed)
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm() -> Vm {
        Vm::new("web1".into(), Uuid::default(), None, None)
    }

    #[test]
    fn a_device_that_goes_again_and_again_is_plugged_out_once_at_a_time() {
        let (handle, jobs) = Handle::played();
        let mut vm = Vm::new("web1".into(), Uuid::default(), None, Some(handle));
        for _ in 0..100 {
            vm.hear_gone("hallway-g", false);
        }
        assert_eq!(jobs.try_iter().count(), 1);
        vm.hear_gone("hallway-g", true);
        vm.hear_gone("hallway-g", false);
        assert_eq!(jobs.try_iter().count(), 1);
    }

    /// A QEMU of `vm` answers.
    fn answers(vm: &mut Vm, pid: i32) {
        let uuid = vm.uuid.to_string();
        let pid = Some(pid);
        assert!(vm.hear_up(Identity { uuid, pid }, false, None, None));
    }

    #[test]
    fn a_second_qemu_of_a_vm_that_runs_has_to_wait_for_its_end() {
        let (handle, jobs) = Handle::played();
        let mut vm = Vm::new("web1".into(), Uuid::default(), None, Some(handle));
        let identity = Identity {
            uuid: vm.uuid.to_string(),
            pid: Some(8),
        };
        assert!(!vm.hear_up(identity, false, None, Some(7)));
        assert!(!vm.is_up());
        assert!(matches!(jobs.try_recv(), Ok(Job::HangUp(why)) if why.contains("process 7")));
        answers(&mut vm, 8);
        assert!(vm.is_up());
    }

    #[test]
    fn what_another_took_out_is_resumed() {
        let (handle, _jobs) = Handle::played();
        let mut vm = Vm::new("web1".into(), Uuid::default(), None, Some(handle));
        assert!(vm.resume().unwrap_err().contains("has not answered yet"));
        answers(&mut vm, 7);
        vm.hear_gone("hallway-g", false);
        assert!(!vm.lacks("g"));
        vm.resume().unwrap();
        assert!(vm.lacks("g"));
    }

    #[test]
    fn what_libvirt_runs_libvirt_migrates() {
        let (handle, jobs) = Handle::played();
        let path = Some(LIBVIRT.into());
        let mut vm = Vm::new("web1".into(), Uuid::default(), path, Some(handle));
        answers(&mut vm, 7);
        let refused = vm.migrate("tcp:b:1".into()).unwrap_err();
        assert!(refused.contains("virsh migrate --live web1"), "{refused}");
        assert_eq!(jobs.try_iter().count(), 0);
    }

    #[test]
    fn a_vm_is_off_until_another_reason_comes() {
        let mut vm = vm();
        let shown = |vm: &Vm| {
            let status = vm.status(|_| false);
            (status.off, status.problem)
        };
        vm.hear_off("not run".into());
        assert_eq!(shown(&vm), (true, Some("not run".into())));
        vm.hear_down("libvirt hung up".into());
        assert_eq!(shown(&vm), (false, Some("libvirt hung up".into())));
        vm.hear_off("not run".into());
        answers(&mut vm, 7);
        assert_eq!(shown(&vm), (false, None));
    }

    #[test]
    fn a_release_is_of_one_qemu() {
        let (handle, jobs) = Handle::played();
        let mut vm = Vm::new("web1".into(), Uuid::default(), None, Some(handle));
        let limit = Duration::from_secs(1);
        answers(&mut vm, 7);
        vm.release(limit).unwrap();
        assert!(!vm.can_plug());
        assert!(vm.resume().unwrap_err().contains("being taken out"));
        assert!(!vm.is_away());
        vm.hear_down("QEMU hung up".into());
        assert!(matches!(vm.release_stage(), Ok(Release::Failed { .. })));

        answers(&mut vm, 7);
        assert!(vm.can_plug());
        vm.release(limit).unwrap();
        vm.hear_released(Release::Out);
        assert_eq!(jobs.try_iter().count(), 2);
        // libvirt was restarted.
        vm.hear_down("libvirt hung up".into());
        assert!(!vm.status(|_| false).released);
        vm.hear_ended(8);
        answers(&mut vm, 7);
        assert!(vm.status(|_| false).released);
        assert_eq!((vm.can_plug(), vm.released_qemu()), (false, Some(7)));
        let why = "cancelled".into();
        vm.hear_migrates(Migration::Stayed { why });
        assert_eq!((vm.can_plug(), vm.released_qemu()), (true, None));
        vm.release(limit).unwrap();
        vm.hear_released(Release::Out);
        answers(&mut vm, 8);
        assert_eq!((vm.can_plug(), vm.released_qemu()), (true, None));
        vm.release(limit).unwrap();
        vm.hear_released(Release::Out);
        // It went by migration; the next QEMU has the same number.
        vm.hear_down("QEMU hung up".into());
        vm.hear_ended(8);
        assert!(vm.resume().unwrap_err().contains("QEMU hung up"));
        assert!(vm.is_away());
        answers(&mut vm, 8);
        assert_eq!((vm.can_plug(), vm.released_qemu()), (true, None));
    }

    #[test]
    fn a_guest_that_keeps_what_it_may_not_have_is_put_out_once() {
        let mut vm = vm();
        vm.revoke("g");
        let now = Instant::now();
        assert!(vm.take_overdue(now).is_empty());
        assert_eq!(vm.take_overdue(now + OVERDUE * 2), ["g"]);
        assert!(vm.take_overdue(now + OVERDUE * 3).is_empty());
        assert!(vm.revoked.contains_key("g"));
    }

    #[test]
    fn what_a_vm_may_no_longer_have_counts_as_plugged_in_before_its_monitor_answers() {
        let mut vm = vm();
        assert!(vm.status(|_| true).plugs.is_empty());
        vm.revoke("g");
        let plugs = vm.status(|_| true).plugs;
        assert!(plugs.len() == 1 && plugs[0].plugged, "{plugs:?}");
        vm.hear_gone(&format!("{PREFIX}g"), true);
        assert!(vm.status(|_| true).plugs.is_empty());
    }

    #[test]
    fn what_a_monitor_makes_up_each_time_that_it_answers_is_not_kept() {
        let mut vm = vm();
        for time in 0..10 {
            let ids: Vec<_> = (0..PLUGS_MAX)
                .map(|n| format!("{PREFIX}{time}-{n}"))
                .collect();
            vm.hear_found(&ids);
            vm.revoke_found(&[]);
            vm.plug_out_revoked();
        }
        assert_eq!(vm.revoked.len(), PLUGS_MAX);
    }
}
