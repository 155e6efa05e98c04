// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One connected VM.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hallway_abi::region::{PAGE_ENTRIES, PAGE_SIZE};
use hallway_membership::{Address, Page, Reply, Request};
use ivshmem_server::{Connection, ID_MAX};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{getsockopt, sockopt};
use tracing::warn;

use crate::holder::{Holder, Kept};
use crate::state::{Entry, Peer, SavedVm};

/// Requests and moves that a VM may make at once, and how many it gets back a second.
const BUDGET: u32 = 64;
const BUDGET_PER_SECOND: u32 = 32;
/// How long QEMU may take from reading a message to acting on it.
const DIGEST: Duration = Duration::from_millis(1);
/// How long a QEMU that does not read is looked after often.
const PATIENCE: Duration = Duration::from_secs(1);

const PARTS: [&str; 4] = ["qemu", "page", "bell", "ask"];

/// A connected VM.
pub struct Vm {
    /// What a later daemon must know.
    pub saved: SavedVm,
    /// To its QEMU.
    pub connection: Connection,
    /// Where its guest asks.
    pub page: Page,
    page_fd: OwnedFd,
    /// Rung by others and by the daemon; its QEMU listens.
    bell: OwnedFd,
    /// Rung by its guest; the daemon listens.
    pub ask: OwnedFd,
    /// Of its QEMU.
    pub pid: Option<i32>,
    /// Of the user whose QEMU it is.
    pub uid: Option<u32>,
    /// Where its guest says that it is.
    pub home: Vec<Address>,
    /// The list of neighbours in its page, and the list's number.
    pub told: Option<(u32, Vec<Address>)>,
    /// Replies as they are in the page.
    pub written: [Option<Reply>; PAGE_ENTRIES],
    /// Since when a join waits for other QEMUs to learn of this VM.
    pub waiting: [Option<Instant>; PAGE_ENTRIES],
    /// Requests answered by this daemon.
    pub requests: u64,
    /// Whether the socket was full.
    pub congested: bool,
    budget: u32,
    /// Since when QEMU has something to read.
    owed: Option<Instant>,
    drained: Option<Instant>,
    last_warning: Option<Instant>,
}

fn name(number: u64, part: &str) -> String {
    format!("vm.{number}.{part}")
}

fn eventfd() -> Result<OwnedFd> {
    Ok(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?.into())
}

impl Vm {
    fn assemble(
        saved: SavedVm,
        socket: OwnedFd,
        page_fd: OwnedFd,
        bell: OwnedFd,
        ask: OwnedFd,
    ) -> Result<Self> {
        let peer = getsockopt(&socket, sockopt::PeerCredentials).ok();
        Ok(Self {
            saved,
            connection: Connection::new(socket)?,
            page: Page::new(&page_fd)?,
            page_fd,
            bell,
            ask,
            pid: peer.map(|peer| peer.pid()),
            uid: peer.map(|peer| peer.uid()),
            home: Vec::new(),
            told: None,
            written: Default::default(),
            waiting: Default::default(),
            requests: 0,
            congested: false,
            budget: BUDGET,
            owed: None,
            drained: None,
            last_warning: None,
        })
    }

    /// A QEMU that just connected; it waits for its greeting.
    pub fn new(number: u64, socket: OwnedFd) -> Result<Self> {
        let page_fd = hallway_shm::sealed_memory("hallway-page", PAGE_SIZE)?;
        let saved = SavedVm {
            number,
            greeted: false,
            uuid: None,
            name: None,
            next_peer: u32::from(hallway_abi::region::DAEMON_ID) + 1,
            peers: Default::default(),
            entries: Default::default(),
        };
        let vm = Self::assemble(saved, socket, page_fd, eventfd()?, eventfd()?)?;
        vm.page.format();
        Ok(vm)
    }

    /// Tells QEMU all that it waits for.
    pub fn greet(&mut self) -> Result<()> {
        let daemon = (hallway_abi::region::DAEMON_ID, self.ask.as_fd());
        self.connection
            .greet(self.page_fd.as_fd(), [daemon], self.bell.as_fd())?;
        self.connection.flush()?;
        self.saved.greeted = true;
        Ok(())
    }

    /// A VM of the daemon before this one. Peers of which QEMU may not know are
    /// told again, which does no harm.
    pub fn recover(saved: SavedVm, kept: &mut Kept) -> Result<Self> {
        let mut take = |part: &str| {
            let name = name(saved.number, part);
            kept.remove(&name)
                .with_context(|| format!("the holder lost {name}"))
        };
        let [socket, page_fd, bell, ask] = PARTS.map(&mut take);
        let vm = Self::assemble(saved, socket?, page_fd?, bell?, ask?)?;
        vm.page.format();
        Ok(vm)
    }

    /// Has the holder keep what this VM consists of.
    pub fn keep(&self, holder: &Holder) -> std::io::Result<()> {
        let fds = [
            self.connection.as_fd(),
            self.page_fd.as_fd(),
            self.bell.as_fd(),
            self.ask.as_fd(),
        ];
        for (part, fd) in PARTS.into_iter().zip(fds) {
            holder.put(&name(self.saved.number, part), fd)?;
        }
        Ok(())
    }

    /// Has the holder drop it.
    pub fn forget(&self, holder: &Holder) {
        for part in PARTS {
            // Should it fail, the holder is gone, and all is forgotten.
            let _ = holder.del(&name(self.saved.number, part));
        }
    }

    /// Looks where the guest says that it is. True if it was elsewhere before.
    /// Each move numbers its neighbours' lists anew and rings them, so that it
    /// costs what a request does; a move too many waits.
    pub fn look_home(&mut self) -> bool {
        match self.page.home() {
            Some(home) if home != self.home && self.spend() => {
                self.home = home;
                true
            }
            _ => false,
        }
    }

    /// Tells the guest its neighbours. True if it was another list before.
    pub fn tell(&mut self, neighbours: &[Address]) -> bool {
        match &self.told {
            Some((_, told)) if told == neighbours => return false,
            // Of nobody it need not be told, unless a daemon before told it of some.
            None if neighbours.is_empty() && !self.page.has_neighbours() => return false,
            _ => {}
        }
        let list = self.page.tell_neighbours(neighbours);
        self.told = Some((list, neighbours.into()));
        true
    }

    /// Addresses of the neighbours with whom the guest has traffic.
    pub fn wanted(&self) -> Vec<Address> {
        let Some((list, told)) = &self.told else {
            return Vec::new();
        };
        let set = self.page.wanted(*list);
        let bits = told.iter().enumerate().filter(|(n, _)| set >> n & 1 == 1);
        bits.map(|(_, address)| *address).collect()
    }

    /// Rings the guest.
    pub fn ring(&self) {
        // EAGAIN: it was rung 2^64 - 2 times and has not looked yet.
        let _ = nix::unistd::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Takes the guest's rings.
    pub fn hear(&self) {
        let mut count = [0; 8];
        match nix::unistd::read(&self.ask, &mut count) {
            Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(error) => warn!(vm = %self.label(), "cannot read the doorbell: {error}"),
        }
    }

    /// Descriptor of the doorbell that rings this VM, for others.
    pub fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    /// Makes sure that QEMU was told of another VM. False once ids ran out.
    pub fn introduce(&mut self, other: u64, bell: &OwnedFd) -> Result<bool> {
        if self.saved.peers.contains_key(&other) {
            return Ok(true);
        }
        let Ok(id @ 0..=ID_MAX) = u16::try_from(self.saved.next_peer) else {
            return Ok(false);
        };
        self.connection.introduce(id, bell.as_fd())?;
        self.saved.next_peer += 1;
        self.saved.peers.insert(other, Peer { id, known: false });
        self.told();
        Ok(true)
    }

    /// Tells QEMU again what it may not know.
    pub fn reintroduce(&mut self, other: u64, bell: &OwnedFd) -> Result<()> {
        if let Some(peer) = self.saved.peers.get(&other).filter(|peer| !peer.known) {
            self.connection.introduce(peer.id, bell.as_fd())?;
            self.told();
        }
        Ok(())
    }

    fn told(&mut self) {
        self.owed.get_or_insert_with(Instant::now);
        self.drained = None;
    }

    /// Whether QEMU knows another VM.
    pub fn knows(&self, other: u64) -> bool {
        self.saved.peers.get(&other).is_some_and(|peer| peer.known)
    }

    /// Peers that QEMU was told of and may not know.
    pub fn unknown(&self) -> usize {
        self.saved.peers.values().filter(|peer| !peer.known).count()
    }

    /// Sends what can be sent, and notices what QEMU has taken in. True if it
    /// knows more than before.
    pub fn digest(&mut self, now: Instant) -> std::io::Result<bool> {
        self.congested = !self.connection.flush()?;
        if self.unknown() == 0 || !self.connection.drained() {
            return Ok(false);
        }
        if now.duration_since(*self.drained.get_or_insert(now)) < DIGEST {
            return Ok(false);
        }
        for peer in self.saved.peers.values_mut() {
            peer.known = true;
        }
        self.owed = None;
        Ok(true)
    }

    /// Whether QEMU has not read for that long.
    pub fn lags(&self, limit: Duration) -> bool {
        self.owed.is_some_and(|since| since.elapsed() >= limit)
    }

    /// Whether to look at it again soon.
    pub fn unsettled(&self) -> bool {
        self.waiting.iter().any(Option::is_some)
            || self.unknown() > 0 && (self.drained.is_some() || !self.lags(PATIENCE))
    }

    /// Whether one more request or move may be looked at now.
    pub fn spend(&mut self) -> bool {
        let can = self.budget > 0;
        self.budget = self.budget.saturating_sub(1);
        can
    }

    /// Whether requests have to wait.
    pub fn throttled(&self) -> bool {
        self.budget == 0
    }

    /// Once a second.
    pub fn refill(&mut self) {
        self.budget = (self.budget + BUDGET_PER_SECOND).min(BUDGET);
    }

    /// Whether to log what this VM caused: not more than once a second.
    pub fn may_warn(&mut self) -> bool {
        let now = Instant::now();
        let may = self
            .last_warning
            .is_none_or(|last| now.duration_since(last) >= Duration::from_secs(1));
        if may {
            self.last_warning = Some(now);
        }
        may
    }

    /// The last of its requests that this daemon was not asked: of a guest that
    /// came by migration, to the daemon of before.
    pub fn past(&self) -> Option<Request> {
        (0..PAGE_ENTRIES)
            .filter_map(|index| self.page.read(index))
            .filter(|request| request.serial != 0 && !request.vm.is_nil())
            .max_by_key(|request| request.serial)
    }

    /// Entry by which the VM takes part in a region.
    pub fn entry(&self, region: &str) -> Option<&Entry> {
        self.saved
            .entries
            .iter()
            .find(|entry| entry.region.as_deref() == Some(region))
    }

    /// For people.
    pub fn label(&self) -> String {
        let name = self.saved.name.as_deref().unwrap_or("unnamed");
        match self.pid {
            Some(pid) => format!("{name} (connection {}, QEMU pid {pid})", self.saved.number),
            None => format!("{name} (connection {})", self.saved.number),
        }
    }
}

impl std::fmt::Debug for Vm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} fd {}",
            self.label(),
            self.connection.as_fd().as_raw_fd()
        )
    }
}
