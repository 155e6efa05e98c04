// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One region that is served, and how its members are.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use hallway_abi::tunnel::member_cid;
use hallway_control::{self as control, Liveness};
use hallway_membership::{printable, slice, Region, Uuid, HOST_SLOT};
use hallway_qmp::Source;
use tracing::warn;

use crate::regionspec::OUTSOURCED;

/// A member whose heartbeat stands still for this long is unresponsive. Guests
/// have a limit of their own, in the module's transport.
const UNRESPONSIVE: Duration = Duration::from_secs(3);
/// Time between two log lines about what others did to one region.
const DAMAGE_LOG: Duration = Duration::from_secs(10);

/// Least time between two times that the length of a file is put back.
const MEND_REST: Duration = Duration::from_secs(1);
/// Least time between them, in times what the last one took: the loop waits while all is zeroed.
const MEND_SHARE: u32 = 50;

/// A member's heartbeat, as last seen.
#[derive(Clone, Copy)]
struct Beat {
    generation: u32,
    value: u32,
    since: Instant,
}

/// Which VMs may join a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// All: it is asked for by `--region`.
    All,
    /// Those of its group or pair.
    Configured,
    /// Those that are members: it was asked for by `--region`, and is no longer.
    Members,
    /// None: its group or pair is no longer in the configuration.
    None,
}

/// A region that is served.
pub struct Served {
    /// Its name on this host.
    pub name: String,
    /// Its memory and its private header.
    pub region: Region,
    beats: Vec<Option<Beat>>,
    /// Which VMs may join.
    pub admission: Admission,
    /// The VMs that it is made for, sorted, if it is that of a pair or of a helper.
    pub owners: Vec<Uuid>,
    /// Whether the private header has changed, and members have not been rung.
    pub changed: bool,
    damage_logged: Option<Instant>,
    /// The file is left as it is until then.
    mend_after: Option<Instant>,
}

impl Served {
    /// Begins to serve a region.
    pub fn new(name: String, region: Region, admission: Admission, owners: Vec<Uuid>) -> Self {
        let beats = vec![None; region.geometry().slots() as usize];
        Self {
            name,
            region,
            beats,
            admission,
            owners,
            changed: true,
            damage_logged: None,
            mend_after: None,
        }
    }

    /// Bytes of the region.
    pub fn size(&self) -> u64 {
        self.region.geometry().size()
    }

    /// The UUIDs of the VMs that are members.
    fn members(&self) -> impl Iterator<Item = Uuid> + '_ {
        let guests = self.region.header.members.iter().skip(HOST_SLOT + 1);
        guests
            .filter(|member| member.present)
            .map(|member| member.uuid)
    }

    /// Whether a VM is a member.
    pub fn has_member(&self, uuid: Uuid) -> bool {
        self.members().any(|member| member == uuid)
    }

    /// Whether any VM is a member.
    pub fn has_members(&self) -> bool {
        self.members().next().is_some()
    }

    /// Whether a VM is a member, or was the last one in a slot.
    pub fn had_member(&self, uuid: Uuid) -> bool {
        let mut members = self.region.header.members.iter();
        members.any(|member| member.generation != 0 && member.uuid == uuid)
    }

    /// Enters a member, and forgets the heartbeat of the slot's last one. Returns
    /// the member's generation.
    pub fn enter(&mut self, slot: usize, uuid: Uuid, name: &str, cid: Option<u32>) -> u32 {
        self.changed = true;
        self.beats[slot] = None;
        self.region.enter(slot, uuid, name, cid)
    }

    /// Marks a member absent.
    pub fn leave(&mut self, slot: usize) {
        self.changed = true;
        self.region.leave(slot);
    }

    /// Where QEMU finds the memory.
    pub fn source(&self) -> io::Result<Source> {
        Ok(match (self.region.descriptor(), self.region.file()) {
            (Some(memory), _) => Source::Descriptor {
                memory: memory.try_clone_to_owned()?,
                mark: self.region.header.uuid.to_string(),
            },
            (None, file) => Source::File(file.unwrap_or(Path::new("")).into()),
        })
    }

    /// Puts back what others did to the file, and what a member wrote on the header.
    pub fn guard(&mut self) {
        if !self.region.is_whole() {
            if self.mend_after.is_some_and(|at| Instant::now() < at) {
                return;
            }
            self.mend();
        }
        if !self.changed && self.region.guard() {
            let times = self.region.repairs();
            self.warn(&format!(
                "a member wrote on the region's header, {times} times now; it was put back"
            ));
        }
    }

    /// Puts back the length of the file.
    fn mend(&mut self) {
        let begun = Instant::now();
        match self.region.mend() {
            Ok(_) => self.warn(
                "another process changed the length of the region's file; it was put back. VMs \
                 that used it meanwhile are lost",
            ),
            Err(error) => self.warn(&format!(
                "another process changed the length of the region's file: {error}"
            )),
        }
        let rest = MEND_REST.max(begun.elapsed() * MEND_SHARE);
        self.mend_after = Some(Instant::now() + rest);
    }

    /// Logs what others did, unless that was done just now.
    fn warn(&mut self, what: &str) {
        let due = self
            .damage_logged
            .is_none_or(|at| at.elapsed() >= DAMAGE_LOG);
        if due {
            self.damage_logged = Some(Instant::now());
            warn!(region = self.name, "{what}");
        }
    }

    /// Looks at the members' heartbeats.
    pub fn listen(&mut self, now: Instant) {
        for (slot, member) in self.region.header.members.iter().enumerate() {
            let seen = self.slice(slot).filter(|_| member.present);
            let beat = seen.map(|seen| match self.beats[slot] {
                Some(old) if old.generation == seen.generation && old.value == seen.heartbeat => {
                    old
                }
                _ => Beat {
                    generation: seen.generation,
                    value: seen.heartbeat,
                    since: now,
                },
            });
            self.beats[slot] = beat;
        }
    }

    /// What the occupant of a slot publishes in its slice. Nothing if that is of
    /// an earlier occupant.
    fn slice(&self, slot: usize) -> Option<slice::Snapshot> {
        let base = self.region.geometry().slice_offset(slot) as usize;
        let generation = self.region.header.members[slot].generation;
        slice::read(self.region.memory(), base).filter(|seen| seen.generation == generation)
    }

    /// Whether a member is drained of those that had departed at a change of the
    /// region. An absent one is.
    pub fn is_drained(&self, slot: usize, change: u32) -> bool {
        let is_member = self.region.header.members[slot].present;
        let since = |seen: slice::Snapshot| seen.drained.wrapping_sub(change) as i32;
        !is_member || self.slice(slot).is_some_and(|seen| since(seen) >= 0)
    }

    /// On how many connections and tunnels a member says that it sends.
    pub fn senders(&self, slot: usize) -> u32 {
        self.slice(slot).map_or(0, |seen| seen.senders)
    }

    /// Whether a member says that it has promoted connections.
    pub fn is_used(&self) -> bool {
        let members = self.region.header.members.iter().enumerate();
        members
            .skip(HOST_SLOT + 1)
            .filter(|(_, member)| member.present)
            .any(|(slot, _)| self.slice(slot).is_some_and(|seen| seen.channels > 0))
    }

    /// What `hallway status` shows of the region.
    pub fn status(&self) -> control::Region {
        let (header, geometry) = (&self.region.header, self.region.geometry());
        let members = header.members.iter().enumerate();
        let members = members.filter(|(_, member)| member.generation != 0);
        control::Region {
            name: self.name.clone(),
            uuid: header.uuid.to_string(),
            file: self.region.file().map(Path::to_path_buf),
            size: geometry.size(),
            slots: geometry.slots(),
            slice_size: geometry.slice_size(),
            repairs: self.region.repairs(),
            members: members.map(|(slot, _)| self.member_status(slot)).collect(),
        }
    }

    fn member_status(&self, slot: usize) -> control::Member {
        let member = &self.region.header.members[slot];
        let seen = self.slice(slot);
        let still = self.beats[slot]
            .filter(|beat| beat.generation == member.generation)
            .map(|beat| beat.since.elapsed());
        let liveness = match (member.present, &seen) {
            (false, _) => Liveness::Absent,
            (true, None) => Liveness::Joining,
            (true, Some(_)) if still.is_some_and(|still| still > UNRESPONSIVE) => {
                Liveness::Unresponsive
            }
            (true, Some(_)) => Liveness::Alive,
        };
        let seen = seen.unwrap_or_default();
        let has_cid = member.present && slot != HOST_SLOT && !self.name.starts_with(OUTSOURCED);
        control::Member {
            slot,
            host: slot == HOST_SLOT,
            name: printable(member.name.as_bytes()),
            uuid: member.uuid.to_string(),
            cid: has_cid.then(|| member_cid(member.cid.unwrap_or(0), &member.uuid.0)),
            generation: member.generation,
            liveness,
            still_seconds: still.map(|still| still.as_secs()),
            addresses: if member.present {
                seen.addresses
            } else {
                Vec::new()
            },
            tx_bytes: seen.tx_bytes,
            rx_bytes: seen.rx_bytes,
            channels: if member.present { seen.channels } else { 0 },
        }
    }
}
