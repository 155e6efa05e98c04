// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is served by its endpoint, and what of it has work.

use std::collections::VecDeque;

use hallway_abi::region::ENDPOINTS_MAX;

/// The last endpoint; no entry has it.
pub const LAST: u32 = ENDPOINTS_MAX as u32 - 1;

struct Place<E> {
    entry: E,
    /// No other entry has had it, so that an event of an earlier one is known as such.
    serial: u64,
    is_queued: [bool; QUEUES],
}

/// What is to be done with entries.
#[derive(Debug, Clone, Copy)]
pub enum Queue {
    /// They have work: each gets a turn.
    Ready,
    /// They have none: before the program sleeps, they are to ask for a doorbell.
    Dry,
}

const QUEUES: usize = 2;

/// All entries.
pub struct Table<E> {
    places: Vec<Option<Place<E>>>,
    /// The one that was freed last is taken last.
    free: VecDeque<u32>,
    queues: [Vec<u32>; QUEUES],
    serial: u64,
    used: u32,
}

impl<E> Default for Table<E> {
    fn default() -> Self {
        Self {
            places: (0..ENDPOINTS_MAX).map(|_| None).collect(),
            free: (1..LAST).collect(),
            queues: Default::default(),
            serial: 0,
            used: 0,
        }
    }
}

impl<E> Table<E> {
    /// Whether there is a number left.
    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Number of entries.
    pub fn count(&self) -> u32 {
        self.used
    }

    /// Takes an entry up. Returns its endpoint, and the tag of its events. Nothing: no
    /// number is left; see [`Table::has_free`].
    pub fn insert(&mut self, entry: E) -> Option<(u32, u64)> {
        let endpoint = self.free.pop_front()?;
        self.serial += 1;
        self.places[endpoint as usize] = Some(Place {
            entry,
            serial: self.serial,
            is_queued: [false; QUEUES],
        });
        self.used += 1;
        Some((endpoint, self.tag(endpoint)))
    }

    /// The tag of an entry's events; 0: there is none.
    pub fn tag(&mut self, endpoint: u32) -> u64 {
        self.place(endpoint)
            .map_or(0, |place| place.serial << 16 | u64::from(endpoint))
    }

    fn place(&mut self, endpoint: u32) -> Option<&mut Place<E>> {
        self.places.get_mut(endpoint as usize)?.as_mut()
    }

    /// Finds an entry. The number may be the guest's.
    pub fn get(&mut self, endpoint: u32) -> Option<&mut E> {
        self.place(endpoint).map(|place| &mut place.entry)
    }

    /// Looks at an entry.
    pub fn look(&self, endpoint: u32) -> Option<&E> {
        let place = self.places.get(endpoint as usize)?.as_ref();
        place.map(|place| &place.entry)
    }

    /// Finds the endpoint that an event's tag is about, if it is still the same.
    pub fn find(&mut self, tag: u64) -> Option<u32> {
        let endpoint = (tag & 0xffff) as u32;
        let place = self.place(endpoint)?;
        (place.serial == tag >> 16).then_some(endpoint)
    }

    /// Finds the first entry that is such a one.
    pub fn position(&self, is_it: impl Fn(&E) -> bool) -> Option<u32> {
        let is_it = |place: &Option<Place<E>>| place.as_ref().is_some_and(|one| is_it(&one.entry));
        self.places.iter().position(is_it).map(|own| own as u32)
    }

    /// Endpoints of all entries that are such ones.
    pub fn find_all(&mut self, is_it: impl Fn(&mut E) -> bool) -> Vec<u32> {
        let places = self.places.iter_mut().zip(0..);
        let found = places.filter_map(|(place, own)| {
            let entry = &mut place.as_mut()?.entry;
            is_it(entry).then_some(own)
        });
        found.collect()
    }

    /// Removes an entry.
    pub fn remove(&mut self, endpoint: u32) -> Option<E> {
        let place = self.places.get_mut(endpoint as usize)?.take()?;
        self.used -= 1;
        self.free.push_back(endpoint);
        Some(place.entry)
    }

    /// Removes all.
    pub fn clear(&mut self) -> impl Iterator<Item = E> {
        // Numbers of events go on: late ones mean nothing.
        let empty = Self {
            serial: self.serial,
            ..Self::default()
        };
        let full = std::mem::replace(self, empty);
        full.places.into_iter().flatten().map(|place| place.entry)
    }

    /// All entries.
    pub fn entries(&mut self) -> impl Iterator<Item = &mut E> {
        let places = self.places.iter_mut().flatten();
        places.map(|place| &mut place.entry)
    }

    /// Puts an entry into a queue, once.
    pub fn push(&mut self, queue: Queue, endpoint: u32) {
        if let Some(place) = self.place(endpoint) {
            if !std::mem::replace(&mut place.is_queued[queue as usize], true) {
                self.queues[queue as usize].push(endpoint);
            }
        }
    }

    /// Whether there is an entry in a queue.
    pub fn has(&self, queue: Queue) -> bool {
        !self.queues[queue as usize].is_empty()
    }

    /// Takes a queue's entries, in order.
    pub fn take(&mut self, queue: Queue) -> Vec<u32> {
        let entries = std::mem::take(&mut self.queues[queue as usize]);
        for endpoint in &entries {
            if let Some(place) = self.place(*endpoint) {
                place.is_queued[queue as usize] = false;
            }
        }
        entries
    }
}
