// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program: what each order, doorbell and event means for its connections.

use std::os::fd::OwnedFd;

use anyhow::{ensure, Result};
use hallway_endpoint::message::Message;
use hallway_endpoint::orders::Report;
use hallway_endpoint::poller::{Poller, PROGRAM};
use hallway_endpoint::server::{Program, Side};
use hallway_endpoint::table::{Queue, Table};
use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;

use crate::client::PORT_FIRST;
use crate::confine;
use crate::guest::Guest;
use crate::pipe::Pipe;
use crate::unix;
use crate::Policy;

/// Programs of the host that one turn takes up at most.
const CLIENTS: usize = 32;

/// The host as an end of tunnels.
pub struct Host {
    table: Table<Pipe>,
    /// For bytes, and for messages.
    listeners: Vec<OwnedFd>,
    /// There was no descriptor or memory to accept with: until the next beat no listener is
    /// watched.
    is_short: bool,
    next_port: u32,
}

impl Default for Host {
    fn default() -> Self {
        Self {
            table: Table::default(),
            listeners: Vec::new(),
            is_short: false,
            next_port: PORT_FIRST,
        }
    }
}

fn guest<'a>(
    table: &'a mut Table<Pipe>,
    next_port: &'a mut u32,
    side: Side<'a, Policy>,
) -> Guest<'a> {
    Guest {
        peer: side.peer,
        table,
        next_port,
        policy: side.policy,
        counts: side.counts,
        poller: side.poller,
    }
}

impl Host {
    fn guest<'a>(&'a mut self, side: Side<'a, Policy>) -> Guest<'a> {
        guest(&mut self.table, &mut self.next_port, side)
    }

    /// Takes up programs that have connected. Without a guest they are hung up on. False:
    /// there was no descriptor or memory for one.
    fn accept(&mut self, number: usize, side: Option<Side<'_, Policy>>) -> bool {
        let Some(listener) = self.listeners.get(number) else {
            return true;
        };
        let mut guest = side.map(|side| guest(&mut self.table, &mut self.next_port, side));
        for _ in 0..CLIENTS {
            match unix::accept(listener) {
                Ok(socket) => {
                    if let Some(guest) = &mut guest {
                        guest.take_client(socket, number != 0);
                    }
                }
                Err(Errno::EINTR | Errno::ECONNABORTED) => {}
                Err(Errno::EAGAIN) => return true,
                Err(errno) => {
                    if let Some(guest) = &mut guest {
                        guest.counts.refuse(errno.desc().into(), "connection");
                    }
                    return false;
                }
            }
        }
        true
    }

    fn unwatch_listeners(&self, poller: &Poller) {
        self.listeners.iter().for_each(|one| poller.unwatch(one));
    }

    fn watch_listeners(&self, poller: &Poller) -> Result<()> {
        for (number, listener) in self.listeners.iter().enumerate() {
            poller.watch(listener, PROGRAM + number as u64)?;
        }
        Ok(())
    }
}

impl Program for Host {
    type Policy = Policy;

    fn start(&mut self, descriptors: Vec<OwnedFd>, poller: &Poller) -> Result<()> {
        ensure!(descriptors.len() == 2, "two listeners belong to it");
        self.listeners = descriptors;
        self.watch_listeners(poller)
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
        poller: &Poller,
        tag: u64,
        flags: EpollFlags,
    ) {
        let listener = tag.wrapping_sub(PROGRAM);
        if listener < self.listeners.len() as u64 {
            if !self.accept(listener as usize, side) {
                // Those that wait to be accepted stay an event, and the loop would not sleep.
                self.unwatch_listeners(poller);
                self.is_short = true;
            }
        } else if let Some(side) = side {
            self.guest(side).take_event(tag, flags);
        }
    }

    fn work(&mut self, side: Side<'_, Policy>, _: bool) {
        self.guest(side).work();
    }

    fn has_work(&self) -> bool {
        self.table.has(Queue::Ready)
    }

    fn timeout(&self, _: &Policy) -> Option<u16> {
        None
    }

    fn beat(&mut self, side: Option<Side<'_, Policy>>, poller: &Poller) {
        if self.is_short {
            self.is_short = self.watch_listeners(poller).is_err();
            if self.is_short {
                // One may be watched, the other not.
                self.unwatch_listeners(poller);
            }
        }
        if let Some(side) = side {
            self.guest(side).hang_up_late();
        }
    }

    fn change_policy(&mut self, _: Side<'_, Policy>, _: &Policy) {}

    fn reset(&mut self, side: Option<Side<'_, Policy>>) {
        if let Some(side) = side {
            self.guest(side).depart();
        }
        drop(self.table.clear());
    }

    fn report(&self, report: &mut Report) {
        report.sockets = self.table.count();
    }
}
