// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bounds for lines of the log that others can cause without end.

/// How many lines of one kind a second may have.
pub struct Lines {
    max: usize,
    wanted: usize,
}

impl Lines {
    /// Makes a limit of `max` lines a second.
    pub fn new(max: usize) -> Self {
        Self { max, wanted: 0 }
    }

    /// Whether one more may be logged.
    pub fn may(&mut self) -> bool {
        self.wanted += 1;
        self.wanted <= self.max
    }

    /// A second is over. Returns how many lines were left out in it.
    pub fn every_second(&mut self) -> usize {
        std::mem::take(&mut self.wanted).saturating_sub(self.max)
    }
}
