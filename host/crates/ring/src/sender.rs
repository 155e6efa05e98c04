// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sender's end.

use std::rc::Rc;
use std::sync::atomic::{fence, Ordering};

use hallway_abi::ring as abi;
use hallway_shm::Mapping;

use crate::{
    passes, Data, Geometry, Runs, AREA, AREA_SIZE, CARRIER, END, GROWN, HEAD, HEAD_EVENT, MAGIC,
    SIZE, START, TAIL, TAIL_EVENT,
};

/// The end that writes bytes.
pub struct Sender {
    ring: Geometry,
    /// Where the next bytes go.
    data: Data,
    /// The bytes from here on lie there.
    grown_at: u64,
    /// The peer knows that there was no memory to grow.
    short: bool,
    head: u64,
    /// The peer's, as last seen and found possible.
    tail: u64,
    ended: bool,
    broken: bool,
}

impl Sender {
    /// Makes a fresh ring of `size` bytes at `at`, with the start mark set. The memory
    /// is the caller's, and no other ring is there. Panics outside the mapping.
    pub fn create(memory: Rc<Mapping>, at: usize, size: u32, carrier: u32) -> Self {
        let ring = Geometry::new(memory, at, size);
        for word in (0..abi::RING_HEADER).step_by(8) {
            ring.memory.write_u64(at + word, 0);
        }
        ring.memory.write_u32(at + SIZE, size);
        ring.memory.write_u32(at + CARRIER, carrier);
        ring.memory.write_u64(at + START, abi::MARK_SET);
        ring.memory.write_u32(at + MAGIC, abi::RING_MAGIC);
        Self {
            data: ring.data,
            ring,
            grown_at: 0,
            short: false,
            head: 0,
            tail: 0,
            ended: false,
            broken: false,
        }
    }

    /// Bytes of data that the ring holds.
    pub fn size(&self) -> u32 {
        self.data.size
    }

    /// Has the next bytes go to the area of `size` bytes at `at`, more than the ring had.
    /// The memory is the caller's, as the ring's is, until that is freed; `handle` is what the
    /// peer finds it by: offset in the slice, and size. Once, if the peer knows how. Panics
    /// outside the mapping.
    pub fn grow(&mut self, at: usize, size: u32, handle: (u64, u64)) {
        if self.broken || self.ended {
            return;
        }
        let data = self.ring.data(at, size);
        assert!(size > self.data.size, "it has {} bytes", self.data.size);
        (self.data, self.grown_at) = (data, self.head);
        let (memory, ring) = (&self.ring.memory, self.ring.at);
        memory.write_u64(ring + AREA, handle.0);
        memory.write_u64(ring + AREA + 8, handle.1);
        memory.write_u32(ring + AREA_SIZE, size);
        let mark = abi::MARK_SET | self.head & abi::MARK_POSITION;
        memory.write_u64(ring + GROWN, mark);
    }

    /// Says that there is no memory for it to grow now. True: ring the peer, which may wait
    /// for more bytes than it holds.
    pub fn set_short(&mut self) -> bool {
        if self.broken || self.ended || std::mem::replace(&mut self.short, true) {
            return false;
        }
        let at = self.ring.at + GROWN;
        self.ring.memory.write_u64(at, abi::MARK_SHORT);
        true
    }

    /// Number of bytes written since the ring was made.
    pub fn position(&self) -> u64 {
        self.head
    }

    /// Whether the peer wrote what is impossible. The ring is not touched again.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Whether the end mark is set.
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    fn look(&mut self) {
        if self.broken {
            return;
        }
        let tail = self.ring.memory.read_u64(self.ring.at + TAIL);
        if tail.wrapping_sub(self.tail) > self.head - self.tail {
            self.broken = true;
        } else {
            self.tail = tail;
        }
    }

    /// Counts the free bytes; 0 also of a broken ring.
    pub fn count_space(&mut self) -> u32 {
        self.look();
        if self.broken {
            return 0;
        }
        self.data.size - (self.head - self.tail.max(self.grown_at)) as u32
    }

    /// The free bytes, at most `max`, to be filled from the first one on. The addresses
    /// are good as long as the mapping; see the crate's head.
    pub fn free_runs(&mut self, max: u32) -> Runs {
        let length = self.count_space().min(max);
        self.ring.runs(self.data, self.head, length)
    }

    /// Publishes the first `count` of the free bytes. True: ring the peer.
    /// Panics if there were not as many: the caller has counted them.
    pub fn publish(&mut self, count: u32) -> bool {
        if self.broken || self.ended {
            return false;
        }
        let old = self.head;
        let taken = old - self.tail.max(self.grown_at);
        assert!(
            u64::from(count) <= u64::from(self.data.size) - taken,
            "no space for {count} bytes"
        );
        self.head += u64::from(count);
        let (memory, at) = (&self.ring.memory, self.ring.at);
        memory.write_u64(at + HEAD, self.head);
        fence(Ordering::SeqCst);
        passes(memory.read_u64(at + HEAD_EVENT), self.head, old)
    }

    /// Asks for a doorbell once `want` bytes are free, unless `least` are free now.
    /// True: don't sleep, they are, or the ring is broken.
    pub fn arm(&mut self, least: u32, want: u32) -> bool {
        if self.count_space() >= least || self.broken {
            return true;
        }
        let want = want.clamp(least, self.data.size);
        // As many are free when tail passes this position.
        let event = (self.head + u64::from(want))
            .wrapping_sub(u64::from(self.data.size))
            .wrapping_sub(1);
        self.ring.memory.write_u64(self.ring.at + TAIL_EVENT, event);
        fence(Ordering::SeqCst);
        self.count_space() >= least || self.broken
    }

    /// Sets the end mark: no byte follows. True: ring the peer.
    pub fn end(&mut self) -> bool {
        self.set_end(abi::MARK_SET)
    }

    /// Sets the end mark that resets a tunnel. True: ring the peer.
    pub fn reset(&mut self) -> bool {
        self.set_end(abi::MARK_SET | abi::MARK_RESET)
    }

    fn set_end(&mut self, mark: u64) -> bool {
        if self.ended || self.broken {
            return false;
        }
        self.ended = true;
        let (memory, at) = (&self.ring.memory, self.ring.at);
        self.broken = memory.set_once_u64(at + END, mark) != 0;
        !self.broken
    }

    /// The peer says that it has read the bytes below `position`, and reads no more.
    /// Returns the number of bytes that it leaves; nothing: that position is impossible.
    pub fn finish(&mut self, position: u64) -> Option<u64> {
        if self.broken || position.wrapping_sub(self.tail) > self.head - self.tail {
            self.broken = true;
            return None;
        }
        self.tail = position;
        Some(self.head - position)
    }
}
