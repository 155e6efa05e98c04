// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Both ends of a ring in memory that a hostile peer writes at the same time
//! (`abi/hallway/ring.h`).
//!
//! An end keeps its own index and geometry privately. It loads each word of the peer
//! once, and bounds the copy: an index only moves forward, and never further than the
//! ring's size past the other. An impossible word breaks the end, for ever: the caller
//! resets the connection. The bytes themselves are not checked.
//!
//! The ends here have no TCP beneath them: the start mark is set from the beginning, and
//! the end mark is the sender's FIN. A receiver may truncate where nothing will be read any
//! more: the sender then need not wait for DONE to know.
//!
//! A ring may grow once: its later bytes lie in an area, other memory of the sender's.
//! Positions go on.
//!
//! # Bytes
//!
//! An end hands out [`Runs`]: addresses and lengths of at most two runs of bytes. The
//! peer may change these bytes at any time, so no Rust reference to them may exist:
//! they are for system calls such as `recvmsg` and `sendmsg`, or for volatile copies.
//!
//! # Order
//!
//! A sleeper stores the position that it waits for, issues a full barrier, and looks
//! again. The other side stores its index, issues a full barrier, and loads that
//! position. One of the two sees the other.

mod options;
mod receiver;
mod sender;

pub use receiver::Receiver;
pub use sender::Sender;

use std::mem::offset_of;

use hallway_abi::ring as abi;

const HEAD: usize = offset_of!(abi::Ring, head);
const TAIL_EVENT: usize = offset_of!(abi::Ring, tail_event);
const TAIL: usize = offset_of!(abi::Ring, tail);
const HEAD_EVENT: usize = offset_of!(abi::Ring, head_event);
const MAGIC: usize = offset_of!(abi::Ring, magic);
const SIZE: usize = offset_of!(abi::Ring, size);
const CARRIER: usize = offset_of!(abi::Ring, carrier);
const START: usize = offset_of!(abi::Ring, start);
const END: usize = offset_of!(abi::Ring, end);
const GROWN: usize = offset_of!(abi::Ring, grown);
const AREA_SIZE: usize = offset_of!(abi::Ring, area_size);
const AREA: usize = offset_of!(abi::Ring, area);

/// At most two runs of bytes in a ring, in order: the second one begins where the data
/// begins. A run without bytes is the last.
#[derive(Debug, Clone, Copy)]
pub struct Runs(pub [(*mut u8, usize); 2]);

impl Runs {
    /// Number of bytes in both.
    pub fn len(&self) -> usize {
        self.0[0].1 + self.0[1].1
    }

    /// The runs of a part. Panics if there are fewer bytes.
    pub fn part(&self, offset: usize, length: usize) -> Self {
        assert!(offset <= self.len() && length <= self.len() - offset);
        let [(first, first_length), (second, _)] = self.0;
        let skipped = offset.min(first_length);
        let taken = length.min(first_length - skipped);
        Self([
            (first.wrapping_add(skipped), taken),
            (second.wrapping_add(offset - skipped), length - taken),
        ])
    }

    fn bytes(&self) -> impl Iterator<Item = *mut u8> + '_ {
        let run =
            |(base, length): (*mut u8, usize)| (0..length).map(move |at| base.wrapping_add(at));
        self.0.into_iter().flat_map(run)
    }

    /// Copies the bytes. `to` has as many.
    pub fn read(&self, to: &mut [u8]) {
        assert!(to.len() == self.len());
        for (byte, at) in to.iter_mut().zip(self.bytes()) {
            // SAFETY: the runs lie in a mapping that the ring's end keeps; each byte is
            // loaded once.
            *byte = unsafe { at.read_volatile() };
        }
    }

    /// Overwrites the bytes, which are free ones of the own ring. `from` has as many.
    pub fn write(&self, from: &[u8]) {
        assert!(from.len() == self.len());
        for (byte, at) in from.iter().zip(self.bytes()) {
            // SAFETY: as in `read`; no reference to the byte exists.
            unsafe { at.write_volatile(*byte) };
        }
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where bytes of a ring lie, and how many: checked once, and never read again.
#[derive(Clone, Copy)]
struct Data {
    at: usize,
    size: u32,
}

/// Where a ring lies. The data is that which comes with the head.
struct Geometry {
    memory: std::rc::Rc<hallway_shm::Mapping>,
    at: usize,
    data: Data,
}

impl Geometry {
    /// Panics outside the mapping, or with an impossible size: the caller has checked
    /// what a peer named.
    fn new(memory: std::rc::Rc<hallway_shm::Mapping>, at: usize, size: u32) -> Self {
        memory.address(at, abi::RING_HEADER);
        let mut geometry = Self {
            memory,
            at,
            data: Data { at, size },
        };
        geometry.data = geometry.data(at + abi::RING_HEADER, size);
        geometry
    }

    /// Data at another place of the mapping. Panics as `new` does.
    fn data(&self, at: usize, size: u32) -> Data {
        assert!(is_valid_size(size), "{size} is no size of a ring");
        assert!(at % 8 == 0, "misaligned data at {at}");
        self.memory.address(at, size as usize);
        Data { at, size }
    }

    fn runs(&self, data: Data, position: u64, length: u32) -> Runs {
        let at = position as u32 & (data.size - 1);
        let first = length.min(data.size - at);
        let run = |at: u32, length: u32| {
            let length = length as usize;
            (self.memory.address(data.at + at as usize, length), length)
        };
        Runs([run(at, first), run(0, length - first)])
    }
}

/// Whether a ring can have this many bytes of data.
pub fn is_valid_size(size: u32) -> bool {
    (abi::RING_MIN..=abi::RING_MAX).contains(&size) && size.is_power_of_two()
}

/// Bytes of memory that a ring of this many bytes of data takes.
pub fn memory_size(size: u32) -> usize {
    abi::RING_HEADER + size as usize
}

/// Whether the step of an index from `old` to `new` passes the position `event`.
fn passes(event: u64, new: u64, old: u64) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
mod tests;
