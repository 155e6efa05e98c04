// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The policy: see [`Scheduler`].

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// How long a guest may take to carry an order out: under load seconds pass for one CPU.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time until a guest that did not carry an order out gets another; twice as long each time.
const TRY_AGAIN: Duration = Duration::from_secs(10);
/// The longest of these times.
const TRY_AGAIN_MAX: Duration = Duration::from_secs(600);
/// A VM with an idle CPU more than this share of another one can do without it.
const LOOSE: f64 = 0.6;
/// Times that a guest does not carry an order out, until that is shown.
const REFUSES: u32 = 3;

/// How the policy decides; the same for all VMs.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// Share of its time that each CPU of a VM runs at least, if the VM is to get another.
    pub busy: f64,
    /// CPUs of the host that are idle at least, if a VM is to get one.
    pub idle: f64,
    /// Share of the time in which CPUs of a VM could run, and wait for one of the host: above
    /// it the host's CPUs are contended.
    pub contended: f64,
    /// How long all that must hold before a VM gets a CPU.
    pub grow: Duration,
    /// How long a VM must do without a CPU before it loses it.
    pub shrink: Duration,
    /// How long CPUs must be contended before a VM gives one back.
    pub give_back: Duration,
    /// Time between two changes of one VM, at least.
    pub pause: Duration,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            busy: 0.85,
            idle: 0.8,
            contended: 0.25,
            grow: Duration::from_secs(2),
            shrink: Duration::from_secs(30),
            give_back: Duration::from_secs(5),
            pause: Duration::from_secs(10),
        }
    }
}

/// How a VM gets another CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mechanism {
    /// Its guest brings one online that was parked.
    #[default]
    Park,
    /// It gets the weight of one more, where VMs wait for CPUs of the host.
    Weight,
}

/// How many CPUs a VM may be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How it gets them.
    pub mechanism: Mechanism,
    /// The least number.
    pub min: u32,
    /// The greatest number.
    pub max: u32,
}

/// Shares of the time since the last look.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    /// Share for which a CPU of a VM ran.
    pub run: f64,
    /// Share for which it could run, and waited for a CPU of the host.
    pub delay: f64,
}

/// What was measured of a VM since the last look.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Connections and tunnels on which it sends.
    pub senders: u32,
    /// Its CPUs, in any order, those that are offline too.
    pub cpus: Vec<Usage>,
}

impl Sample {
    /// The busiest CPUs: the guest decides which ones are online.
    pub fn busiest(&self, count: u32) -> Vec<Usage> {
        let mut all = self.cpus.clone();
        let time = |one: &Usage| one.run + one.delay;
        all.sort_by(|a, b| time(b).total_cmp(&time(a)));
        all.truncate(count as usize);
        all
    }
}

/// What a guest says of its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Nothing: its module does not run, or is older.
    Silent,
    /// It is at it.
    Working,
    /// It has done it.
    Done,
    /// It does not do it.
    Refused,
}

/// One look at a VM.
#[derive(Debug, Clone, PartialEq)]
pub struct Look {
    /// Nothing: it could not be measured.
    pub sample: Option<Sample>,
    /// What its guest says.
    pub answer: Answer,
}

/// What was measured of the host since the last look.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Host {
    /// CPUs that were idle.
    pub idle: f64,
}

/// Why a VM has as many CPUs as it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It begins with the least.
    Start,
    /// A daemon before this one, or on the host that it came from, gave them.
    Kept,
    /// It sends on that many connections and tunnels, and its CPUs are busy.
    Sends(u32),
    /// It sends on that many, which is fewer than it has CPUs.
    Fewer(u32),
    /// Its CPUs are idle.
    Idle,
    /// VMs wait for CPUs of the host.
    Contended,
    /// The order was not carried out.
    Refused,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => f.write_str("begins with the least"),
            Self::Kept => f.write_str("had them before hallwayd started, or came with them"),
            Self::Sends(1) => f.write_str("sends on 1 connection, CPUs busy"),
            Self::Sends(count) => write!(f, "sends on {count} connections, CPUs busy"),
            Self::Fewer(0) => f.write_str("sends nothing"),
            Self::Fewer(1) => f.write_str("sends on 1 connection"),
            Self::Fewer(count) => write!(f, "sends on {count} connections"),
            Self::Idle => f.write_str("CPUs idle"),
            Self::Contended => f.write_str("VMs wait for CPUs of the host"),
            Self::Refused => f.write_str("the order was not carried out"),
        }
    }
}

/// Another order for a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Number of the VM.
    pub vm: usize,
    /// CPUs that it had.
    pub from: u32,
    /// CPUs that it is to have.
    pub to: u32,
    /// The reason for the change.
    pub why: Why,
}

/// Since when something holds, if it does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Since(Option<Duration>);

impl Since {
    fn note(&mut self, holds: bool, now: Duration) {
        self.0 = if holds { self.0.or(Some(now)) } else { None };
    }

    fn lasts(&self, limit: Duration, now: Duration) -> bool {
        self.0
            .is_some_and(|since| now.saturating_sub(since) >= limit)
    }
}

/// Times that something went wrong, each of which is followed by a longer rest.
#[derive(Debug, Clone, Copy, Default)]
struct Rest {
    times: u32,
    until: Duration,
}

impl Rest {
    fn begin(&mut self, now: Duration) {
        let factor = 1 << self.times.min(6);
        self.times += 1;
        self.until = now + (TRY_AGAIN * factor).min(TRY_AGAIN_MAX);
    }

    fn is_over(&self, now: Duration) -> bool {
        now >= self.until
    }
}

/// An order that the guest has not carried out yet.
#[derive(Debug, Clone, Copy)]
struct Pending {
    from: u32,
    since: Duration,
}

/// A VM, as the policy knows it.
#[derive(Debug)]
pub struct Vm {
    limits: Limits,
    given: u32,
    why: Why,
    changed: Duration,
    pending: Option<Pending>,
    /// Times of the CPUs above the least, the youngest last.
    grants: Vec<Duration>,
    /// Its guest did not do it.
    refusals: Rest,
    /// It gave a CPU back that others needed.
    returns: Rest,
    wants: Since,
    fewer: Since,
    loose: Since,
    delayed: Since,
    senders: u32,
    /// Number of connections and tunnels on which it sent at the last look.
    seen: u32,
}

impl Vm {
    fn new(limits: Limits, ordered: u32, now: Duration) -> Self {
        let is_kept = (limits.min..=limits.max).contains(&ordered);
        let given = if is_kept { ordered } else { limits.min };
        let why = if is_kept { Why::Kept } else { Why::Start };
        Self {
            limits,
            given,
            why,
            changed: now,
            pending: None,
            grants: vec![now; (given - limits.min) as usize],
            refusals: Rest::default(),
            returns: Rest::default(),
            wants: Since::default(),
            fewer: Since::default(),
            loose: Since::default(),
            delayed: Since::default(),
            senders: 0,
            seen: 0,
        }
    }

    /// CPUs that its guest is to have online.
    pub fn given(&self) -> u32 {
        self.given
    }

    /// The reason for this number.
    pub fn why(&self) -> Why {
        self.why
    }

    /// Time of the last change.
    pub fn changed(&self) -> Duration {
        self.changed
    }

    /// Connections and tunnels on which it sends.
    pub fn senders(&self) -> u32 {
        self.senders
    }

    /// Whether its guest has yet to carry the order out.
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Whether its guest does again and again not carry an order out.
    pub fn refuses(&self) -> bool {
        self.refusals.times >= REFUSES
    }

    fn set(&mut self, to: u32, why: Why, now: Duration) {
        self.given = to;
        self.why = why;
        self.changed = now;
        self.grants.truncate((to - self.limits.min) as usize);
        self.grants.resize((to - self.limits.min) as usize, now);
        for since in [&mut self.wants, &mut self.fewer, &mut self.loose] {
            *since = Since::default();
        }
    }

    fn change(&mut self, vm: usize, to: u32, why: Why, now: Duration) -> Change {
        let from = self.given;
        self.pending = Some(Pending { from, since: now });
        self.set(to, why, now);
        Change { vm, from, to, why }
    }

    /// Takes in the guest's answer. Returns the change if the order is taken back.
    fn hear(&mut self, vm: usize, answer: Answer, now: Duration) -> Option<Change> {
        let pending = self.pending?;
        let is_late = now.saturating_sub(pending.since) >= PATIENCE;
        match answer {
            Answer::Done => {
                self.pending = None;
                self.refusals = Rest::default();
                None
            }
            Answer::Working | Answer::Silent if !is_late => None,
            Answer::Refused | Answer::Working | Answer::Silent => {
                let (from, to, why) = (self.given, pending.from, Why::Refused);
                self.pending = None;
                self.refusals.begin(now);
                self.set(to, why, now);
                Some(Change { vm, from, to, why })
            }
        }
    }

    /// Takes in what was measured.
    fn measure(&mut self, sample: Option<&Sample>, rules: &Rules, now: Duration) {
        let Some(sample) = sample else {
            for since in [&mut self.wants, &mut self.fewer, &mut self.loose] {
                *since = Since::default();
            }
            self.delayed = Since::default();
            return;
        };
        // A VM that a busy host stopped for a moment still sends.
        self.senders = sample
            .senders
            .max(std::mem::replace(&mut self.seen, sample.senders));
        if now >= self.returns.until + TRY_AGAIN_MAX {
            self.returns = Rest::default();
        }
        let present = u32::try_from(sample.cpus.len()).unwrap_or(u32::MAX);
        let most = self.limits.max.min(present).max(self.limits.min);
        let wanted = self.senders.clamp(self.limits.min, most);
        let cpus = sample.busiest(self.given);
        let parks = self.parks();
        // What weight is for is the time for which they wait.
        let need = |one: &Usage| one.run + if parks { 0.0 } else { one.delay };
        let busy = cpus.iter().all(|one| need(one) >= rules.busy);
        let run: f64 = cpus.iter().map(|one| one.run).sum();
        let delay: f64 = cpus.iter().map(|one| one.delay).sum();
        let delayed = delay > 0.0 && delay > rules.contended * (run + delay);
        let could_do_without =
            self.given > self.limits.min && run + delay < LOOSE * f64::from(self.given - 1);
        self.wants
            .note(wanted > self.given && busy && !(parks && delayed), now);
        self.fewer.note(wanted < self.given, now);
        self.loose.note(could_do_without, now);
        self.delayed.note(delayed, now);
    }

    fn parks(&self) -> bool {
        self.limits.mechanism == Mechanism::Park
    }

    fn may_change(&self, rules: &Rules, now: Duration) -> bool {
        self.pending.is_none()
            && self.refusals.is_over(now)
            && now.saturating_sub(self.changed) >= rules.pause
    }

    fn may_shrink(&self, rules: &Rules, now: Duration) -> bool {
        self.given > self.limits.min && self.may_change(rules, now)
    }

    /// Why it is to lose a CPU, if it is.
    fn is_to_shrink(&self, rules: &Rules, now: Duration) -> Option<Why> {
        if !self.may_shrink(rules, now) {
            return None;
        }
        if self.fewer.lasts(rules.shrink, now) {
            return Some(Why::Fewer(self.senders));
        }
        self.loose.lasts(rules.shrink, now).then_some(Why::Idle)
    }

    fn is_to_grow(&self, rules: &Rules, now: Duration) -> bool {
        self.given < self.limits.max
            && self.may_change(rules, now)
            && self.returns.is_over(now)
            && self.wants.lasts(rules.grow, now)
    }
}

/// Decides which VM gets a CPU, and which one gives one back.
///
/// A VM wants as many CPUs as it has connections and tunnels on which it sends, within its
/// limits. It gets another one if all that it has are busy, and a CPU of the host is idle,
/// for a while. It loses one if it sends on fewer, if its CPUs are idle, or if VMs wait for
/// CPUs of the host; what was given last goes first. At most one VM gets or loses a CPU in a
/// step. A VM waits until its guest has carried out the order before; an order that is not
/// carried out is taken back.
///
/// Weight is given where CPUs are contended, and takes none of the host's that are idle. So
/// neither of the two counts for it.
#[derive(Debug)]
pub struct Scheduler {
    rules: Rules,
    vms: BTreeMap<usize, Vm>,
    idle: Since,
}

impl Scheduler {
    /// One without VMs.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            vms: BTreeMap::new(),
            idle: Since::default(),
        }
    }

    /// Adds a VM, whose guest was to have `ordered` CPUs online before, or 0. It keeps
    /// them where its limits allow that.
    pub fn enter(&mut self, vm: usize, limits: Limits, ordered: u32, now: Duration) {
        self.vms.insert(vm, Vm::new(limits, ordered, now));
    }

    /// Forgets a VM.
    pub fn forget(&mut self, vm: usize) {
        self.vms.remove(&vm);
    }

    /// A VM.
    pub fn get(&self, vm: usize) -> Option<&Vm> {
        self.vms.get(&vm)
    }

    /// Takes one step, with a look at each VM: what was measured since the last step. Returns
    /// what changes.
    pub fn step(
        &mut self,
        now: Duration,
        host: Option<Host>,
        looks: &BTreeMap<usize, Look>,
    ) -> Vec<Change> {
        let rules = &self.rules;
        let enough = host.is_some_and(|host| host.idle >= rules.idle);
        self.idle.note(enough, now);
        let mut changes = Vec::new();
        for (number, vm) in &mut self.vms {
            let look = looks.get(number);
            let answer = look.map_or(Answer::Silent, |look| look.answer);
            changes.extend(vm.hear(*number, answer, now));
            // What an order that is not carried out comes to cannot be measured.
            let sample = look.and_then(|look| look.sample.as_ref());
            let sample = sample.filter(|_| answer == Answer::Done);
            vm.measure(sample, rules, now);
        }
        changes.extend(self.decide(now));
        changes
    }

    fn decide(&mut self, now: Duration) -> Option<Change> {
        let rules = &self.rules;
        let mut all = self.vms.values();
        if all.any(|vm| vm.delayed.lasts(rules.give_back, now)) {
            let given = self.vms.iter_mut();
            let given = given.filter(|(_, vm)| vm.parks() && vm.may_shrink(rules, now));
            if let Some((number, vm)) = given.max_by_key(|(_, vm)| vm.grants.last().copied()) {
                vm.returns.begin(now);
                let change = vm.change(*number, vm.given - 1, Why::Contended, now);
                // What that comes to is to be measured first.
                for one in self.vms.values_mut() {
                    one.delayed = Since::default();
                }
                return Some(change);
            }
        }
        let mut all = self.vms.iter_mut();
        let shrinks = all.find_map(|(number, vm)| {
            let why = vm.is_to_shrink(rules, now)?;
            Some(vm.change(*number, vm.given - 1, why, now))
        });
        if shrinks.is_some() {
            return shrinks;
        }
        let is_idle = self.idle.lasts(rules.grow, now);
        let wants = self.vms.iter_mut();
        let wants = wants.filter(|(_, vm)| (is_idle || !vm.parks()) && vm.is_to_grow(rules, now));
        let (number, vm) = wants.min_by_key(|(_, vm)| vm.wants.0)?;
        // Another one gets a CPU if one is still idle then.
        self.idle = Since::default();
        Some(vm.change(*number, vm.given + 1, Why::Sends(vm.senders), now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60;

    /// Guests that carry orders out at once, second by second.
    struct Played {
        scheduler: Scheduler,
        now: u64,
        /// Of each VM: connections on which it sends, and shares of each of its CPUs.
        vms: BTreeMap<usize, (u32, Vec<Usage>)>,
        idle: f64,
        answer: Answer,
        /// Of VMs that enter.
        mechanism: Mechanism,
        changes: Vec<(u64, Change)>,
    }

    fn usage(run: f64, delay: f64) -> Usage {
        Usage { run, delay }
    }

    impl Played {
        /// VMs with four CPUs each, of which one is online.
        fn new(count: usize) -> Self {
            let mut played = Self {
                scheduler: Scheduler::new(Rules::default()),
                now: 1000,
                vms: BTreeMap::new(),
                idle: 2.0,
                answer: Answer::Done,
                mechanism: Mechanism::Park,
                changes: Vec::new(),
            };
            for vm in 0..count {
                played.enter(vm, 0);
                played.load(vm, 0, 0.0, 0.0);
            }
            played
        }

        fn enter(&mut self, vm: usize, ordered: u32) {
            let limits = Limits {
                mechanism: self.mechanism,
                min: 1,
                max: 4,
            };
            let now = Duration::from_secs(self.now);
            self.scheduler.enter(vm, limits, ordered, now);
        }

        /// Has each CPU of a VM run and wait for these shares from now on.
        fn load(&mut self, vm: usize, senders: u32, run: f64, delay: f64) {
            self.vms.insert(vm, (senders, vec![usage(run, delay); 4]));
        }

        fn pass(&mut self, seconds: u64) {
            for _ in 0..seconds {
                self.now += 1;
                let looks = self.vms.iter().map(|(vm, (senders, cpus))| {
                    let online = self.scheduler.get(*vm).unwrap().given() as usize;
                    let cpus = cpus.iter().enumerate();
                    let cpus = cpus.map(|(n, one)| if n < online { *one } else { usage(0.0, 0.0) });
                    let sample = Sample {
                        senders: *senders,
                        cpus: cpus.collect(),
                    };
                    let pending = self.scheduler.get(*vm).unwrap().is_pending();
                    let answer = if pending { self.answer } else { Answer::Done };
                    let sample = Some(sample);
                    (*vm, Look { sample, answer })
                });
                let looks = looks.collect();
                let now = Duration::from_secs(self.now);
                let host = Some(Host { idle: self.idle });
                let changes = self.scheduler.step(now, host, &looks);
                self.changes
                    .extend(changes.into_iter().map(|one| (self.now, one)));
            }
        }

        fn given(&self, vm: usize) -> u32 {
            self.scheduler.get(vm).unwrap().given()
        }

        fn why(&self, vm: usize) -> Why {
            self.scheduler.get(vm).unwrap().why()
        }
    }

    #[test]
    fn a_vm_gets_as_many_cpus_as_it_has_connections_on_which_it_sends() {
        let mut played = Played::new(1);
        played.pass(MINUTE);
        played.load(0, 3, 0.95, 0.0);
        played.pass(2);
        assert_eq!(played.given(0), 1);
        played.pass(1);
        assert_eq!((played.given(0), played.why(0)), (2, Why::Sends(3)));
        // The next one after a pause.
        played.pass(9);
        assert_eq!(played.given(0), 2);
        played.pass(MINUTE);
        assert_eq!(played.given(0), 3);
    }

    #[test]
    fn no_vm_gets_more_than_its_limit_or_its_qemu_has() {
        let mut played = Played::new(2);
        played.load(0, 100, 1.0, 0.0);
        played.vms.insert(1, (100, vec![usage(1.0, 0.0); 2]));
        played.pass(10 * MINUTE);
        assert_eq!((played.given(0), played.given(1)), (4, 2));
    }

    #[test]
    fn a_receiver_gets_none() {
        let mut played = Played::new(1);
        played.load(0, 0, 1.0, 0.0);
        played.pass(MINUTE);
        played.load(0, 1, 1.0, 0.0);
        played.pass(MINUTE);
        assert_eq!(played.changes, []);
    }

    #[test]
    fn no_vm_gets_one_without_need_or_from_a_busy_host() {
        let mut played = Played::new(1);
        played.load(0, 4, 0.8, 0.0);
        played.pass(MINUTE);
        played.load(0, 4, 1.0, 0.0);
        played.idle = 0.7;
        played.pass(MINUTE);
        // An idle CPU that was there for a moment.
        for _ in 0..MINUTE {
            played.idle = 2.0;
            played.pass(1);
            played.idle = 0.0;
            played.pass(1);
        }
        assert_eq!(played.changes, []);
        // What could not be measured is not given.
        let vm = played
            .scheduler
            .step(Duration::from_secs(9000), None, &BTreeMap::new());
        assert_eq!(vm, []);
    }

    #[test]
    fn one_vm_at_a_time_gets_an_idle_cpu() {
        let mut played = Played::new(3);
        played.pass(MINUTE);
        for vm in 0..3 {
            played.load(vm, 2, 1.0, 0.0);
        }
        played.pass(3);
        assert_eq!(played.changes.len(), 1);
        // It is busy since: nothing is idle for the others.
        played.idle = 0.1;
        played.pass(MINUTE);
        assert_eq!(played.changes.len(), 1);
        played.idle = 1.0;
        played.pass(MINUTE);
        assert_eq!([0, 1, 2].map(|vm| played.given(vm)), [2, 2, 2]);
    }

    #[test]
    fn an_idle_vm_loses_what_it_got_after_a_while_one_by_one() {
        let mut played = Played::new(1);
        played.load(0, 4, 1.0, 0.0);
        played.pass(2 * MINUTE);
        assert_eq!(played.given(0), 4);
        played.load(0, 0, 0.0, 0.0);
        played.pass(29);
        assert_eq!(played.given(0), 4);
        played.pass(3);
        assert_eq!((played.given(0), played.why(0)), (3, Why::Idle));
        played.pass(10 * MINUTE);
        assert_eq!(played.given(0), 1);
    }

    #[test]
    fn a_busy_vm_that_sends_on_fewer_connections_loses_one_too() {
        let mut played = Played::new(1);
        played.load(0, 2, 1.0, 0.0);
        played.pass(MINUTE);
        played.load(0, 1, 1.0, 0.0);
        played.pass(MINUTE);
        assert_eq!((played.given(0), played.why(0)), (1, Why::Fewer(1)));
    }

    #[test]
    fn cpus_that_run_little_go_even_if_the_vm_sends() {
        let mut played = Played::new(1);
        played.load(0, 2, 1.0, 0.0);
        played.pass(MINUTE);
        played.load(0, 2, 0.4, 0.0);
        played.pass(MINUTE);
        assert_eq!(played.given(0), 2);
        played.load(0, 2, 0.2, 0.0);
        played.pass(MINUTE);
        assert_eq!((played.given(0), played.why(0)), (1, Why::Idle));
    }

    #[test]
    fn the_youngest_cpu_goes_first_where_vms_wait_for_the_host() {
        let mut played = Played::new(3);
        played.load(0, 2, 1.0, 0.0);
        played.pass(MINUTE);
        played.load(1, 2, 1.0, 0.0);
        played.pass(MINUTE);
        // One that has no more than it must have waits.
        played.load(2, 1, 0.6, 0.4);
        played.pass(7);
        assert_eq!([0, 1].map(|vm| played.given(vm)), [2, 1]);
        assert_eq!(played.why(1), Why::Contended);
        played.pass(7);
        assert_eq!([0, 1].map(|vm| played.given(vm)), [1, 1]);
        played.pass(MINUTE);
        assert_eq!(played.given(2), 1);
    }

    #[test]
    fn a_host_that_is_contended_by_what_it_gives_gives_less_and_less_often() {
        let mut played = Played::new(1);
        for _ in 0..60 * MINUTE {
            let delay = if played.given(0) > 1 { 0.5 } else { 0.0 };
            played.load(0, 2, 0.9 - delay, delay);
            played.pass(1);
        }
        // 10, 20, 40, ... 600 s.
        let changes = played.changes.len();
        assert!((10..30).contains(&changes), "{changes}");
    }

    #[test]
    fn weight_is_given_where_vms_wait_for_the_host() {
        let mut played = Played::new(1);
        played.mechanism = Mechanism::Weight;
        played.enter(1, 0);
        played.idle = 0.0;
        for vm in [0, 1] {
            played.load(vm, 2, 0.4, 0.5);
        }
        played.pass(MINUTE / 2);
        assert_eq!([0, 1].map(|vm| played.given(vm)), [1, 2]);
        assert_eq!(played.why(1), Why::Sends(2));
        // It is for that: it stays, however long they wait, and goes without need.
        played.pass(MINUTE);
        assert_eq!([0, 1].map(|vm| played.given(vm)), [1, 2]);
        played.load(1, 0, 0.0, 0.0);
        played.pass(MINUTE);
        assert_eq!((played.given(1), played.why(1)), (1, Why::Idle));
    }

    #[test]
    fn a_guest_that_refuses_is_asked_less_and_less_often() {
        let mut played = Played::new(1);
        played.pass(MINUTE);
        played.load(0, 2, 1.0, 0.0);
        played.answer = Answer::Refused;
        played.pass(4);
        assert_eq!((played.given(0), played.why(0)), (1, Why::Refused));
        assert!(!played.scheduler.get(0).unwrap().refuses());
        played.pass(60 * MINUTE);
        assert!(played.scheduler.get(0).unwrap().refuses());
        let tries = played.changes.len() / 2;
        assert!((6..15).contains(&tries), "{tries}");
        // Once it does it, that is forgotten.
        played.answer = Answer::Done;
        played.pass(11 * MINUTE);
        assert_eq!(played.given(0), 2);
        assert!(!played.scheduler.get(0).unwrap().refuses());
    }

    #[test]
    fn an_order_that_nothing_comes_of_is_taken_back() {
        let mut played = Played::new(1);
        played.load(0, 2, 1.0, 0.0);
        played.answer = Answer::Working;
        played.pass(29);
        assert_eq!(played.given(0), 2);
        played.answer = Answer::Silent;
        played.pass(20);
        assert_eq!((played.given(0), played.why(0)), (1, Why::Refused));
    }

    #[test]
    fn a_guest_that_says_nothing_is_left_alone() {
        let mut played = Played::new(1);
        played.load(0, 4, 1.0, 0.0);
        let cpus = vec![usage(1.0, 0.0); 4];
        let sample = Some(Sample { senders: 4, cpus });
        let answer = Answer::Silent;
        let looks = BTreeMap::from([(0, Look { sample, answer })]);
        for second in 0..MINUTE {
            let now = Duration::from_secs(2000 + second);
            let host = Some(Host { idle: 4.0 });
            assert_eq!(played.scheduler.step(now, host, &looks), []);
        }
    }

    #[test]
    fn what_was_ordered_before_is_kept_within_the_limits() {
        let mut played = Played::new(0);
        for (ordered, given, why) in [
            (0, 1, Why::Start),
            (3, 3, Why::Kept),
            (4, 4, Why::Kept),
            (5, 1, Why::Start),
            (u32::MAX, 1, Why::Start),
        ] {
            played.enter(0, ordered);
            assert_eq!((played.given(0), played.why(0)), (given, why));
        }
        played.scheduler.forget(0);
        assert!(played.scheduler.get(0).is_none());
    }

    #[test]
    fn a_load_that_comes_and_goes_does_not_take_cpus_along() {
        let mut played = Played::new(1);
        for round in 0..60 * 6 {
            let (senders, run) = if round % 2 == 0 { (2, 1.0) } else { (0, 0.0) };
            played.load(0, senders, run, 0.0);
            played.pass(10);
        }
        assert_eq!(played.changes.len(), 1);
    }

    /// Pseudo-random numbers (xorshift).
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % limit
        }
    }

    #[test]
    fn whatever_happens_the_limits_hold_and_changes_are_single_and_apart() {
        let mut numbers = Numbers(4711);
        let mut played = Played::new(3);
        for _ in 0..5000 {
            let vm = numbers.below(3) as usize;
            let run = numbers.below(101) as f64 / 100.0;
            let delay = numbers.below(60) as f64 / 100.0 * (1.0 - run);
            played.load(vm, numbers.below(6) as u32, run, delay);
            played.idle = numbers.below(30) as f64 / 10.0;
            let answers = [
                Answer::Done,
                Answer::Done,
                Answer::Working,
                Answer::Refused,
                Answer::Silent,
            ];
            played.answer = answers[numbers.below(5) as usize];
            played.pass(1 + numbers.below(20));
            for vm in 0..3 {
                assert!((1..=4).contains(&played.given(vm)));
            }
        }
        assert!(played.changes.len() > 100, "{}", played.changes.len());
        let decided = played
            .changes
            .iter()
            .filter(|(_, one)| one.why != Why::Refused);
        let mut last: BTreeMap<usize, u64> = BTreeMap::new();
        let mut second = 0;
        for (at, change) in decided {
            assert_eq!(change.from.abs_diff(change.to), 1);
            assert_ne!(*at, second, "two at once");
            second = *at;
            let before = last.insert(change.vm, *at).unwrap_or_default();
            assert!(at - before >= Rules::default().pause.as_secs());
        }
    }
}
