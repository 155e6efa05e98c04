// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program as a member of the region: its slice, and the guest as its peer.

use std::fs::File;
use std::io::Write;
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use anyhow::{ensure, Context, Result};
use hallway_abi::message::FEATURE_GROWTH;
use hallway_abi::{region as abi, ring};
use hallway_ring::{memory_size, Receiver, Sender};
use hallway_shm::Mapping;
use nix::fcntl::{fcntl, FcntlArg, SealFlag};

use crate::mailbox::{mailbox_at, slice_overhead, Inbox, Outbox};
use crate::memory::{is_within, Memory};
use crate::message::{Handle, Message, Offer, CARRIER};

/// Bytes of data of the ring to the guest that a connection has.
pub const RING_STREAM: u32 = 256 << 10;
/// Bytes of data of that ring of a UDP socket: the longest datagram fits, and another.
pub const RING_DATAGRAMS: u32 = 128 << 10;
/// Bytes of data of that ring where memory is short.
const RING_SMALL: u32 = 64 << 10;
/// Bytes of data of the shortest ring.
const RING_MIN: u32 = 16 << 10;

/// A part of the region. Its numbers are the daemon's, and checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// Slot of the member.
    pub slot: u32,
    /// Generation of the member.
    pub generation: u32,
    /// Position in the region.
    pub offset: u64,
    /// Size in bytes.
    pub size: u64,
}

/// The program's own place in the region.
pub struct Member {
    memory: Rc<Mapping>,
    own: Slice,
    slots: u32,
    heartbeat: u32,
}

impl Member {
    /// Takes the own slice of the region `fd` of `size` bytes, and formats it.
    pub fn join(fd: OwnedFd, size: u64, slots: u32, own: Slice) -> Result<Self> {
        let file = File::from(fd);
        let there = file.metadata().context("the region")?.len();
        ensure!(there >= size, "the region has {there} bytes, not {size}");
        ensure!(
            (2..=abi::SLOTS_MAX as u32).contains(&slots),
            "a region has no {slots} slots"
        );
        let seals = fcntl(&file, FcntlArg::F_GET_SEALS).unwrap_or(0);
        if seals & SealFlag::F_SEAL_SHRINK.bits() == 0 {
            tracing::warn!("the region's size is not sealed: QEMU can end this program");
        }
        let memory = Mapping::new(&file, usize::try_from(size)?).context("mapping the region")?;
        let member = Self {
            memory: Rc::new(memory),
            own,
            slots,
            heartbeat: 0,
        };
        member.check(&own)?;
        member.format();
        Ok(member)
    }

    fn check(&self, slice: &Slice) -> Result<()> {
        let is_good = slice.offset % 4096 == 0
            && slice.size % 4096 == 0
            && slice.slot < self.slots
            && slice.size >= slice_overhead(self.slots)
            && is_within(
                slice.offset,
                slice.size,
                abi::HEADER_SIZE as u64,
                self.memory.len() as u64,
            );
        ensure!(is_good, "no slice of the region: {slice:?}");
        Ok(())
    }

    fn base(&self) -> usize {
        self.own.offset as usize
    }

    fn format(&self) {
        let base = self.base();
        self.memory
            .write_u64(base + offset_of!(abi::Slice, magic), 0);
        for at in (8..slice_overhead(self.slots) as usize).step_by(8) {
            self.memory.write_u64(base + at, 0);
        }
        let generation = base + offset_of!(abi::Slice, generation);
        self.memory.write_u32(generation, self.own.generation);
        let magic = base + offset_of!(abi::Slice, magic);
        self.memory.write_u64(magic, abi::SLICE_MAGIC);
    }

    /// Shows that the program lives, and what it carries.
    pub fn beat(&mut self, sent: u64, received: u64, channels: u32) {
        let base = self.base();
        self.heartbeat = self.heartbeat.wrapping_add(1);
        let word = |at| base + at;
        let beat = word(offset_of!(abi::Slice, heartbeat));
        self.memory.write_u32(beat, self.heartbeat);
        // Seen from a member: what it receives from the network it sends by rings.
        let tx = word(offset_of!(abi::Slice, tx_bytes));
        self.memory.write_u64(tx, received);
        let rx = word(offset_of!(abi::Slice, rx_bytes));
        self.memory.write_u64(rx, sent);
        let count = word(offset_of!(abi::Slice, channels));
        self.memory.write_u32(count, channels);
    }

    /// Meets a peer; all ring memory of the own slice is free for it.
    pub fn meet(&self, slice: Slice, doorbell: OwnedFd) -> Result<Peer> {
        self.check(&slice)?;
        ensure!(slice.slot != self.own.slot, "the peer has the own slot");
        let apart = is_within(slice.offset, slice.size, 0, self.own.offset)
            || slice.offset >= self.own.offset + self.own.size;
        ensure!(apart, "the peer's slice is in the own one");
        let outbox = self.base() + mailbox_at(slice.slot);
        let inbox = slice.offset as usize + mailbox_at(self.own.slot);
        let (own, its) = (self.own.generation, slice.generation);
        let overhead = slice_overhead(self.slots);
        Ok(Peer {
            slice,
            base: self.own.offset,
            overhead,
            outbox: Outbox::open(self.memory.clone(), outbox, own, its),
            inbox: Inbox::open(self.memory.clone(), inbox, own, its),
            memory: self.memory.clone(),
            rings_size: self.own.size - overhead,
            rings: Memory::new(overhead, self.own.size),
            doorbell: File::from(doorbell),
            is_due: false,
            grows: false,
        })
    }
}

/// The other member.
pub struct Peer {
    slice: Slice,
    /// Position of the own slice in the region.
    base: u64,
    overhead: u64,
    outbox: Outbox,
    inbox: Inbox,
    memory: Rc<Mapping>,
    rings: Memory,
    /// Bytes of all of it.
    rings_size: u64,
    doorbell: File,
    /// The doorbell is to be written.
    is_due: bool,
    /// It supports rings that grow.
    pub grows: bool,
}

impl Peer {
    /// Whether this is its part of the region.
    pub fn has(&self, slice: &Slice) -> bool {
        self.slice == *slice
    }

    /// Sends a message; [`Peer::flush`] rings.
    pub fn send(&mut self, message: &Message) {
        self.outbox.send(message);
        self.is_due = true;
    }

    /// Sets the pending bit of an endpoint of the peer; [`Peer::flush`] rings.
    pub fn set_pending(&mut self, endpoint: u32) {
        self.outbox.set_pending(endpoint);
        self.is_due = true;
    }

    /// Sends what has waited, and writes the doorbell once for all that is new.
    pub fn flush(&mut self) {
        if self.outbox.is_waiting() {
            self.is_due |= self.outbox.send_waiting();
        }
        if std::mem::take(&mut self.is_due) {
            // The guest's counter is full only if it was not read for long: it is rung.
            let _ = self.doorbell.write(&1_u64.to_ne_bytes());
        }
    }

    /// Whether messages wait for space in the mailbox.
    pub fn is_waiting(&self) -> bool {
        self.outbox.is_waiting()
    }

    /// Takes the pending bits of endpoints below `end`, and the messages.
    pub fn look(&mut self, end: u32, mut rung: impl FnMut(u32)) -> Vec<Message> {
        let mut has_messages = false;
        self.inbox.take_pending(end, |endpoint| match endpoint {
            0 => has_messages = true,
            _ => rung(endpoint),
        });
        if has_messages {
            self.inbox.receive()
        } else {
            Vec::new()
        }
    }

    /// Takes messages that came before the peer was met, whatever the pending bits say.
    pub fn receive(&mut self) -> Vec<Message> {
        self.inbox.receive()
    }

    /// How often the peer broke the rules of a mailbox. Not to read it is one of them.
    pub fn count_corrupt(&self) -> u64 {
        self.inbox.corrupt + self.outbox.corrupt + self.outbox.lost
    }

    /// Makes a ring to the peer, of `most` bytes, or fewer. Nothing: there is no memory. A
    /// large one leaves enough for `others` that may follow, but at least half of the memory
    /// is for large ones.
    pub fn make_ring(&mut self, most: u32, others: u32) -> Option<(Sender, Handle)> {
        let sizes = [most, RING_SMALL, RING_MIN];
        let kept = self.count_kept(others);
        sizes.into_iter().find_map(|size| {
            let needed = memory_size(size) as u64 + kept;
            let is_good = size == RING_MIN || self.rings.count_free() >= needed;
            is_good.then(|| self.make_ring_of(size)).flatten()
        })
    }

    /// Makes a ring of a connection: a short one at first, if the peer supports rings that grow.
    pub fn make_stream_ring(&mut self, others: u32) -> Option<(Sender, Handle)> {
        match self.grows {
            true => self.make_ring_of(RING_MIN),
            false => self.make_ring(RING_STREAM, others),
        }
    }

    /// Bytes that a large ring leaves for others.
    fn count_kept(&self, others: u32) -> u64 {
        let kept = u64::from(others) * memory_size(RING_MIN) as u64;
        kept.min(self.rings_size / 2)
    }

    /// Has a short ring of a connection grow, as [`Peer::make_ring`] would make it. Returns the
    /// memory that it has besides. Nothing: there is none, or the ring is not short.
    pub fn grow_ring(&mut self, ring: &mut Sender, others: u32) -> Option<Handle> {
        if ring.size() > RING_MIN || ring.is_ended() || ring.is_broken() {
            return None;
        }
        let kept = self.count_kept(others);
        let (size, offset) = [RING_STREAM, RING_SMALL].into_iter().find_map(|size| {
            let is_good = self.rings.count_free() >= u64::from(size) + kept;
            let offset = is_good.then(|| self.rings.alloc(size.into())).flatten()?;
            Some((size, offset))
        })?;
        let handle = Handle {
            offset,
            size: size.into(),
        };
        ring.grow((self.base + offset) as usize, size, (offset, handle.size));
        Some(handle)
    }

    /// Makes a ring of this many bytes of data.
    pub fn make_ring_of(&mut self, size: u32) -> Option<(Sender, Handle)> {
        let length = memory_size(size) as u64;
        let offset = self.rings.alloc(length)?;
        let at = (self.base + offset) as usize;
        let sender = Sender::create(self.memory.clone(), at, size, CARRIER);
        let handle = Handle {
            offset,
            size: length,
        };
        Some((sender, handle))
    }

    /// Gives a ring's memory back: the peer does not touch it any more.
    pub fn free_ring(&mut self, handle: Handle) {
        self.rings.free(handle.offset, handle.size);
    }

    /// Takes up a ring that the peer has offered. Nothing: there is none.
    pub fn take_up(&self, handle: Handle, size: u32) -> Option<Receiver> {
        let is_good = hallway_ring::is_valid_size(size)
            && handle.size == u64::from(size) + ring::RING_HEADER as u64
            && handle.offset % 4096 == 0
            && is_within(handle.offset, handle.size, self.overhead, self.slice.size);
        if !is_good {
            return None;
        }
        let at = (self.slice.offset + handle.offset) as usize;
        Receiver::take_up(self.memory.clone(), at, size, CARRIER)
    }

    /// The same for a ring of a connection: if its writer knows how, it may grow.
    pub fn take_up_stream(&self, offer: &Offer) -> Option<Receiver> {
        let mut ring = self.take_up(offer.handle, offer.ring_size)?;
        if offer.features & FEATURE_GROWTH != 0 {
            ring.allow_growth(self.slice.offset as usize, self.overhead..self.slice.size);
        }
        Some(ring)
    }
}
