// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The loop: orders, doorbells, sockets, the heartbeat.
//!
//! In each round the events are noted first. Then each socket that has work gets one
//! turn, which is bounded. Those that run dry ask for a doorbell and are looked at
//! again; only if none has work the program sleeps. One doorbell tells the guest of
//! all that a round did.

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use nix::fcntl::{fcntl, FcntlArg, OFlag};
use nix::sys::epoll::EpollFlags;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::confine;
use crate::control::{Control, Packet};
use crate::guest::{reset_all, Guest};
use crate::lines::Counts;
use crate::member::{Member, Peer, Slice};
use crate::orders::{Order, Policy, Report};
use crate::poller::{Poller, CONTROL, DOORBELL, SIGNAL, TIMER};
use crate::rate::Rate;
use crate::table::{Queue, Table};

/// Between two beats.
const BEAT: Duration = Duration::from_millis(500);
/// Until messages that found the mailbox full are tried again, in milliseconds: it
/// doubles up to this.
const RETRY_MAX: u16 = 100;
/// Orders taken in one round at most.
const ORDERS: usize = 16;

/// The program.
pub struct Server {
    poller: Poller,
    control: Option<Control>,
    timer: TimerFd,
    _signals: SignalFd,
    /// Kept open.
    doorbell: Option<OwnedFd>,
    member: Option<Member>,
    peer: Option<Peer>,
    table: Table,
    policy: Policy,
    rate: Rate,
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

impl Server {
    /// Makes the program ready for orders. `is_confined`: once it has the region, it
    /// gives up all system calls that it does not need.
    pub fn new(control: OwnedFd, is_confined: bool) -> Result<Self> {
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
            timer,
            _signals: signals,
            doorbell: None,
            member: None,
            peer: None,
            table: Table::default(),
            policy: Policy::default(),
            rate: Rate::default(),
            counts: Counts::default(),
            retry: 1,
            is_confined,
        })
    }

    /// Serves until SIGTERM. Without its first order it serves nothing, and ends with
    /// hallwayd: no other process knows of it then.
    pub fn run(mut self) -> Result<()> {
        while self.control.is_some() || self.member.is_some() {
            let timeout = self.timeout();
            for (tag, flags) in self.poller.wait(timeout)? {
                match tag {
                    CONTROL => self.take_orders()?,
                    TIMER => self.beat(),
                    DOORBELL => self.take_doorbell(),
                    SIGNAL => {
                        reset_all(&mut self.table);
                        return Ok(());
                    }
                    _ => self.take_event(tag, flags),
                }
            }
            if let Some(mut guest) = self.guest() {
                guest.work();
            }
        }
        Ok(())
    }

    fn timeout(&mut self) -> Option<u16> {
        if self.table.has(Queue::Ready) {
            return Some(0);
        }
        let turn = self.rate.timeout(&self.policy);
        if self.peer.as_ref().is_some_and(Peer::is_waiting) {
            self.retry = (self.retry * 2).min(RETRY_MAX);
            return Some(turn.unwrap_or(RETRY_MAX).min(self.retry));
        }
        self.retry = 1;
        turn
    }

    fn guest(&mut self) -> Option<Guest<'_>> {
        Some(Guest {
            peer: self.peer.as_mut()?,
            table: &mut self.table,
            policy: &self.policy,
            rate: &mut self.rate,
            counts: &mut self.counts,
            poller: &self.poller,
        })
    }

    fn take_event(&mut self, tag: u64, flags: EpollFlags) {
        if let Some(mut guest) = self.guest() {
            guest.take_event(tag, flags);
        }
    }

    fn take_doorbell(&mut self) {
        if let Some(mut guest) = self.guest() {
            guest.look(false);
        }
    }

    fn beat(&mut self) {
        let _ = self.timer.wait();
        self.counts.beat();
        if let Some(member) = &mut self.member {
            let streams = self.table.count_streams();
            member.beat(self.counts.sent, self.counts.received, streams);
        }
        if let Some(mut guest) = self.guest() {
            // Those that found no descriptor or memory on the host.
            guest.wake_listeners();
        }
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
                    self.control = None;
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

    fn obey(&mut self, order: Order, descriptors: Vec<OwnedFd>) -> Result<()> {
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
                self.beat();
                if self.is_confined {
                    confine::confine().context("giving up system calls")?;
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
                if let Some(mut guest) = self.guest() {
                    guest.look(true);
                }
            }
            Order::Departed => {
                self.depart();
                if self.counts.may_log() {
                    tracing::info!("the guest has departed");
                }
            }
            Order::Policy { policy } => {
                let (publish, listeners) = (&policy.publish, policy.listeners);
                let is_other = *publish != self.policy.publish || listeners > self.policy.listeners;
                self.policy = policy;
                if let Some(mut guest) = self.guest() {
                    guest.check_datagrams();
                    guest.check_listeners();
                    if is_other {
                        guest.ask_for_listeners();
                    }
                    guest.wake_listeners();
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
        reset_all(&mut self.table);
        self.rate.waiting.clear();
        self.peer = None;
    }

    fn report(&self, number: u64) -> Report {
        let refused = &self.counts.refused;
        Report {
            number,
            sockets: self.table.count_streams(),
            listeners: self.table.count_listeners() + self.table.published,
            datagrams: self.table.count_datagrams(),
            sent: self.counts.sent,
            received: self.counts.received,
            refused: refused
                .iter()
                .map(|(cause, count)| (cause.clone(), *count))
                .collect(),
            delayed: self.counts.delayed,
            corrupt: self.counts.corrupt,
            pid: std::process::id(),
        }
    }
}
