// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sockets and listeners by their endpoint, and which of them have work.

use std::collections::VecDeque;

use hallway_abi::region::ENDPOINTS_MAX;

use crate::datagrams::Datagrams;
use crate::listener::Listener;
use crate::stream::{Stage, Stream};

/// Endpoint that asks the guest for its listeners; no entry has it.
pub const QUESTION: u32 = ENDPOINTS_MAX as u32 - 1;

/// What an endpoint stands for.
pub enum Entry {
    /// A connection.
    Stream(Stream),
    /// A listener.
    Listener(Listener),
    /// A UDP socket.
    Datagrams(Box<Datagrams>),
}

struct Place {
    entry: Entry,
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
pub struct Table {
    places: Vec<Option<Place>>,
    /// The one that was freed last is taken last.
    free: VecDeque<u32>,
    queues: [Vec<u32>; QUEUES],
    serial: u64,
    listeners: Vec<u32>,
    used: u32,
    datagrams: u32,
    /// UDP sockets with a published port.
    pub published: u32,
    /// Something was freed that a listener may wait for.
    pub is_freed: bool,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            places: (0..ENDPOINTS_MAX).map(|_| None).collect(),
            free: (1..QUESTION).collect(),
            queues: Default::default(),
            serial: 0,
            listeners: Vec::new(),
            used: 0,
            datagrams: 0,
            published: 0,
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
        self.count_sockets() - self.datagrams
    }

    /// Number of connections and UDP sockets.
    pub fn count_sockets(&self) -> u32 {
        self.used - self.count_listeners()
    }

    /// Number of UDP sockets.
    pub fn count_datagrams(&self) -> u32 {
        self.datagrams
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
        if let Entry::Datagrams(datagrams) = &entry {
            self.datagrams += 1;
            self.published += u32::from(datagrams.published.is_some());
        }
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
            _ => None,
        }
    }

    /// Finds a listener.
    pub fn listener(&mut self, endpoint: u32) -> Option<&mut Listener> {
        match self.get(endpoint)? {
            Entry::Listener(listener) => Some(listener),
            _ => None,
        }
    }

    /// Finds the endpoint that an event's tag is about, if it is still the same.
    pub fn find(&mut self, tag: u64) -> Option<u32> {
        let endpoint = (tag & 0xffff) as u32;
        let place = self.place(endpoint)?;
        (place.serial == tag >> 16).then_some(endpoint)
    }

    /// Finds the connect that an endpoint of the guest has asked for, while the network
    /// has not answered.
    pub fn find_connecting(&self, its: u32) -> Option<u32> {
        let is_it = |place: &Option<Place>| match place {
            Some(Place {
                entry: Entry::Stream(stream),
                ..
            }) => stream.stage == Stage::Connecting && stream.its == its,
            _ => false,
        };
        self.places.iter().position(is_it).map(|own| own as u32)
    }

    /// Finds the listener that an endpoint of the guest has, and that still listens.
    pub fn find_listening(&self, its: u32) -> Option<u32> {
        let is_it = |own: &&u32| match &self.places[**own as usize] {
            Some(Place {
                entry: Entry::Listener(listener),
                ..
            }) => listener.its == its && listener.socket.is_some(),
            _ => false,
        };
        self.listeners.iter().find(is_it).copied()
    }

    /// Removes an entry.
    pub fn remove(&mut self, endpoint: u32) -> Option<Entry> {
        let place = self.places.get_mut(endpoint as usize)?.take()?;
        self.used -= 1;
        if let Entry::Datagrams(datagrams) = &place.entry {
            self.datagrams -= 1;
            self.published -= u32::from(datagrams.published.is_some());
        }
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

    /// All UDP sockets.
    pub fn datagrams(&mut self) -> impl Iterator<Item = &mut Datagrams> {
        let places = self.places.iter_mut().flatten();
        places.filter_map(|place| match &mut place.entry {
            Entry::Datagrams(datagrams) => Some(&mut **datagrams),
            _ => None,
        })
    }

    /// Endpoints of UDP sockets.
    pub fn find_datagrams(&mut self, is_it: impl Fn(&mut Datagrams) -> bool) -> Vec<u32> {
        let places = self.places.iter_mut().zip(0..);
        let found =
            places.filter_map(
                |(place, own)| match place.as_mut().map(|one| &mut one.entry) {
                    Some(Entry::Datagrams(datagrams)) => is_it(datagrams).then_some(own),
                    _ => None,
                },
            );
        found.collect()
    }

    /// Endpoints of all listeners.
    pub fn listeners(&self) -> Vec<u32> {
        self.listeners.clone()
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
