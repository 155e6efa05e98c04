// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program: what each order, doorbell and event means for what it executes.

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::Result;
use hallway_endpoint::message::Message;
use hallway_endpoint::orders::Report;
use hallway_endpoint::poller::Poller;
use hallway_endpoint::server::{Program, Side};
use hallway_endpoint::table::Queue;
use nix::sys::epoll::EpollFlags;

use crate::confine;
use crate::guest::{reset_all, Guest};
use crate::orders::Policy;
use crate::rate::Rate;
use crate::table::Table;

/// Executes sockets of the host for a guest.
#[derive(Default)]
pub struct Outsourcer {
    table: Table,
    rate: Rate,
}

impl Outsourcer {
    fn guest<'a>(&'a mut self, side: Side<'a, Policy>) -> Guest<'a> {
        Guest {
            peer: side.peer,
            table: &mut self.table,
            policy: side.policy,
            rate: &mut self.rate,
            counts: side.counts,
            poller: side.poller,
        }
    }
}

impl Program for Outsourcer {
    type Policy = Policy;

    fn start(&mut self, _: Vec<OwnedFd>, _: &Poller) -> Result<()> {
        Ok(())
    }

    fn confine(&self) -> Result<()> {
        confine::confine()
    }

    fn take_doorbell(&mut self, endpoint: u32) {
        self.table.push(Queue::Ready, endpoint);
    }

    fn take_message(&mut self, side: Side<'_, Policy>, message: &Message) {
        self.guest(side).take_message(message);
    }

    fn take_event(
        &mut self,
        side: Option<Side<'_, Policy>>,
        _: &Poller,
        tag: u64,
        flags: EpollFlags,
    ) {
        match (side, self.table.find(tag)) {
            (Some(side), _) => self.guest(side).take_event(tag, flags),
            (None, Some(own)) => self.table.close(own),
            (None, None) => {}
        }
    }

    fn work(&mut self, side: Side<'_, Policy>, is_spinning: bool) {
        self.guest(side).work(is_spinning);
    }

    fn spin_time(&self, policy: &Policy) -> Duration {
        Duration::from_micros(policy.spin_us.into())
    }

    fn has_work(&self) -> bool {
        self.table.has(Queue::Ready)
    }

    fn timeout(&self, policy: &Policy) -> Option<u16> {
        self.rate.timeout(policy)
    }

    fn beat(&mut self, side: Option<Side<'_, Policy>>, _: &Poller) {
        for own in self.table.closing() {
            self.table.close(own);
        }
        if let Some(side) = side {
            let mut guest = self.guest(side);
            guest.make_place();
            guest.wake_listeners();
        }
    }

    fn change_policy(&mut self, side: Side<'_, Policy>, before: &Policy) {
        let (now, old) = (&side.policy, &before.publish);
        let is_other =
            now.publish != *old || now.listeners > before.listeners || now.sockets > before.sockets;
        let mut guest = self.guest(side);
        guest.check_datagrams(before);
        guest.check_listeners();
        if is_other {
            guest.ask_for_listeners();
        }
        guest.wake_listeners();
    }

    fn reset(&mut self, _: Option<Side<'_, Policy>>) {
        reset_all(&mut self.table);
        self.rate.forget_all();
    }

    fn report(&self, report: &mut Report) {
        report.closing = self.table.count_closing();
        report.sockets = self.table.count_streams() - report.closing;
        report.listeners = self.table.count_listeners() + self.table.published;
        report.datagrams = self.table.count_datagrams();
    }
}
