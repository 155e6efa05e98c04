// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One connection to a QEMU: the way there, its page, and what its guest said.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hallway_abi::region::{COMMAND_HELLO, PAGE_ENTRIES, PAGE_SIZE};
use hallway_membership::{Address, Page, Reply, Request, Uuid};
use hallway_unix::Stream;
use nix::sys::socket::{getsockopt, sockopt};

use super::line::Line;
use crate::keeper::{pidfd, Entry, Given, Holder, Kept, SavedConnection};

/// Requests and moves that a guest may make at once, and how many it gets back a
/// second.
const BUDGET: u32 = 64;
const BUDGET_PER_SECOND: u32 = 32;
/// Percentage of a QEMU's descriptors from which on to warn.
const STRAIN: u64 = 80;
/// A limit of descriptors above which there is nothing to look at: ids run out first.
const LIMIT_MAX: u64 = 1 << 17;
/// A limit above which descriptors are not counted one by one, but those that the daemon
/// knows of: a QEMU may open as many as it likes, and have the daemon count them.
const COUNT_MAX: u64 = 4096;
/// Time between two warnings that one guest causes.
const WARNING: Duration = Duration::from_secs(1);

/// Names of a connection's descriptors at the holder; those of older daemons stay there.
const PARTS: [&str; 4] = ["qemu", "page", "bell", "ask"];

/// A connection to a QEMU.
pub struct Connection {
    /// Its number; never used twice.
    pub number: u64,
    /// The way to its QEMU.
    pub line: Line,
    /// The page that it shares with its guest.
    pub page: Page,
    page_fd: OwnedFd,
    /// UUID that its guest named.
    pub uuid: Option<Uuid>,
    /// UUID of the VM whose monitor its QEMU had: a QEMU never becomes another VM.
    pub verified: Option<Uuid>,
    /// The CID that its guest's VM was given.
    pub given: Option<Given>,
    /// Name that its guest gave; printable.
    pub name: Option<String>,
    /// The private copy of its page's entries.
    pub entries: [Entry; PAGE_ENTRIES],
    /// Process of its QEMU.
    pub pid: Option<i32>,
    /// User of its QEMU.
    pub uid: Option<u32>,
    /// Addresses that its guest says it has.
    pub home: Vec<Address>,
    /// The list of candidates in its page, and the list's number.
    pub candidates: Option<(u32, Vec<Address>)>,
    /// Replies as they are in the page.
    pub written: [Option<Reply>; PAGE_ENTRIES],
    /// Since when a join waits for other QEMUs to learn of this connection.
    pub waiting: [Option<Instant>; PAGE_ENTRIES],
    /// Requests that this daemon answered.
    pub requests: u64,
    /// Why its QEMU may soon hear of no other VM.
    pub strain: Option<String>,
    /// The last request that was refused, until it is granted, and why.
    pub refused: Option<(Request, String)>,
    /// The id of the next peer when that was looked at.
    looked: u32,
    budget: u32,
    last_warning: Option<Instant>,
}

/// Descriptors of a process, at least `known` of them, and how many it may have; nothing
/// if it has ended, or is out of sight.
fn descriptors(pid: i32, known: u64) -> Option<(u64, u64)> {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = limits
        .lines()
        .find_map(|l| l.strip_prefix("Max open files"));
    let limit = line?.split_whitespace().next()?.parse().ok()?;
    if limit > LIMIT_MAX {
        return None;
    }
    let folder = format!("/proc/{pid}/fd");
    // Linux has the number there since 6.2.
    let size = std::fs::metadata(&folder).ok()?.len();
    if size > 0 {
        return Some((size, limit));
    }
    if limit > COUNT_MAX {
        return Some((known, limit));
    }
    Some((std::fs::read_dir(&folder).ok()?.count() as u64, limit))
}

/// A limit of descriptors to ask for in place of one that is too low.
fn enough(limit: u64) -> u64 {
    limit.saturating_mul(2).max(65536)
}

fn part_name(number: u64, part: &str) -> String {
    format!("vm.{number}.{part}")
}

impl Connection {
    fn assemble(line: Line, saved: SavedConnection, page: Page, page_fd: OwnedFd) -> Self {
        let peer = getsockopt(&line.fds()[0], sockopt::PeerCredentials).ok();
        page.format();
        Self {
            number: saved.number,
            line,
            page,
            page_fd,
            uuid: saved.uuid,
            verified: saved.verified,
            given: saved.given,
            name: saved.name,
            entries: saved.entries,
            pid: peer.map(|peer| peer.pid()),
            uid: peer.map(|peer| peer.uid()),
            home: Vec::new(),
            candidates: None,
            written: Default::default(),
            waiting: Default::default(),
            requests: 0,
            strain: None,
            refused: None,
            looked: 0,
            budget: BUDGET,
            last_warning: None,
        }
    }

    /// A QEMU has just connected; it waits for its greeting.
    pub fn new(number: u64, socket: Stream) -> Result<Self> {
        // The line comes last: what fails before it drops a stream, which hangs up.
        let page_fd = hallway_shm::sealed_memory("hallway-page", PAGE_SIZE)?;
        let page = Page::new(&page_fd)?;
        let line = Line::new(number, socket)?;
        let saved = SavedConnection {
            number,
            greeted: line.greeted,
            uuid: None,
            verified: None,
            given: None,
            name: None,
            next_peer: line.next_peer,
            peers: line.peers.clone(),
            entries: Default::default(),
        };
        Ok(Self::assemble(line, saved, page, page_fd))
    }

    /// Takes over a connection of the daemon before this one.
    pub fn recover(mut saved: SavedConnection, kept: &mut Kept) -> Result<Self> {
        let mut take = |part: &str| {
            let name = part_name(saved.number, part);
            kept.remove(&name)
                .with_context(|| format!("the holder lost {name}"))
        };
        let [socket, page_fd, doorbell, ask] = PARTS.map(&mut take);
        let socket = Stream::from(UnixStream::from(socket?));
        let page_fd = page_fd?;
        let page = Page::new(&page_fd)?;
        let mut line = Line::recover(saved.number, socket, doorbell?, ask?)?;
        line.greeted = saved.greeted;
        line.next_peer = saved.next_peer;
        line.peers = std::mem::take(&mut saved.peers);
        Ok(Self::assemble(line, saved, page, page_fd))
    }

    /// What a later daemon must know of it.
    pub fn saved(&self) -> SavedConnection {
        SavedConnection {
            number: self.number,
            greeted: self.line.greeted,
            uuid: self.uuid,
            verified: self.verified,
            given: self.given.clone(),
            name: self.name.clone(),
            next_peer: self.line.next_peer,
            peers: self.line.peers.clone(),
            entries: self.entries.clone(),
        }
    }

    /// Has the holder keep its descriptors.
    pub fn keep(&self, holder: &Holder) -> std::io::Result<()> {
        let [socket, doorbell, ask] = self.line.fds();
        let fds = [socket, self.page_fd.as_fd(), doorbell, ask];
        for (part, fd) in PARTS.into_iter().zip(fds) {
            holder.put(&part_name(self.number, part), fd)?;
        }
        Ok(())
    }

    /// Has the holder close the descriptors of a connection that is over.
    pub fn forget(number: u64, holder: &Holder) {
        for part in PARTS {
            // Where it fails, the holder has ended, and has closed them.
            let _ = holder.del(&part_name(number, part));
        }
    }

    /// Sends QEMU all that it waits for at its start.
    pub fn greet(&mut self) -> Result<()> {
        self.line.greet(self.page_fd.as_fd())
    }

    /// Whether the process of its QEMU is this one. A pid can be used again.
    pub fn is_of(&self, pid: i32) -> bool {
        self.pid == Some(pid) && !pidfd::has_peer_ended(self.line.fds()[0])
    }

    /// Reads which addresses the guest says it has. True if it had others before.
    /// Each such move changes the lists of its candidates and rings them, so it
    /// costs what a request does. A move too many waits.
    pub fn look_home(&mut self) -> bool {
        match self.page.home() {
            Some(home) if home != self.home && self.spend() => {
                self.home = home;
                true
            }
            _ => false,
        }
    }

    /// Writes the guest's candidates into its page. True if the list is another
    /// than before.
    pub fn write_candidates(&mut self, list: &[Address]) -> bool {
        match &self.candidates {
            Some((_, written)) if written == list => return false,
            // An empty list changes nothing, unless a daemon before wrote another.
            None if list.is_empty() && !self.page.has_candidates() => return false,
            _ => {}
        }
        let number = self.page.write_candidates(list);
        self.candidates = Some((number, list.into()));
        true
    }

    /// Addresses of the candidates with which the guest has traffic.
    pub fn wanted(&self) -> Vec<Address> {
        let Some((number, list)) = &self.candidates else {
            return Vec::new();
        };
        let set = self.page.wanted(*number);
        let bits = list.iter().enumerate().filter(|(n, _)| set >> n & 1 == 1);
        bits.map(|(_, address)| *address).collect()
    }

    /// Enters that a request was granted: an earlier one that was refused may be past.
    pub fn hear_granted(&mut self, granted: &Request) {
        self.refused.take_if(|(refused, _)| {
            // Each start of a module begins with a HELLO.
            granted.command == COMMAND_HELLO
                || refused.command == COMMAND_HELLO
                || granted.region == refused.region
        });
    }

    /// Whether to look at QEMU's descriptors: it may have heard of more peers.
    pub fn is_look_due(&self) -> bool {
        self.strain.is_some() || self.is_member() && self.line.next_peer != self.looked
    }

    /// Looks whether QEMU has descriptors left: it keeps one for each peer that it ever
    /// heard of, and at its limit even its monitor falls silent without a word. Returns
    /// what to log.
    pub fn look_at_descriptors(&mut self) -> Option<String> {
        self.looked = self.line.next_peer;
        let pid = self.pid.filter(|pid| *pid > 0)?;
        let (used, limit) = descriptors(pid, self.line.next_peer.into())?;
        let strained = used * 100 >= limit * STRAIN;
        let is_new = strained && self.strain.is_none();
        self.strain = strained.then(|| {
            format!(
                "QEMU has {used} of {limit} descriptors: raise its limit (prlimit --pid {pid} \
                 --nofile={})",
                enough(limit)
            )
        });
        is_new.then(|| {
            format!(
                "its QEMU has {used} of {limit} descriptors, and each VM that joins takes one: \
                 raise its limit (LimitNOFILE, ulimit -n, prlimit)"
            )
        })
    }

    /// Pays for one request or move. False if the guest has made too many.
    pub fn spend(&mut self) -> bool {
        let can = self.budget > 0;
        self.budget = self.budget.saturating_sub(1);
        can
    }

    /// Whether requests have to wait.
    pub fn throttled(&self) -> bool {
        self.budget == 0
    }

    /// Adds a part of what was spent; once a second.
    pub fn refill(&mut self) {
        self.budget = (self.budget + BUDGET_PER_SECOND).min(BUDGET);
    }

    /// Whether to log what this guest caused: at most once a second.
    pub fn may_warn(&mut self) -> bool {
        let may = self
            .last_warning
            .is_none_or(|last| last.elapsed() >= WARNING);
        if may {
            self.last_warning = Some(Instant::now());
        }
        may
    }

    /// The newest request in the page. Where the guest came by migration, it was
    /// for the daemon of the host before.
    pub fn past(&self) -> Option<Request> {
        (0..PAGE_ENTRIES)
            .filter_map(|index| self.page.read(index))
            .filter(|request| request.serial != 0 && !request.vm.is_nil())
            .max_by_key(|request| request.serial)
    }

    /// The entry by which the guest has joined a region.
    pub fn entry(&self, region: &str) -> Option<&Entry> {
        self.entries
            .iter()
            .find(|entry| entry.region.as_deref() == Some(region))
    }

    /// Names of the regions that the guest has joined.
    pub fn regions(&self) -> impl Iterator<Item = &str> {
        let entries = self.entries.iter();
        entries.filter_map(|entry| entry.region.as_deref())
    }

    /// Whether the guest has joined any region.
    pub fn is_member(&self) -> bool {
        self.entries.iter().any(|entry| entry.region.is_some())
    }

    /// Whether to look at it again soon.
    pub fn is_busy(&self) -> bool {
        self.waiting.iter().any(Option::is_some) || self.line.is_busy()
    }

    /// Its name for people.
    pub fn label(&self) -> String {
        let name = self.name.as_deref().unwrap_or("unnamed");
        match self.pid {
            Some(pid) => format!("{name} (connection {}, QEMU pid {pid})", self.number),
            None => format!("{name} (connection {})", self.number),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_limit_to_ask_for_is_above_the_one_that_is_there() {
        assert_eq!(
            [1024, 65536, 100_000].map(super::enough),
            [65536, 131_072, 200_000]
        );
    }
}
