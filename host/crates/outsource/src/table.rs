// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sockets and listeners by their endpoint, and which of them have work.

use std::collections::VecDeque;

use hallway_abi::region::ENDPOINTS_MAX;

use crate::listener::Listener;
use crate::stream::Stream;

/// What an endpoint stands for.
pub enum Entry {
    /// A connection.
    Stream(Stream),
    /// A listener.
    Listener(Listener),
}

struct Place {
    entry: Entry,
    /// No other entry has had it, so that an event of an earlier one is known as such.
    serial: u64,
    is_ready: bool,
    is_dry: bool,
}

/// All entries.
pub struct Table {
    places: Vec<Option<Place>>,
    /// The one that was freed last is taken last.
    free: VecDeque<u32>,
    ready: VecDeque<u32>,
    dry: Vec<u32>,
    serial: u64,
    listeners: Vec<u32>,
    used: u32,
    /// Something was freed that a listener may wait for.
    pub is_freed: bool,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            places: (0..ENDPOINTS_MAX).map(|_| None).collect(),
            free: (1..ENDPOINTS_MAX as u32).collect(),
            ready: VecDeque::new(),
            dry: Vec::new(),
            serial: 0,
            listeners: Vec::new(),
            used: 0,
            is_freed: false,
        }
    }
}

impl Table {
    /// Whether there is a number left.
    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Number of connections.
    pub fn count_streams(&self) -> u32 {
        self.used - self.count_listeners()
    }

    /// Number of listeners.
    pub fn count_listeners(&self) -> u32 {
        self.listeners.len() as u32
    }

    /// Takes an entry up. Returns its endpoint, and the tag of its events. Nothing: no
    /// number is left; see [`Table::has_free`].
    pub fn insert(&mut self, entry: Entry) -> Option<(u32, u64)> {
        let endpoint = self.free.pop_front()?;
        self.serial += 1;
        if matches!(entry, Entry::Listener(_)) {
            self.listeners.push(endpoint);
        }
        self.places[endpoint as usize] = Some(Place {
            entry,
            serial: self.serial,
            is_ready: false,
            is_dry: false,
        });
        self.used += 1;
        Some((endpoint, self.tag(endpoint)))
    }

    /// The tag of an entry's events; 0: there is none.
    pub fn tag(&mut self, endpoint: u32) -> u64 {
        self.place(endpoint)
            .map_or(0, |place| place.serial << 16 | u64::from(endpoint))
    }

    fn place(&mut self, endpoint: u32) -> Option<&mut Place> {
        self.places.get_mut(endpoint as usize)?.as_mut()
    }

    /// Finds an entry. The number may be the guest's.
    pub fn get(&mut self, endpoint: u32) -> Option<&mut Entry> {
        self.place(endpoint).map(|place| &mut place.entry)
    }

    /// Finds a connection.
    pub fn stream(&mut self, endpoint: u32) -> Option<&mut Stream> {
        match self.get(endpoint)? {
            Entry::Stream(stream) => Some(stream),
            Entry::Listener(_) => None,
        }
    }

    /// Finds a listener.
    pub fn listener(&mut self, endpoint: u32) -> Option<&mut Listener> {
        match self.get(endpoint)? {
            Entry::Listener(listener) => Some(listener),
            Entry::Stream(_) => None,
        }
    }

    /// Finds the endpoint that an event's tag is about, if it is still the same.
    pub fn find(&mut self, tag: u64) -> Option<u32> {
        let endpoint = (tag & 0xffff) as u32;
        let place = self.place(endpoint)?;
        (place.serial == tag >> 16).then_some(endpoint)
    }

    /// Removes an entry.
    pub fn remove(&mut self, endpoint: u32) -> Option<Entry> {
        let place = self.places.get_mut(endpoint as usize)?.take()?;
        self.used -= 1;
        self.free.push_back(endpoint);
        self.listeners.retain(|listener| *listener != endpoint);
        self.is_freed = true;
        Some(place.entry)
    }

    /// Removes all.
    pub fn clear(&mut self) -> impl Iterator<Item = Entry> {
        // Numbers of events go on: late ones mean nothing.
        let empty = Self {
            serial: self.serial,
            ..Self::default()
        };
        let full = std::mem::replace(self, empty);
        full.places.into_iter().flatten().map(|place| place.entry)
    }

    /// Endpoints of all listeners.
    pub fn listeners(&self) -> Vec<u32> {
        self.listeners.clone()
    }

    /// An entry has work.
    pub fn push_ready(&mut self, endpoint: u32) {
        if let Some(place) = self.place(endpoint) {
            if !std::mem::replace(&mut place.is_ready, true) {
                self.ready.push_back(endpoint);
            }
        }
    }

    /// Whether an entry has work.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The entries that have work now: each gets a turn.
    pub fn take_ready(&mut self) -> VecDeque<u32> {
        let ready = std::mem::take(&mut self.ready);
        for endpoint in &ready {
            if let Some(place) = self.place(*endpoint) {
                place.is_ready = false;
            }
        }
        ready
    }

    /// An entry has no work: before the program sleeps, it is to ask for a doorbell.
    pub fn push_dry(&mut self, endpoint: u32) {
        if let Some(place) = self.place(endpoint) {
            if !std::mem::replace(&mut place.is_dry, true) {
                self.dry.push(endpoint);
            }
        }
    }

    /// The entries that have run dry.
    pub fn take_dry(&mut self) -> Vec<u32> {
        let dry = std::mem::take(&mut self.dry);
        for endpoint in &dry {
            if let Some(place) = self.place(*endpoint) {
                place.is_dry = false;
            }
        }
        dry
    }
}
