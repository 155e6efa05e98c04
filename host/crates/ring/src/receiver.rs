// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The receiver's end.

use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{fence, Ordering};

use hallway_abi::ring as abi;
use hallway_shm::Mapping;

use crate::{
    is_valid_size, passes, Data, Geometry, Runs, AREA, AREA_SIZE, CARRIER, END, GROWN, HEAD,
    HEAD_EVENT, MAGIC, SIZE, START, TAIL, TAIL_EVENT,
};

/// The end that reads bytes.
pub struct Receiver {
    pub(crate) ring: Geometry,
    /// Where the peer's slice is in the mapping, and where in the slice an area may lie.
    slice: Option<(usize, Range<u64>)>,
    /// The area, and the first position in it.
    area: Option<(Data, u64)>,
    tail: u64,
    /// The peer's, as last seen and found possible.
    head: u64,
    ended: bool,
    /// The end mark is a reset.
    reset: bool,
    broken: bool,
    /// The last question that was answered: see `options.rs`.
    pub(crate) answered: u32,
}

impl Receiver {
    /// Takes up the ring of `size` bytes that the peer has made at `at`. Nothing: it is
    /// none, or has no start mark. Panics outside the mapping: the caller has checked
    /// where the peer says that it is.
    pub fn take_up(memory: Rc<Mapping>, at: usize, size: u32, carrier: u32) -> Option<Self> {
        let ring = Geometry::new(memory, at, size);
        let memory = &ring.memory;
        let is_good = memory.read_u32(at + MAGIC) == abi::RING_MAGIC
            && memory.read_u32(at + SIZE) == size
            && memory.read_u32(at + CARRIER) == carrier
            && memory.read_u64(at + START) == abi::MARK_SET;
        is_good.then_some(Self {
            ring,
            slice: None,
            area: None,
            tail: 0,
            head: 0,
            ended: false,
            reset: false,
            broken: false,
            answered: 0,
        })
    }

    /// The peer may have the ring grow, by an area that lies in `places` of its slice, which
    /// begins at `slice` in the mapping.
    pub fn allow_growth(&mut self, slice: usize, places: Range<u64>) {
        self.slice = Some((slice, places));
    }

    /// Number of bytes read since the ring was made.
    pub fn position(&self) -> u64 {
        self.tail
    }

    /// Whether the peer wrote what is impossible. The ring is not touched again.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Whether all bytes are read and none follows. It says what the last look found.
    pub fn is_finished(&self) -> bool {
        self.ended && !self.broken && self.head == self.tail
    }

    /// Whether the end mark is set: no byte follows those that are there.
    pub fn is_ended(&mut self) -> bool {
        self.look();
        self.ended
    }

    /// Whether the end mark is a reset of a tunnel. It says what the last look found.
    pub fn is_reset(&self) -> bool {
        self.reset
    }

    /// Reads no more: bytes after the position are never read. The sender finds the mark when
    /// it looks, unless it has set its end mark before.
    pub fn truncate(&mut self) {
        if self.broken || self.ended {
            return;
        }
        let mark = abi::MARK_TRUNCATED | (self.tail & abi::MARK_POSITION);
        if self.ring.memory.set_once_u64(self.ring.at + END, mark) == 0 {
            self.head = self.tail;
            self.ended = true;
        }
    }

    fn look(&mut self) {
        if self.broken || self.ended {
            return;
        }
        let (memory, at) = (&self.ring.memory, self.ring.at);
        // The mark first: the head that is read after it is the last one.
        let end = memory.read_u64(at + END);
        let head = memory.read_u64(at + HEAD);
        // After head: a byte that lies in the area is never looked for elsewhere.
        if !self.take_area() {
            self.broken = true;
            return;
        }
        let (first, size) = match self.area {
            Some((area, grown_at)) => (self.tail.max(grown_at), area.size),
            None => (self.tail, self.ring.data.size),
        };
        let used = head.wrapping_sub(self.head);
        let most = first + u64::from(size) - self.head;
        if (end != 0 && end & !abi::MARK_RESET != abi::MARK_SET) || used > most {
            self.broken = true;
            return;
        }
        self.head = head;
        self.ended = end != 0;
        self.reset = end & abi::MARK_RESET != 0;
    }

    /// Takes up the area, if there is one. False: an impossible one.
    fn take_area(&mut self) -> bool {
        let (Some((slice, places)), None) = (&self.slice, self.area) else {
            return true;
        };
        let (memory, at) = (&self.ring.memory, self.ring.at);
        let mark = memory.read_u64(at + GROWN);
        if mark == 0 || mark == abi::MARK_SHORT {
            return true;
        }
        let size = memory.read_u32(at + AREA_SIZE);
        let (offset, length) = (memory.read_u64(at + AREA), memory.read_u64(at + AREA + 8));
        let ahead = mark.wrapping_sub(self.head) & abi::MARK_POSITION;
        let unused = u64::from(self.ring.data.size) - (self.head - self.tail);
        let is_good = mark & !abi::MARK_POSITION == abi::MARK_SET
            && ahead <= unused
            && is_valid_size(size)
            && size > self.ring.data.size
            && length == u64::from(size)
            && offset % 4096 == 0
            && places.contains(&offset)
            && length <= places.end - offset;
        if is_good {
            let data = self.ring.data(slice + offset as usize, size);
            self.area = Some((data, self.head + ahead));
        }
        is_good
    }

    /// Counts the unread bytes; 0 also of a broken ring.
    pub fn count_used(&mut self) -> u32 {
        self.look();
        if self.broken {
            return 0;
        }
        (self.head - self.tail) as u32
    }

    /// The unread bytes, at most `max`, or fewer where the area begins. The addresses are
    /// good as long as the mapping; see the crate's head.
    pub fn used_runs(&mut self, max: u32) -> Runs {
        let length = self.count_used().min(max);
        match self.area {
            Some((area, grown_at)) if self.tail >= grown_at => {
                self.ring.runs(area, self.tail, length)
            }
            Some((_, grown_at)) => {
                let before = (grown_at - self.tail) as u32;
                self.ring
                    .runs(self.ring.data, self.tail, length.min(before))
            }
            None => self.ring.runs(self.ring.data, self.tail, length),
        }
    }

    /// Gives the first `count` unread bytes back. True: ring the peer.
    /// Panics if there were not as many: the caller has counted them.
    pub fn consume(&mut self, count: u32) -> bool {
        if self.broken {
            return false;
        }
        let old = self.tail;
        assert!(
            u64::from(count) <= self.head - old,
            "no {count} bytes were there"
        );
        self.tail += u64::from(count);
        let (memory, at) = (&self.ring.memory, self.ring.at);
        memory.write_u64(at + TAIL, self.tail);
        fence(Ordering::SeqCst);
        passes(memory.read_u64(at + TAIL_EVENT), self.tail, old)
    }

    /// Asks for a doorbell at the next byte. True: don't sleep, there are bytes, or
    /// none follows, or the ring is broken.
    pub fn arm(&mut self) -> bool {
        if self.has_news() {
            return true;
        }
        self.ring
            .memory
            .write_u64(self.ring.at + HEAD_EVENT, self.tail);
        fence(Ordering::SeqCst);
        self.has_news()
    }

    /// Whether there are bytes, or none follows, or the ring is broken.
    pub fn has_news(&mut self) -> bool {
        self.count_used() > 0 || self.ended || self.broken
    }
}
