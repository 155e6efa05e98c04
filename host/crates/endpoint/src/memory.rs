// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Allocates ring memory in the own slice: the first free block that is large enough.

use std::collections::BTreeMap;

/// Free blocks of a slice. All numbers are bytes; offsets are in the slice.
pub struct Memory {
    /// Offset and length; no two of them touch.
    free: BTreeMap<u64, u64>,
    left: u64,
}

/// Every block is a multiple of this.
const PAGE: u64 = 4096;

impl Memory {
    /// All from `start` to `end`, which are multiples of 4096, is free.
    pub fn new(start: u64, end: u64) -> Self {
        let free = (start < end).then_some((start, end.saturating_sub(start)));
        Self {
            free: free.into_iter().collect(),
            left: end.saturating_sub(start),
        }
    }

    /// Bytes that are free.
    pub fn count_free(&self) -> u64 {
        self.left
    }

    /// Takes a block, and returns its offset.
    pub fn alloc(&mut self, length: u64) -> Option<u64> {
        let length = length.next_multiple_of(PAGE);
        let (at, found) = self
            .free
            .iter()
            .find(|(_, free)| **free >= length)
            .map(|(at, free)| (*at, *free))?;
        self.free.remove(&at);
        if found > length {
            self.free.insert(at + length, found - length);
        }
        self.left -= length;
        Some(at)
    }

    /// Frees a block.
    pub fn free(&mut self, at: u64, length: u64) {
        let (mut at, mut length) = (at, length.next_multiple_of(PAGE));
        self.left += length;
        if let Some(after) = self.free.remove(&(at + length)) {
            length += after;
        }
        if let Some((before, free)) = self.free.range(..at).next_back().map(|(a, l)| (*a, *l)) {
            if before + free == at {
                at = before;
                length += free;
            }
        }
        self.free.insert(at, length);
    }
}

/// Whether `size` bytes at `offset` lie within `start` .. `end`. No sum of the peer's
/// numbers is formed: it could pass 2^64.
pub fn is_within(offset: u64, size: u64, start: u64, end: u64) -> bool {
    start <= end && size <= end - start && offset >= start && offset <= end - size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_taken_and_joined_again() {
        let mut memory = Memory::new(4096, 4096 * 11);
        let blocks: Vec<u64> = std::iter::from_fn(|| memory.alloc(8000)).collect();
        assert_eq!(blocks, [1, 3, 5, 7, 9].map(|n| n * 4096));
        for n in [1, 3, 0, 4, 2] {
            assert_eq!(memory.alloc(1), None);
            memory.free(blocks[n], 8000);
            assert_eq!(memory.count_free(), 8192);
            assert_eq!(memory.alloc(8192), Some(blocks[n]));
        }
        for n in [1, 3, 0, 4, 2] {
            memory.free(blocks[n], 8192);
        }
        assert_eq!(memory.alloc(40960), Some(4096));
        assert_eq!(Memory::new(4096, 4096).alloc(1), None);
        assert_eq!(Memory::new(8192, 4096).alloc(1), None);
    }

    #[test]
    fn bounds_do_not_overflow() {
        assert!(is_within(8, 8, 8, 16));
        assert!(!is_within(9, 8, 8, 16));
        assert!(!is_within(0, 8, 8, 16));
        assert!(!is_within(u64::MAX, 8, 8, 16));
        assert!(!is_within(8, u64::MAX, 8, 16));
        assert!(!is_within(8, 0, 16, 8));
    }
}
