// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The connections to QEMUs, and what their guests have joined.

mod connection;
mod line;
mod ringer;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use anyhow::Result;
use hallway_abi::region as abi;
use hallway_abi::tunnel::cid;
use hallway_control as control;
use hallway_membership::{Address, Reply, Request, Uuid, HOST_SLOT};
use hallway_unix::Stream;
use nix::sys::epoll::EpollFlags;
use nix::sys::resource::{getrlimit, Resource};
use tracing::{debug, error, info, warn};

pub use self::connection::Connection;
use self::ringer::Ringer;
use crate::config::Config;
use crate::effect::Effect;
use crate::keeper::{Entry, Given, Holder, Kept, SavedConnection, SavedDoorbell, State};
use crate::lines::Lines;
use crate::poller::{Poller, Source};
use crate::regionspec::OUTSOURCED;

/// Connections that one user may have: each takes descriptors and memory, here and at
/// the holder, and a member of the group of `--group` can make any number.
const QEMUS_OF_ONE: usize = 1024;
/// Log lines a second about QEMUs that connect and go.
const TURNOVER_LINES: usize = 32;
/// Log lines a second about those that are refused, cannot be served or may soon not be.
const TROUBLE_LINES: usize = 8;
/// Number of QEMUs a second of which descriptors are counted. A count may take
/// milliseconds.
const LOOKS: usize = 8;
/// How long a join waits for QEMUs that do not read.
const JOIN_WAIT: Duration = Duration::from_millis(200);

/// A request in the page of a connection, to be judged.
pub struct Asked {
    /// Index of its entry.
    pub index: usize,
    /// A private copy.
    pub request: Request,
}

/// A place in a region that a request has got.
pub struct Place {
    /// Name of the region.
    pub region: String,
    /// Slot there.
    pub slot: usize,
    /// Generation there.
    pub generation: u32,
}

/// Every connection to a QEMU.
pub struct Connections {
    listener: UnixListener,
    ringer: Ringer,
    all: BTreeMap<u64, Connection>,
    next: u64,
    /// Those that the holder does not keep yet.
    fresh: BTreeSet<u64>,
    /// Those that are over, and that the holder still keeps.
    gone: BTreeSet<u64>,
    /// What a later daemon must know has changed.
    unsaved: bool,
    /// A guest came, went or has other addresses: others may have other candidates.
    moved: bool,
    /// A user of the group can have QEMUs connect, go and be refused in a loop.
    turnover: Lines,
    /// The same for members: lines about others do not displace these.
    ends: Lines,
    troubles: Lines,
    /// The last connection of which descriptors were counted.
    looked_at: u64,
    /// The helpers, by the names of their regions.
    helpers: BTreeMap<String, Helper>,
    /// Numbers of those that are over, and of which the holder still keeps the doorbell.
    gone_helpers: Vec<u64>,
}

/// A helper, as the QEMU of its guest knows it: another peer.
struct Helper {
    /// Its number among peers, where connections have theirs; never used twice.
    number: u64,
    /// Its slot in the region.
    slot: usize,
    /// Rung by the guest; its process listens.
    doorbell: OwnedFd,
    /// Whether the holder keeps that.
    kept: bool,
}

/// Name of a helper's doorbell at the holder; those of older daemons stay there.
fn doorbell_name(number: u64) -> String {
    format!("bell.{number}")
}

impl Connections {
    /// Listens for QEMUs, and takes over the connections of a daemon before, and the
    /// doorbells of its helpers, from its state.
    pub fn recover(listener: UnixListener, state: &mut State, kept: &mut Kept) -> Result<Self> {
        let (mut all, mut gone) = (BTreeMap::new(), BTreeSet::new());
        for saved in state.connections.drain(..) {
            let number = saved.number;
            match Connection::recover(saved, kept) {
                Ok(connection) => {
                    all.insert(number, connection);
                }
                Err(error) => {
                    warn!(connection = number, "a VM cannot be taken over: {error:#}");
                    gone.insert(number);
                }
            }
        }
        let mut connections = Self {
            listener,
            ringer: Ringer::new()?,
            all,
            next: state.next_connection,
            fresh: BTreeSet::new(),
            gone,
            unsaved: true,
            moved: true,
            turnover: Lines::new(TURNOVER_LINES),
            ends: Lines::new(TURNOVER_LINES),
            troubles: Lines::new(TROUBLE_LINES),
            looked_at: 0,
            helpers: BTreeMap::new(),
            gone_helpers: Vec::new(),
        };
        for saved in state.doorbells.drain(..) {
            if let Some(doorbell) = kept.remove(&doorbell_name(saved.number)) {
                let helper = Helper {
                    number: saved.number,
                    slot: saved.slot,
                    doorbell,
                    kept: false,
                };
                connections.helpers.insert(saved.region, helper);
            }
        }
        connections.fresh = connections.numbers().into_iter().collect();
        connections.reintroduce()?;
        Ok(connections)
    }

    /// Forgets peers that are gone, and sends again those that QEMUs may not have read.
    fn reintroduce(&mut self) -> Result<()> {
        for number in self.numbers() {
            let peers: Vec<u64> = self.all[&number].line.peers.keys().copied().collect();
            for peer in peers {
                let doorbell = self.doorbell_of(peer).transpose()?;
                let Some(connection) = self.all.get_mut(&number) else {
                    continue;
                };
                match doorbell {
                    Some(doorbell) => connection.line.reintroduce(peer, doorbell.as_fd())?,
                    None => drop(connection.line.peers.remove(&peer)),
                }
            }
        }
        Ok(())
    }

    /// Watches for new QEMUs, and for what the connected ones and their guests do.
    pub fn watch(&self, poller: &Poller) -> Result<()> {
        poller.watch(&self.listener, Source::Listener, EpollFlags::EPOLLIN)?;
        let mut all = self.all.values();
        all.try_for_each(|connection| connection.line.watch(poller))
    }

    /// QEMU's socket.
    pub fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Number of the next connection.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The connection of that number.
    pub fn get(&self, number: u64) -> Option<&Connection> {
        self.all.get(&number)
    }

    /// All of them, by number.
    pub fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.all.values()
    }

    /// Their numbers.
    pub fn numbers(&self) -> Vec<u64> {
        self.all.keys().copied().collect()
    }

    /// The connection whose guest named this UUID.
    pub fn of_guest(&self, uuid: Uuid) -> Option<&Connection> {
        self.iter().find(|connection| connection.uuid == Some(uuid))
    }

    /// Whether one of them is to be looked at again soon.
    pub fn are_busy(&self) -> bool {
        self.iter().any(Connection::is_busy)
    }

    /// Takes in the QEMUs that connect.
    pub fn accept(&mut self, poller: &Poller) {
        for _ in 0..16 {
            let socket = match self.listener.accept() {
                Ok((stream, _)) => Stream::from(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    if self.troubles.may() {
                        error!("cannot accept a QEMU: {error}");
                    }
                    // Descriptors have run out: this must not become a tight loop.
                    std::thread::sleep(Duration::from_millis(10));
                    return;
                }
            };
            match Connection::new(self.next, socket) {
                Ok(connection) => self.take_in(connection, poller),
                Err(error) if self.troubles.may() => error!("cannot serve a QEMU: {error:#}"),
                Err(_) => {}
            }
        }
    }

    fn take_in(&mut self, connection: Connection, poller: &Poller) {
        let of_user = self.iter().filter(|other| other.uid == connection.uid);
        if of_user.count() >= QEMUS_OF_ONE {
            if self.troubles.may() {
                warn!(
                    vm = %connection.label(),
                    uid = connection.uid,
                    "refused: its user has {QEMUS_OF_ONE} connections, and may not have more"
                );
            }
            connection.line.hang_up();
            return;
        }
        let room = room();
        if self.all.len() >= room {
            if self.troubles.may() {
                warn!(
                    vm = %connection.label(),
                    "refused: hallwayd has descriptors for {room} connections: raise its limit \
                     (LimitNOFILE, ulimit -Hn)"
                );
            }
            connection.line.hang_up();
            return;
        }
        if self.turnover.may() {
            info!(vm = %connection.label(), "QEMU connected");
        }
        if let Err(error) = connection.line.watch(poller) {
            error!(vm = %connection.label(), "cannot be watched: {error:#}");
        }
        self.fresh.insert(connection.number);
        self.all.insert(connection.number, connection);
        self.next += 1;
        self.unsaved = true;
    }

    /// Ends a connection if its QEMU has ended.
    pub fn end_if_closed(&mut self, number: u64, poller: &Poller) -> Vec<Effect> {
        match self.all.get(&number) {
            Some(connection) if connection.line.closed() => self.end(number, poller),
            _ => Vec::new(),
        }
    }

    fn end(&mut self, number: u64, poller: &Poller) -> Vec<Effect> {
        let Some(mut connection) = self.all.remove(&number) else {
            return Vec::new();
        };
        let lines = match connection.is_member() {
            true => &mut self.ends,
            false => &mut self.turnover,
        };
        if lines.may() {
            info!(vm = %connection.label(), "its QEMU is gone");
        }
        connection.line.unwatch(poller);
        self.fresh.remove(&number);
        self.gone.insert(number);
        for other in self.all.values_mut() {
            other.line.forget(number);
        }
        self.unsaved = true;
        self.moved = true;
        let mut effects = leave(&mut connection, |_, _| true);
        effects.extend(connection.pid.map(Effect::Ended));
        connection.line.hang_up();
        effects
    }

    /// Takes from a connection whose guest it was, and what that guest had joined.
    pub fn disown(&mut self, number: u64) -> Vec<Effect> {
        let Some(connection) = self.all.get_mut(&number) else {
            return Vec::new();
        };
        let effects = leave(connection, |_, _| true);
        connection.uuid = None;
        connection.name = None;
        self.unsaved = true;
        self.moved = true;
        effects
    }

    /// Takes the guest of a connection out of a region.
    pub fn put_out(&mut self, number: u64, region: &str) -> Vec<Effect> {
        let Some(connection) = self.all.get_mut(&number) else {
            return Vec::new();
        };
        self.unsaved = true;
        leave(connection, |_, joined| joined == region)
    }

    /// Enters that the QEMU `pid` has the monitor of the VM with this UUID.
    pub fn verify(&mut self, pid: i32, uuid: Uuid) {
        let its = self.all.values_mut().filter(|one| one.is_of(pid));
        for one in its.filter(|one| one.verified.is_none()) {
            one.verified = Some(uuid);
            self.unsaved = true;
        }
    }

    /// Enters whose guest a connection has, where that follows from another sign
    /// than a request to this daemon.
    pub fn recognise(&mut self, number: u64, uuid: Uuid, name: String) {
        if let Some(connection) = self.all.get_mut(&number) {
            connection.candidates = None;
            connection.uuid = Some(uuid);
            connection.name = Some(name);
            self.unsaved = true;
            self.moved = true;
        }
    }

    /// A guest has rung: looks at its addresses.
    pub fn hear(&mut self, number: u64) {
        let Some(connection) = self.all.get_mut(&number) else {
            return;
        };
        self.moved |= connection.look_home();
    }

    /// Does what is due once a second.
    pub fn every_second(&mut self) {
        if let more @ 1.. = self.turnover.every_second() {
            warn!(
                more,
                "QEMUs connected or went within a second, too many to log each"
            );
        }
        if let more @ 1.. = self.ends.every_second() {
            warn!(
                more,
                "QEMUs of members ended within a second, too many to log each"
            );
        }
        if let more @ 1.. = self.troubles.every_second() {
            warn!(
                more,
                "QEMUs were refused within a second, too many to log each"
            );
        }
        for connection in self.all.values_mut() {
            connection.refill();
            self.moved |= connection.look_home();
        }
        self.look_at_descriptors();
    }

    /// Looks at the descriptors of a few QEMUs, those next in turn.
    fn look_at_descriptors(&mut self) {
        let due = self.iter().filter(|one| one.is_look_due());
        let due: Vec<u64> = due.map(|one| one.number).collect();
        for number in in_turn(&due, self.looked_at) {
            self.looked_at = number;
            let Some(connection) = self.all.get_mut(&number) else {
                continue;
            };
            if let Some(trouble) = connection.look_at_descriptors() {
                if self.troubles.may() {
                    warn!(vm = %connection.label(), "{trouble}");
                }
            }
        }
    }

    /// Sends to QEMUs, and notices what they have read.
    pub fn digest(&mut self, poller: &Poller) -> Vec<Effect> {
        let now = Instant::now();
        let mut lost = Vec::new();
        for (number, connection) in &mut self.all {
            match connection.line.digest(now, poller) {
                Ok(more) => self.unsaved |= more,
                Err(error) => {
                    debug!(vm = %connection.label(), "cannot be sent more: {error}");
                    lost.push(*number);
                }
            }
        }
        self.introduce_lacking();
        let ends = lost.into_iter().map(|number| self.end(number, poller));
        ends.flatten().collect()
    }

    /// Introduces the missing members to QEMUs that read again.
    fn introduce_lacking(&mut self) {
        let all = self.all.iter_mut();
        let lacking = all.filter_map(|(number, one)| one.line.take_lack().then_some(*number));
        for number in lacking.collect::<Vec<_>>() {
            let Some(connection) = self.all.get(&number) else {
                continue;
            };
            let joined: Vec<&str> = connection.regions().collect();
            let is_peer = |other: &&Connection| {
                other.number != number && joined.iter().any(|name| other.entry(name).is_some())
            };
            let others = self.iter().filter(is_peer).map(|other| other.number);
            let helpers = joined.iter().filter_map(|name| self.helpers.get(*name));
            let all: Vec<u64> = others.chain(helpers.map(|one| one.number)).collect();
            for about in all {
                self.introduce_one(number, about);
            }
        }
    }

    // -- Requests --------------------------------------------------------------

    /// The next request in the page of a connection, from entry `from` on, that is
    /// to be judged now. `only_waiting`: only joins that wait for other QEMUs.
    pub fn next_request(&mut self, number: u64, from: usize, only_waiting: bool) -> Option<Asked> {
        let connection = self.all.get_mut(&number)?;
        for index in from..abi::PAGE_ENTRIES {
            let waits = connection.waiting[index].is_some();
            if only_waiting && !waits {
                continue;
            }
            let serial = connection.page.serial(index);
            if serial == 0 || serial == connection.entries[index].serial {
                connection.waiting[index] = None;
                continue;
            }
            // A join that waits was paid for before.
            if !waits && !connection.spend() {
                return None;
            }
            if let Some(request) = connection.page.read(index) {
                return Some(Asked { index, request });
            }
        }
        None
    }

    /// Another connection that has joined regions for the same VM.
    pub fn namesake(&self, number: u64, uuid: Uuid) -> Option<&Connection> {
        self.iter()
            .find(|other| other.number != number && other.uuid == Some(uuid) && other.is_member())
    }

    /// Makes a connection and the members of a region known to each other's QEMUs.
    /// True once all of them have read it, or have had their time.
    pub fn introduce(&mut self, number: u64, index: usize, region: &str) -> bool {
        let is_other = |other: &&Connection| other.number != number;
        let members = self.iter().filter(is_other);
        let members = members.filter(|other| other.entry(region).is_some());
        let mut known = true;
        for other in members.map(|other| other.number).collect::<Vec<_>>() {
            known &= self.introduce_one(number, other) & self.introduce_one(other, number);
        }
        if let Some(helper) = self.helpers.get(region) {
            known &= self.introduce_one(number, helper.number);
        }
        let Some(connection) = self.all.get_mut(&number).filter(|_| !known) else {
            return known;
        };
        let since = *connection.waiting[index].get_or_insert_with(Instant::now);
        since.elapsed() >= JOIN_WAIT
    }

    /// Gives the helper of a region a doorbell, and has the QEMU of a guest that has
    /// joined learn of it. It stays the same for each process that serves the region, and
    /// for each region of that name.
    pub fn add_helper(&mut self, region: &str, slot: usize) -> Result<()> {
        if self.helpers.contains_key(region) {
            return Ok(());
        }
        let helper = Helper {
            number: self.next,
            slot,
            doorbell: line::eventfd()?,
            kept: false,
        };
        self.next += 1;
        self.unsaved = true;
        let number = helper.number;
        self.helpers.insert(region.into(), helper);
        let joined = self.iter().filter(|one| one.entry(region).is_some());
        for to in joined.map(|one| one.number).collect::<Vec<_>>() {
            self.introduce_one(to, number);
        }
        Ok(())
    }

    /// Forgets the helper of a region.
    pub fn remove_helper(&mut self, region: &str) {
        if let Some(helper) = self.helpers.remove(region) {
            for connection in self.all.values_mut() {
                connection.line.forget(helper.number);
            }
            self.gone_helpers.push(helper.number);
            self.unsaved = true;
        }
    }

    /// Forgets the helpers of other regions.
    pub fn retain_helpers(&mut self, is_kept: impl Fn(&str) -> bool) {
        let regions: Vec<String> = self.helpers.keys().cloned().collect();
        for region in regions.iter().filter(|region| !is_kept(region)) {
            self.remove_helper(region);
        }
    }

    /// The doorbell of the helper of a region.
    pub fn helper_doorbell(&self, region: &str) -> Option<BorrowedFd<'_>> {
        let helper = self.helpers.get(region)?;
        Some(helper.doorbell.as_fd())
    }

    /// A copy of the doorbell of a connection or a helper.
    fn doorbell_of(&self, number: u64) -> Option<io::Result<OwnedFd>> {
        if let Some(connection) = self.all.get(&number) {
            return Some(connection.line.doorbell());
        }
        let mut helpers = self.helpers.values();
        let helper = helpers.find(|one| one.number == number)?;
        Some(helper.doorbell.try_clone())
    }

    /// Makes the doorbell of `about` known to the QEMU of `to`. True if it is, or
    /// if that QEMU does not read: others need not wait for it.
    fn introduce_one(&mut self, to: u64, about: u64) -> bool {
        let Some(doorbell) = self.doorbell_of(about) else {
            return true;
        };
        let Some(connection) = self.all.get_mut(&to) else {
            return true;
        };
        if connection.line.knows(about) {
            return true;
        }
        let lags = connection.line.lags(JOIN_WAIT);
        self.unsaved = true;
        match doorbell.and_then(|doorbell| connection.line.introduce(about, doorbell.as_fd())) {
            Ok(true) => {}
            Ok(false) => {
                if connection.may_warn() {
                    warn!(
                        vm = %connection.label(),
                        "has seen {} VMs come and go, and can learn of no more: restart it",
                        ivshmem_server::ID_MAX
                    );
                }
            }
            Err(error) => error!(vm = %connection.label(), "cannot introduce a VM: {error:#}"),
        }
        lags
    }

    /// Keeps why a request was refused. Logs it, unless this guest has caused a warning just
    /// now, or many others have.
    pub fn hear_refused(&mut self, number: u64, asked: &Asked, region: Option<&str>, why: &str) {
        if let Some(connection) = self.all.get_mut(&number) {
            connection.refused = Some((asked.request.clone(), why.into()));
            if connection.may_warn() && self.troubles.may() {
                warn!(vm = %connection.label(), region, "refused: {why}");
            }
        }
    }

    /// Takes a guest out of the regions that its request replaces: that of the
    /// request's entry and, if it joins `joined`, that of any other entry for it.
    pub fn replace(&mut self, number: u64, index: usize, joined: Option<&str>) -> Vec<Effect> {
        let Some(connection) = self.all.get_mut(&number) else {
            return Vec::new();
        };
        leave(connection, |n, region| n == index || Some(region) == joined)
    }

    /// The CID that the configuration gives the VM of a guest which joins. Nothing: none, or
    /// another VM has it, or the guest's module is of a release that takes none.
    ///
    /// It is decided as the guest joins its first region, so that it has the same in all. A VM
    /// keeps it while its QEMU is connected: a guest that has left can still write that it is
    /// there, so no other one may have its CID before.
    pub fn give_cid(&mut self, number: u64, request: &Request, config: &Config) -> Option<u32> {
        if request.minor < abi::MINOR_CIDS {
            return None;
        }
        let connection = self.all.get(&number)?;
        if let Some(given) = &connection.given {
            return (given.vm == request.vm).then_some(given.cid);
        }
        let cid = config
            .given_cid(request.vm)
            .filter(|_| !connection.is_member())?;
        let has = |one: &&Connection| {
            let given = one.given.as_ref();
            given.is_some_and(|given| given.cid == cid && given.vm != request.vm)
                && !one.line.closed()
        };
        let label = connection.label();
        let holder = self.all.values().find(has).map(Connection::label);
        if let Some(holder) = holder {
            if self.troubles.may() {
                warn!(
                    vm = %label,
                    cid,
                    holder = %holder,
                    "another VM has this CID till its QEMU ends: shut that one down, then load \
                     the module in this one again"
                );
            }
            return None;
        }
        let connection = self.all.get_mut(&number)?;
        connection.given = Some(Given {
            vm: request.vm,
            cid,
        });
        self.unsaved = true;
        Some(cid)
    }

    /// Enters the answer to a request.
    pub fn answer(&mut self, number: u64, asked: &Asked, status: u32, place: Option<Place>) {
        let Some(connection) = self.all.get_mut(&number) else {
            return;
        };
        let request = &asked.request;
        if status == abi::STATUS_OK {
            connection.hear_granted(request);
        }
        let says_hello = request.command == abi::COMMAND_HELLO && status == abi::STATUS_OK;
        if says_hello || place.is_some() {
            connection.uuid = Some(request.vm);
            connection.name = Some(request.name.clone());
            self.moved = true;
        }
        let mut entry = Entry {
            serial: request.serial,
            status,
            ..Entry::default()
        };
        if let Some(place) = place {
            entry.region = Some(place.region);
            entry.slot = place.slot as u32;
            entry.generation = place.generation;
        }
        connection.entries[asked.index] = entry;
        connection.waiting[asked.index] = None;
        connection.requests += 1;
        self.unsaved = true;
    }

    // -- Outward, in the order of the loop's commit -------------------------------

    /// Whether what a later daemon must know has changed.
    pub fn is_unsaved(&self) -> bool {
        self.unsaved
    }

    /// Has the holder keep the descriptors of new connections.
    pub fn keep(&mut self, holder: &Holder) -> io::Result<()> {
        while let Some(number) = self.fresh.first().copied() {
            if let Some(connection) = self.all.get(&number) {
                connection.keep(holder)?;
            }
            self.fresh.remove(&number);
        }
        let fresh = self.helpers.values_mut().filter(|one| !one.kept);
        for helper in fresh {
            holder.put(&doorbell_name(helper.number), helper.doorbell.as_fd())?;
            helper.kept = true;
        }
        Ok(())
    }

    /// Has the holder keep nothing yet: it is another one.
    pub fn keep_again(&mut self) {
        self.fresh = self.numbers().into_iter().collect();
        self.gone.clear();
        self.gone_helpers.clear();
        for helper in self.helpers.values_mut() {
            helper.kept = false;
        }
    }

    /// What a later daemon must know of them.
    pub fn saved(&self) -> Vec<SavedConnection> {
        self.iter().map(Connection::saved).collect()
    }

    /// What a later daemon must know of the helpers' doorbells.
    pub fn saved_doorbells(&self) -> Vec<SavedDoorbell> {
        let doorbell = |(region, one): (&String, &Helper)| SavedDoorbell {
            region: region.clone(),
            slot: one.slot,
            number: one.number,
        };
        self.helpers.iter().map(doorbell).collect()
    }

    /// The holder has the state: it needs no descriptors of connections that are over.
    pub fn on_saved(&mut self, holder: &Holder) {
        self.unsaved = false;
        for number in std::mem::take(&mut self.gone) {
            Connection::forget(number, holder);
        }
        for number in self.gone_helpers.drain(..) {
            // Where it fails, the holder has ended, and has closed it.
            let _ = holder.del(&doorbell_name(number));
        }
    }

    /// Greets the QEMUs that wait for it. Nothing if there were none.
    pub fn greet(&mut self, poller: &Poller) -> Option<Vec<Effect>> {
        let mut greeted = false;
        let mut lost = Vec::new();
        let all = self.all.iter_mut();
        for (number, connection) in all.filter(|(_, connection)| !connection.line.greeted) {
            greeted = true;
            if let Err(error) = connection.greet() {
                debug!(vm = %connection.label(), "cannot be greeted: {error:#}");
                lost.push(*number);
            }
        }
        let ends = lost.into_iter().map(|number| self.end(number, poller));
        let effects = ends.flatten().collect();
        greeted.then_some(effects)
    }

    /// Whether candidates may have changed since the last call.
    pub fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    /// Writes the CID of the one other member of each region, before the regions' tables have
    /// those members. `cid` returns that of a VM's peer in a region; nothing: the table stays as
    /// it is.
    pub fn write_peer_cids(&self, cid: impl Fn(&str, Uuid) -> Option<u32>) {
        for one in self.iter() {
            for (index, entry) in one.entries.iter().enumerate() {
                let place = entry.region.as_deref().zip(one.uuid);
                if let Some(cid) = place.and_then(|(region, vm)| cid(region, vm)) {
                    one.page.write_peer_cid(index, cid);
                }
            }
        }
    }

    /// Writes the replies that follow from the picture. Returns the connections
    /// that are to be rung: those with a new reply, and the members of regions with a
    /// `changed` header. `key` returns the first bytes of a region's key, `given` the CID that
    /// a VM has been given as it joined a region.
    pub fn write_replies(
        &mut self,
        changed: &[String],
        config: &Config,
        key: impl Fn(&str) -> [u8; 8],
        given: impl Fn(&str, Uuid) -> Option<u32>,
    ) -> BTreeSet<u64> {
        let mut rings = BTreeSet::new();
        for number in self.numbers() {
            let replies = self.replies(&self.all[&number], config, &key, &given);
            let Some(connection) = self.all.get_mut(&number) else {
                continue;
            };
            if changed.iter().any(|name| connection.entry(name).is_some()) {
                rings.insert(number);
            }
            for (index, reply) in replies.into_iter().enumerate() {
                if reply.serial != 0 && connection.written[index].as_ref() != Some(&reply) {
                    connection.page.write(index, &reply);
                    connection.written[index] = Some(reply);
                    rings.insert(number);
                }
            }
        }
        rings
    }

    fn replies(
        &self,
        connection: &Connection,
        config: &Config,
        key: impl Fn(&str) -> [u8; 8],
        given: impl Fn(&str, Uuid) -> Option<u32>,
    ) -> [Reply; abi::PAGE_ENTRIES] {
        let own = connection.uuid.and_then(|vm| {
            let mut regions = connection.regions();
            regions.find_map(|region| given(region, vm))
        });
        connection.entries.each_ref().map(|entry| {
            let mut doorbells = [0; abi::SLOTS_MAX];
            let region = entry.region.as_deref();
            let helper = region.and_then(|region| self.helpers.get(region));
            if let Some(helper) = helper {
                let peer = connection.line.peers.get(&helper.number);
                doorbells[helper.slot] = peer.filter(|peer| peer.known).map_or(0, |peer| peer.id);
            }
            if let Some(region) = region {
                doorbells[HOST_SLOT] = abi::DAEMON_ID;
                let peers = connection.line.peers.iter();
                for (other, peer) in peers.filter(|(_, peer)| peer.known) {
                    if let Some(entry) = self.get(*other).and_then(|other| other.entry(region)) {
                        doorbells[entry.slot as usize] = peer.id;
                    }
                }
            }
            Reply {
                serial: entry.serial,
                status: entry.status,
                slot: entry.slot,
                generation: entry.generation,
                outsourcer: helper
                    .filter(|_| region.is_some_and(|region| region.starts_with(OUTSOURCED)))
                    .map_or(0, |helper| helper.slot as u32),
                tunnels: region.and_then(|region| config.tunnel_ports(region)),
                // For guests of releases that look at this one alone.
                peer_cid: region
                    .zip(connection.uuid)
                    .and_then(|(region, vm)| config.only_peer(region, vm))
                    .map_or(0, |peer| cid(&peer.0)),
                region_key: region.map_or([0; 8], &key),
                cid: own.unwrap_or(0),
                doorbells,
            }
        })
    }

    /// Writes a guest's candidates. True if they are others than before.
    pub fn write_candidates(&mut self, number: u64, list: &[Address]) -> bool {
        let connection = self.all.get_mut(&number);
        connection.is_some_and(|connection| connection.write_candidates(list))
    }

    /// Writes how many CPUs guests are to have online, where that is not what their pages
    /// say: another daemon's order may have come with a guest. Nothing leaves an order as it
    /// is. Returns the connections that are to be rung.
    pub fn write_cpu_orders(&self, order: impl Fn(&Connection) -> Option<u32>) -> BTreeSet<u64> {
        let mut rings = BTreeSet::new();
        for one in self.iter() {
            if let Some(order) = order(one).filter(|order| *order != one.page.cpu_order()) {
                one.page.write_cpu_order(order);
                rings.insert(one.number);
            }
        }
        rings
    }

    /// Rings guests.
    pub fn ring(&self, numbers: &BTreeSet<u64>) {
        for connection in numbers.iter().filter_map(|number| self.get(*number)) {
            if let Err(error) = connection.line.ring(&self.ringer) {
                error!(vm = %connection.label(), "cannot be rung: {error}");
            }
        }
    }

    /// What `hallway status` shows of them.
    pub fn status(&self) -> Vec<control::Connection> {
        let status = |connection: &Connection| control::Connection {
            connection: connection.number,
            pid: connection.pid,
            name: connection.name.clone(),
            uuid: connection.uuid.map(Into::into),
            regions: connection
                .entries
                .iter()
                .filter_map(|entry| entry.region.clone())
                .collect(),
            doorbells: connection.line.peers.len() - connection.line.unknown(),
            doorbells_pending: connection.line.unknown(),
            requests: connection.requests,
            throttled: connection.throttled(),
            problem: connection.strain.clone(),
            refusal: connection
                .refused
                .as_ref()
                .map(|(request, why)| control::Refusal {
                    vm: request.vm.to_string(),
                    why: why.clone(),
                }),
        };
        self.iter().map(status).collect()
    }
}

/// How many connections there is room for: each takes four descriptors here and four at
/// the holder, and a quarter of all is left for the rest.
fn room() -> usize {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
    usize::try_from(limit / 16 * 3).unwrap_or(usize::MAX)
}

/// The first few of some numbers, in order, that come after `last`, and then around.
fn in_turn(numbers: &[u64], last: u64) -> Vec<u64> {
    let (before, after) = numbers.split_at(numbers.partition_point(|number| *number <= last));
    after.iter().chain(before).copied().take(LOOKS).collect()
}

/// Takes the guest of a connection out of the regions of some of its entries.
fn leave(connection: &mut Connection, which: impl Fn(usize, &str) -> bool) -> Vec<Effect> {
    let label = connection.label();
    let mut effects = Vec::new();
    for (index, entry) in connection.entries.iter_mut().enumerate() {
        if let Some(region) = entry.region.take_if(|region| which(index, region)) {
            effects.push(Effect::Leave {
                label: label.clone(),
                region,
                slot: entry.slot as usize,
            });
        }
    }
    effects
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_of_many_qemus_are_looked_at_in_turn_and_a_few_at_once() {
        let numbers: Vec<u64> = (1..=10).collect();
        assert_eq!(in_turn(&numbers, 0), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(in_turn(&numbers, 8), [9, 10, 1, 2, 3, 4, 5, 6]);
        assert_eq!(in_turn(&numbers[..2], 1), [2, 1]);
    }
}
