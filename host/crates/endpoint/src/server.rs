// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The loop: orders, doorbells, sockets, the heartbeat.
//!
//! In each round the events are noted first. Then each socket that has work gets one
//! turn, which is bounded. Those that run dry ask for a doorbell and are looked at
//! again; only if none has work the program sleeps. One doorbell tells the guest of
//! all that a round did. A program may spin: for some time it makes further rounds, in which
//! it looks at the sockets that have run dry, before these ask for a doorbell.

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use hallway_abi::region::ENDPOINTS_MAX;
use nix::fcntl::{fcntl, FcntlArg, FdFlag, OFlag};
use nix::sys::epoll::EpollFlags;
use nix::sys::resource::{getrlimit, setrlimit, Resource};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{getsockopt, sockopt, SockType};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use serde::de::DeserializeOwned;

use crate::confine;
use crate::control::{Control, Packet};
use crate::lines::Counts;
use crate::member::{Member, Peer, Slice};
use crate::message::Message;
use crate::orders::{Order, Report, CONTROL_FD};
use crate::poller::{Poller, CONTROL, DOORBELL, SIGNAL, TIMER};

/// Between two beats.
const BEAT: Duration = Duration::from_millis(500);
/// Until messages that found the mailbox full are tried again, in milliseconds: it
/// doubles up to this.
const RETRY_MAX: u16 = 100;
/// Orders taken in one round at most.
const ORDERS: usize = 16;

/// The guest as a member, and what the work for it needs. It is put together for each
/// turn.
pub struct Side<'a, P> {
    /// The guest as a member.
    pub peer: &'a mut Peer,
    /// What it may do.
    pub policy: &'a P,
    /// What it did.
    pub counts: &'a mut Counts,
    /// Watches the sockets.
    pub poller: &'a Poller,
}

/// What a program does for its guest.
pub trait Program {
    /// What the guest may do.
    type Policy: Default + DeserializeOwned;

    /// The first order has come, with these descriptors besides those of each program.
    fn start(&mut self, descriptors: Vec<OwnedFd>, poller: &Poller) -> Result<()>;
    /// Gives up the system calls that it does not need.
    fn confine(&self) -> Result<()>;
    /// The guest has rung this endpoint.
    fn take_doorbell(&mut self, endpoint: u32);
    /// The guest has sent this. It is hostile: any message is possible.
    fn take_message(&mut self, side: Side<'_, Self::Policy>, message: &Message);
    /// The kernel reports something of a socket. There may be no guest.
    fn take_event(
        &mut self,
        side: Option<Side<'_, Self::Policy>>,
        poller: &Poller,
        tag: u64,
        flags: EpollFlags,
    );
    /// Gives all that has work a turn. `is_spinning`: it is called again at once, so what has
    /// no work need not ask for a doorbell.
    fn work(&mut self, side: Side<'_, Self::Policy>, is_spinning: bool);
    /// Whether something has work.
    fn has_work(&self) -> bool;
    /// Milliseconds until there is work without an event; nothing: there is none.
    fn timeout(&self, policy: &Self::Policy) -> Option<u16>;
    /// How long it looks for more work, after it had some, before it sleeps.
    fn spin_time(&self, _: &Self::Policy) -> Duration {
        Duration::ZERO
    }
    /// Comes twice a second: what found no descriptor or memory may try again. There may be
    /// no guest.
    fn beat(&mut self, side: Option<Side<'_, Self::Policy>>, poller: &Poller);
    /// The policy is another one than `before`.
    fn change_policy(&mut self, side: Side<'_, Self::Policy>, before: &Self::Policy);
    /// The guest has departed, if it was there, or the program ends: all is reset.
    fn reset(&mut self, side: Option<Side<'_, Self::Policy>>);
    /// Adds what it has to a report.
    fn report(&self, report: &mut Report);
}

/// A program, and its place in the region.
pub struct Server<W: Program> {
    poller: Poller,
    control: Option<Control>,
    /// Kept open: the filter goes by its number, which no other socket may get.
    _hung_up: Option<Control>,
    timer: TimerFd,
    _signals: SignalFd,
    /// Kept open.
    doorbell: Option<OwnedFd>,
    member: Option<Member>,
    peer: Option<Peer>,
    program: W,
    policy: W::Policy,
    counts: Counts,
    retry: u16,
    is_confined: bool,
}

/// Has a descriptor never block.
fn unblock(fd: &OwnedFd) -> Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

impl<W: Program> Server<W> {
    /// Makes the program ready for orders. `is_confined`: once it has the region, it
    /// gives up all system calls that it does not need.
    pub fn new(program: W, control: OwnedFd, is_confined: bool) -> Result<Self> {
        let poller = Poller::new()?;
        let control = Control::new(control);
        poller.watch(control.socket(), CONTROL)?;
        let timer = TimerFd::new(
            ClockId::CLOCK_MONOTONIC,
            TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC,
        )?;
        let every = Expiration::Interval(TimeSpec::from_duration(BEAT));
        timer.set(every, TimerSetTimeFlags::empty())?;
        poller.watch(&timer, TIMER)?;
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGTERM);
        mask.thread_block()?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        poller.watch(&signals, SIGNAL)?;
        Ok(Self {
            poller,
            control: Some(control),
            _hung_up: None,
            timer,
            _signals: signals,
            doorbell: None,
            member: None,
            peer: None,
            program,
            policy: W::Policy::default(),
            counts: Counts::default(),
            retry: 1,
            is_confined,
        })
    }

    /// Serves until SIGTERM. Without its first order it serves nothing, and ends with
    /// hallwayd: no other process knows of it then.
    pub fn run(mut self) -> Result<()> {
        let mut spin_end = None;
        while self.control.is_some() || self.member.is_some() {
            let timeout = match spin_end {
                Some(_) => Some(0),
                None => self.timeout(),
            };
            let events = self.poller.wait(timeout)?;
            let mut is_busy = self.program.has_work();
            for (tag, flags) in events {
                is_busy |= tag != TIMER;
                match tag {
                    CONTROL => self.take_orders()?,
                    TIMER => self.beat(),
                    DOORBELL => self.look(false),
                    SIGNAL => {
                        self.reset();
                        return Ok(());
                    }
                    _ => {
                        let (program, side, poller) = self.split();
                        program.take_event(side, poller, tag, flags);
                    }
                }
            }
            let time = self.program.spin_time(&self.policy);
            let goes_on = || is_busy || spin_end.is_some_and(|end| Instant::now() < end);
            let is_spinning = !time.is_zero() && self.peer.is_some() && goes_on();
            if let (program, Some(side), _) = self.split() {
                program.work(side, is_spinning);
            }
            if !is_spinning {
                spin_end = None;
            } else if is_busy {
                // Work takes time, too: the spin begins after it.
                spin_end = Some(Instant::now() + time);
            }
        }
        Ok(())
    }

    fn timeout(&mut self) -> Option<u16> {
        if self.program.has_work() {
            return Some(0);
        }
        let turn = self.program.timeout(&self.policy);
        if self.peer.as_ref().is_some_and(Peer::is_waiting) {
            self.retry = (self.retry * 2).min(RETRY_MAX);
            return Some(turn.unwrap_or(RETRY_MAX).min(self.retry));
        }
        self.retry = 1;
        turn
    }

    fn split(&mut self) -> (&mut W, Option<Side<'_, W::Policy>>, &Poller) {
        let side = self.peer.as_mut().map(|peer| Side {
            peer,
            policy: &self.policy,
            counts: &mut self.counts,
            poller: &self.poller,
        });
        (&mut self.program, side, &self.poller)
    }

    /// Looks for doorbells and messages. `is_new`: the guest has just joined, so messages may
    /// be there without a doorbell.
    fn look(&mut self, is_new: bool) {
        let Some(peer) = &mut self.peer else {
            return;
        };
        let before = peer.count_corrupt();
        let program = &mut self.program;
        let mut messages = peer.look(ENDPOINTS_MAX as u32, |endpoint| {
            program.take_doorbell(endpoint);
        });
        if is_new {
            messages.extend(peer.receive());
        }
        for message in &messages {
            if let (program, Some(side), _) = self.split() {
                program.take_message(side, message);
            }
        }
        let after = self.peer.as_ref().map_or(before, Peer::count_corrupt);
        for _ in before..after {
            self.counts.corrupt("an index of a mailbox");
        }
    }

    fn reset(&mut self) {
        let (program, side, _) = self.split();
        program.reset(side);
    }

    fn beat(&mut self) {
        let _ = self.timer.wait();
        self.counts.beat();
        let report = self.report(0);
        if let Some(member) = &mut self.member {
            member.beat(report.sent, report.received, report.sockets);
        }
        let (program, side, poller) = self.split();
        program.beat(side, poller);
    }

    fn take_orders(&mut self) -> Result<()> {
        for _ in 0..ORDERS {
            let Some(control) = &mut self.control else {
                return Ok(());
            };
            match control.receive() {
                Ok(Packet::Nothing) => return Ok(()),
                Ok(Packet::End) => {
                    match &self.member {
                        Some(_) => tracing::warn!("hallwayd has ended: going on without it"),
                        None => tracing::warn!("hallwayd has ended before its first order"),
                    }
                    self.poller.unwatch(control.socket());
                    self._hung_up = self.control.take();
                }
                Ok(Packet::Order(order, descriptors)) => {
                    let is_start = matches!(order, Order::Start { .. });
                    match self.obey(order, descriptors) {
                        Err(error) if is_start => return Err(error.context("the first order")),
                        Err(error) => tracing::error!("an order of hallwayd: {error:#}"),
                        Ok(()) => {}
                    }
                }
                Err(error) => tracing::error!("the control socket: {error:#}"),
            }
        }
        Ok(())
    }

    fn obey(&mut self, order: Order<W::Policy>, descriptors: Vec<OwnedFd>) -> Result<()> {
        let mut descriptors = descriptors.into_iter();
        match order {
            Order::Start {
                size,
                slot,
                generation,
                slots,
                slice_offset,
                slice_size,
                policy,
            } => {
                ensure!(self.member.is_none(), "it has started already");
                let (Some(region), Some(doorbell)) = (descriptors.next(), descriptors.next())
                else {
                    bail!("two descriptors belong to it");
                };
                let own = Slice {
                    slot,
                    generation,
                    offset: slice_offset,
                    size: slice_size,
                };
                let member = Member::join(region, size, slots, own)?;
                // Each write is an edge: it is never read.
                self.poller.watch_edges(&doorbell, DOORBELL)?;
                self.doorbell = Some(doorbell);
                self.member = Some(member);
                self.policy = policy;
                self.program.start(descriptors.collect(), &self.poller)?;
                self.beat();
                if self.is_confined {
                    let confined = self.program.confine();
                    confined.context("giving up system calls")?;
                }
            }
            Order::Guest {
                slot,
                generation,
                slice_offset,
                slice_size,
            } => {
                let slice = Slice {
                    slot,
                    generation,
                    offset: slice_offset,
                    size: slice_size,
                };
                if self.peer.as_ref().is_some_and(|peer| peer.has(&slice)) {
                    return Ok(());
                }
                self.depart();
                let member = self.member.as_ref().context("it has not started")?;
                let doorbell = descriptors.next().context("a descriptor belongs to it")?;
                unblock(&doorbell)?;
                self.peer = Some(member.meet(slice, doorbell)?);
                // A guest can join and leave in a loop.
                if self.counts.may_log() {
                    tracing::info!("the guest has joined as member {slot}");
                }
                self.look(true);
            }
            Order::Departed => {
                self.depart();
                if self.counts.may_log() {
                    tracing::info!("the guest has departed");
                }
            }
            Order::Policy { policy } => {
                let before = std::mem::replace(&mut self.policy, policy);
                if let (program, Some(side), _) = self.split() {
                    program.change_policy(side, &before);
                }
            }
            Order::Report { number } => {
                let report = self.report(number);
                if let Some(control) = &self.control {
                    control.report(&report)?;
                }
            }
        }
        Ok(())
    }

    fn depart(&mut self) {
        self.reset();
        self.peer = None;
    }

    fn report(&self, number: u64) -> Report {
        let refused = &self.counts.refused;
        let mut report = Report {
            number,
            sent: self.counts.sent,
            received: self.counts.received,
            refused: refused
                .iter()
                .map(|(cause, count)| (cause.clone(), *count))
                .collect(),
            delayed: self.counts.delayed,
            corrupt: self.counts.corrupt,
            pid: std::process::id(),
            ..Report::default()
        };
        self.program.report(&mut report);
        report
    }
}

fn take_control() -> Result<OwnedFd> {
    // SAFETY: nothing closes the descriptor while it is borrowed.
    let borrowed = unsafe { BorrowedFd::borrow_raw(CONTROL_FD) };
    let kind = getsockopt(&borrowed, sockopt::SockType)
        .context("descriptor 3 is no socket: only hallwayd starts this program")?;
    ensure!(
        kind == SockType::SeqPacket,
        "descriptor 3 is a socket of another type"
    );
    fcntl(borrowed, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    // SAFETY: it is open, hallwayd gave it to this program, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(CONTROL_FD) })
}

fn serve(program: impl Program) -> Result<()> {
    confine::hide()?;
    let control = take_control()?;
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
    Server::new(program, control, true)?.run()
}

/// The whole life of a program of this name, which hallwayd starts.
pub fn run(name: &str, program: impl Program) -> ExitCode {
    hallway_log::start(tracing::Level::INFO);
    match serve(program) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            hallway_log::print_error(name, &error);
            ExitCode::FAILURE
        }
    }
}
