// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A region that is served, and how its members do.

use std::time::{Duration, Instant};

use hallway_control::{self as control, Liveness};
use hallway_membership::{printable, slice, Region, HOST_SLOT};
use tracing::warn;

/// A member whose heartbeat stands still that long is silent: as peers see it,
/// kmod/transport/ivshmem.c.
const SILENT: Duration = Duration::from_secs(3);
/// Between two log lines about scribbles on one region.
const SCRIBBLE_LOG: Duration = Duration::from_secs(10);

/// A member's heartbeat, as last seen.
#[derive(Clone, Copy)]
pub(super) struct Beat {
    generation: u32,
    value: u32,
    since: Instant,
}

pub(super) struct Served {
    pub name: String,
    pub region: Region,
    pub beats: Vec<Option<Beat>>,
    /// The header has changed, and the members do not know yet.
    pub changed: bool,
    scribble_logged: Option<Instant>,
}

impl Served {
    pub fn new(name: String, region: Region) -> Self {
        let beats = vec![None; region.geometry().slots() as usize];
        Self {
            name,
            region,
            beats,
            changed: true,
            scribble_logged: None,
        }
    }

    /// Puts back what a member wrote on the header.
    pub fn guard(&mut self) {
        if self.changed || !self.region.guard() {
            return;
        }
        let due = self
            .scribble_logged
            .is_none_or(|at| at.elapsed() >= SCRIBBLE_LOG);
        if due {
            self.scribble_logged = Some(Instant::now());
            warn!(
                region = self.name,
                times = self.region.repairs(),
                "a member wrote on the region's header; it was put back"
            );
        }
    }

    /// Looks at the members' heartbeats.
    pub fn listen(&mut self, now: Instant) {
        let region = &self.region;
        for (slot, member) in region.header.members.iter().enumerate() {
            let base = region.geometry().slice_offset(slot) as usize;
            let seen = slice::read(region.memory(), base)
                .filter(|seen| member.present && seen.generation == member.generation);
            let beat = &mut self.beats[slot];
            *beat = seen.map(|seen| match *beat {
                Some(old) if old.generation == seen.generation && old.value == seen.heartbeat => {
                    old
                }
                _ => Beat {
                    generation: seen.generation,
                    value: seen.heartbeat,
                    since: now,
                },
            });
        }
    }

    pub fn status(&self) -> control::Region {
        let (header, geometry) = (&self.region.header, self.region.geometry());
        let members = header
            .members
            .iter()
            .enumerate()
            .filter(|(_, m)| m.generation != 0);
        control::Region {
            name: self.name.clone(),
            uuid: header.uuid.to_string(),
            file: self.region.path.clone(),
            size: geometry.size(),
            slots: geometry.slots(),
            slice_size: geometry.slice_size(),
            repairs: self.region.repairs(),
            members: members.map(|(slot, _)| self.member(slot)).collect(),
        }
    }

    fn member(&self, slot: usize) -> control::Member {
        let member = &self.region.header.members[slot];
        let base = self.region.geometry().slice_offset(slot) as usize;
        let seen = slice::read(self.region.memory(), base)
            .filter(|seen| seen.generation == member.generation);
        let silent = self.beats[slot]
            .filter(|beat| beat.generation == member.generation)
            .map(|beat| beat.since.elapsed());
        let liveness = match (member.present, &seen) {
            (false, _) => Liveness::Absent,
            (true, None) => Liveness::Joining,
            (true, Some(_)) if silent.is_some_and(|silent| silent > SILENT) => Liveness::Silent,
            (true, Some(_)) => Liveness::Alive,
        };
        let seen = seen.unwrap_or_default();
        control::Member {
            slot,
            host: slot == HOST_SLOT,
            name: printable(member.name.as_bytes()),
            uuid: member.uuid.to_string(),
            generation: member.generation,
            liveness,
            silent_seconds: silent.map(|silent| silent.as_secs()),
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
