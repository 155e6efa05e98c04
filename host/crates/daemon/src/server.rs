// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The loop: one thread, one epoll, nothing that blocks.
//!
//! Each event changes the private picture and nothing else. Then
//! [`Server::commit`] carries the picture outward, always in this order:
//!
//! 1. The holder gets new descriptors, then the state.
//! 2. QEMUs that have just connected are greeted, and the holder gets that.
//! 3. Pages get the CIDs of peers, then regions their headers. Helpers are started, and learn of
//!    their guests.
//! 4. Pages get their candidates, their replies, and how many CPUs are to be online.
//! 5. Doorbells ring.
//! 6. Cgroups of VMs get their weights.
//! 7. Monitors are asked for the memory that VMs lack.
//!
//! At whatever instant the daemon dies, the next one has a state at least as new
//! as what any guest has seen, and carries the same picture outward again. Each
//! step may be repeated. A QEMU is greeted after the holder has it: one that was
//! greeted and is lost would never connect again, while one that is greeted twice
//! reports the second greeting in its log and goes by the first.
//!
//! A guest may ring another only once its own QEMU has read of that one's
//! doorbell. A join therefore waits until all QEMUs concerned have read what they
//! were sent, or a moment if they do not read. A QEMU that lags gets the doorbell
//! table completed, and its guest rung, when it has read.

mod commit;
mod start;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use hallway_abi::region as abi;
use hallway_control::{self as control, Answer, Query, Status};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use tracing::{error, info, warn};

use crate::clients::Clients;
use crate::config::{Config, HelperId, Role};
use crate::domains::Shown;
use crate::keeper::Keeper;
use crate::notify;
use crate::options::Options;
use crate::picture::Picture;
use crate::poller::{Poller, Source};
use crate::requests;
use crate::run;

/// Seconds that a guest may be given for each region: its monitor does nothing else in this time.
const RELEASE_MAX: u64 = 3600;

/// The answer to a query: what came of it, or the error's text.
fn answer<T>(result: Result<T, String>, good: impl FnOnce(T) -> Answer) -> Answer {
    result.map_or_else(|message| Answer::Error { message }, good)
}

/// The daemon.
pub struct Server {
    picture: Picture,
    poller: Poller,
    keeper: Keeper,
    clients: Clients,
    /// What it was started with.
    options: Options,
    signals: SignalFd,
    /// Connections that were taken over from the daemon before.
    recovered: usize,
    started: Instant,
    next_second: Instant,
    heartbeat: u32,
    stopping: Option<Stop>,
    /// The domains of Xen, which have a thread of their own.
    domains: Option<Shown>,
}

/// What follows the end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The process is to end.
    Over,
    /// Another daemon in its place, with the configuration as it is then.
    Again,
}

/// How to end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// By a signal: the holder keeps the connections.
    Handover,
    /// To read the configuration again: the holder keeps all.
    Reload,
    /// On request: nothing stays.
    Clean,
}

impl Server {
    /// Serves until a signal or a client ends it.
    pub fn run(mut self) -> Result<End> {
        self.every_second();
        self.commit();
        info!(socket = %self.keeper.socket.display(), pid = std::process::id(), "ready");
        notify::tell_ready();
        while self.stopping.is_none() {
            for source in self.poller.wait(self.timeout())? {
                self.handle(source);
            }
            if Instant::now() >= self.next_second {
                self.every_second();
            }
            self.answer_requests(true);
            let effects = self.picture.connections.digest(&self.poller);
            self.picture.apply(effects);
            self.picture.make_pairs();
            self.picture.make_helpers();
            self.picture.regions.guard();
            self.commit();
        }
        self.finish()
    }

    /// Milliseconds until the loop has something to do, whatever happens.
    fn timeout(&self) -> u16 {
        if self.picture.connections.are_busy() || self.picture.helpers.are_waiting() {
            return 2;
        }
        let left = self.next_second.saturating_duration_since(Instant::now());
        left.as_millis() as u16 + 1
    }

    fn handle(&mut self, source: Source) {
        let connections = &mut self.picture.connections;
        match source {
            Source::Listener => connections.accept(&self.poller),
            Source::Control => self.clients.accept(&self.poller),
            Source::Signal => {
                while let Ok(Some(signal)) = self.signals.read_signal() {
                    if signal.ssi_signo == Signal::SIGHUP as u32 {
                        let _ = self.reload();
                        continue;
                    }
                    info!(signal = signal.ssi_signo, "a signal ends it");
                    // Also if it was about to read its configuration again.
                    if self.stopping != Some(Stop::Clean) {
                        self.stopping = Some(Stop::Handover);
                    }
                }
            }
            Source::Holder => {
                self.keeper.lose_holder(&self.poller);
                self.picture.helpers.keep_again();
                self.replace_holder();
            }
            Source::Monitors => self.picture.hear_monitors(),
            Source::Helper(number) => {
                let Picture {
                    helpers, config, ..
                } = &mut self.picture;
                let holder = self.keeper.holder();
                let effects = helpers.hear_ended(number, config, holder, &self.poller);
                self.picture.apply(effects);
            }
            Source::Qemu(number) => {
                let effects = connections.end_if_closed(number, &self.poller);
                self.picture.apply(effects);
            }
            Source::Ask(number) => {
                connections.hear(number);
                requests::answer(&mut self.picture, number, false, &self.poller);
            }
            Source::Client(number) => {
                if let Some(query) = self.clients.serve(number, &self.poller) {
                    let answer = self.answer_query(query);
                    self.clients.answer(number, &answer, &self.poller);
                }
            }
        }
    }

    fn answer_requests(&mut self, only_waiting: bool) {
        requests::answer_all(&mut self.picture, only_waiting, &self.poller);
    }

    fn every_second(&mut self) {
        self.next_second = Instant::now() + Duration::from_secs(1);
        self.replace_holder();
        if let pages @ 1.. = hallway_shm::take_faults() {
            error!(
                pages,
                "memory that a VM emptied cannot be had again (vm.overcommit_memory): what shares \
                 it does not hear of hallwayd till hallwayd --reload"
            );
        }
        self.heartbeat = self.heartbeat.wrapping_add(1);
        self.picture.regions.every_second(self.heartbeat);
        self.picture.connections.every_second();
        self.picture.vms.every_second();
        self.picture.drain_leaving();
        self.picture.helpers.every_second(&self.picture.config);
        self.picture.withdraw_pairs();
        self.picture.withdraw_helpers();
        self.picture.forget_refused();
        self.picture.remove_orphans();
        self.picture.vms.look_at_joins(&self.picture.connections);
        self.picture.schedule_cpus();
        // Requests that had to wait are due; and a ring that was lost does no harm.
        self.answer_requests(false);
    }

    fn answer_query(&mut self, query: Query) -> Answer {
        let vms = &mut self.picture.vms;
        match query {
            Query::Status => Answer::Status(self.status()),
            Query::Drain { vm } => answer(self.picture.drain_outsourced(&vm), |connections| {
                Answer::Draining { connections }
            }),
            Query::Migrate {
                vm,
                uri,
                reset_outsourced,
            } => {
                let allowed = self
                    .picture
                    .check_outsourced(&vm, "migration", reset_outsourced);
                let begun = allowed.and_then(|()| self.picture.vms.migrate(&vm, uri));
                answer(begun, Answer::Migration)
            }
            Query::Release {
                vm,
                timeout,
                reset_outsourced,
            } => {
                let allowed = self
                    .picture
                    .check_outsourced(&vm, "a release", reset_outsourced);
                let limit = Duration::from_secs(timeout.min(RELEASE_MAX));
                let begun = allowed.and_then(|()| self.picture.vms.release(&vm, limit));
                answer(begun, Answer::Release)
            }
            Query::ReleaseStage { vm } => answer(vms.release_stage(&vm), Answer::Release),
            Query::Resume { vm } => match (vms.is_away(&vm), vms.resume(&vm)) {
                (true, Err(message)) => Answer::Away { message },
                (_, resumed) => answer(resumed, |()| Answer::Resuming),
            },
            Query::Reload => answer(self.reload(), |()| Answer::Reloading),
            Query::Migration { vm } => answer(vms.migration(&vm), Answer::Migration),
            Query::CancelMigration { vm } => answer(vms.cancel_migration(&vm), Answer::Migration),
            Query::Stop => {
                self.stopping = Some(Stop::Clean);
                Answer::Stopping
            }
        }
    }

    /// Has a new daemon take the place of this one, if it could start with the configuration
    /// as it is now. Nothing is lost by that: the holder keeps connections and memory.
    fn reload(&mut self) -> Result<(), String> {
        if self.options.config.is_none() {
            let why = "hallwayd has no configuration to read: start it with --config PATH";
            warn!("{why}");
            return Err(why.into());
        }
        if let Err(error) = Config::of(&self.options).and_then(|config| self.check(&config)) {
            let why = format!("the configuration stays as it was: {error:#}");
            error!("{why}");
            return Err(why);
        }
        if !self.keeper.has_holder() {
            let why = "the holder process is being replaced: try again";
            warn!("{why}");
            return Err(why.into());
        }
        info!("reads the configuration again");
        notify::tell_reloading();
        self.stopping.get_or_insert(Stop::Reload);
        Ok(())
    }

    /// Refuses a configuration with which the next daemon would not start.
    fn check(&self, config: &Config) -> Result<()> {
        let dir = &self.options.region_dir;
        self.picture.regions.check(config, dir)?;
        if dir.exists() && config.has_files(&self.options) {
            run::check_region_dir(dir)?;
        }
        Ok(())
    }

    fn status(&self) -> Status {
        let mut vms = self.picture.vms.status(&self.picture.connections);
        for (number, vm) in vms.iter_mut().enumerate() {
            let of = |role| HelperId { vm: number, role };
            vm.outsourcer = self.picture.helpers.status(of(Role::Outsource));
            vm.host_end = self.picture.helpers.status(of(Role::Tunnels));
            let roles = [Role::Outsource, Role::Tunnels].into_iter();
            let lacking = roles.filter_map(|role| self.picture.not_running(of(role)));
            vm.not_running = lacking.collect();
            vm.plugs.extend(self.picture.unmade(number));
            vm.cpus = self.picture.cpus.status(number);
        }
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            abi: format!("{}.{}", abi::MAJOR, abi::MINOR),
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs(),
            recovered_connections: self.recovered,
            socket: self.keeper.socket.clone(),
            regions: self.picture.regions.status(),
            vms,
            connections: self.picture.connections.status(),
            xen: self.domains.as_ref().map(|domains| Box::new(domains.get())),
        }
    }

    /// Has the status show these domains, too.
    pub fn show_domains(&mut self, domains: Shown) {
        self.domains = Some(domains);
    }

    fn finish(mut self) -> Result<End> {
        let connections = self.picture.connections.iter().count();
        let is_reload = self.stopping == Some(Stop::Reload);
        let is_handover = is_reload || self.stopping == Some(Stop::Handover) && connections > 0;
        if is_handover {
            if !is_reload {
                // Nothing would lower them.
                self.picture.cpus.restore_weights();
            }
            // Of a helper that was just started the holder may not know all.
            self.commit();
        } else {
            let effects = self.picture.helpers.end(&self.picture.config);
            self.picture.apply(effects);
            self.picture.cpus.end();
            self.commit();
        }
        let _ = std::fs::remove_file(control::socket(self.keeper.dir()));
        let picture = self.picture;
        picture.vms.end();
        if is_reload {
            return Ok(End::Again);
        }
        if is_handover {
            info!(
                vms = connections,
                "ends; the holder keeps the VMs for the next hallwayd"
            );
            return Ok(End::Over);
        }
        // No VM is left that could use them. What lay around meanwhile, others may spoil.
        let files = picture.regions.iter();
        let files = files.filter_map(|served| served.region.file());
        let files: Vec<_> = files.map(Path::to_path_buf).collect();
        self.keeper.clean(&files);
        info!("ends");
        Ok(End::Over)
    }
}
