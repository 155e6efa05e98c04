// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sockets and listeners by their endpoint.

use std::ops::{Deref, DerefMut};

use hallway_endpoint::table::{self, LAST};

use crate::datagrams::Datagrams;
use crate::listener::Listener;
use crate::stream::{Stage, Stream};

/// Endpoint that asks the guest for its listeners; no entry has it.
pub const QUESTION: u32 = LAST;

/// What an endpoint stands for.
pub enum Entry {
    /// A connection.
    Stream(Box<Stream>),
    /// A listener.
    Listener(Listener),
    /// A UDP socket.
    Datagrams(Box<Datagrams>),
}

/// All entries.
#[derive(Default)]
pub struct Table {
    all: table::Table<Entry>,
    listeners: Vec<u32>,
    closing: Vec<u32>,
    datagrams: u32,
    /// UDP sockets with a published port.
    pub published: u32,
    /// Something was freed that a listener may wait for.
    pub is_freed: bool,
}

impl Deref for Table {
    type Target = table::Table<Entry>;

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl DerefMut for Table {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.all
    }
}

impl Table {
    /// Number of connections.
    pub fn count_streams(&self) -> u32 {
        self.count_sockets() - self.datagrams
    }

    /// Number of connections and UDP sockets.
    pub fn count_sockets(&self) -> u32 {
        self.all.count() - self.count_listeners()
    }

    /// Number of UDP sockets.
    pub fn count_datagrams(&self) -> u32 {
        self.datagrams
    }

    /// Number of listeners.
    pub fn count_listeners(&self) -> u32 {
        self.listeners.len() as u32
    }

    /// As [`table::Table::insert`].
    pub fn insert(&mut self, entry: Entry) -> Option<(u32, u64)> {
        let is_listener = matches!(entry, Entry::Listener(_));
        let published = match &entry {
            Entry::Datagrams(datagrams) => Some(u32::from(datagrams.published.is_some())),
            _ => None,
        };
        let (endpoint, tag) = self.all.insert(entry)?;
        if is_listener {
            self.listeners.push(endpoint);
        }
        self.datagrams += u32::from(published.is_some());
        self.published += published.unwrap_or(0);
        Some((endpoint, tag))
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

    /// Finds the connect that an endpoint of the guest has asked for, while the network
    /// has not answered.
    pub fn find_connecting(&self, its: u32) -> Option<u32> {
        self.all.position(|entry| match entry {
            Entry::Stream(stream) => stream.stage == Stage::Connecting && stream.its == its,
            _ => false,
        })
    }

    /// Finds the listener that an endpoint of the guest has, and that still listens.
    pub fn find_listening(&self, its: u32) -> Option<u32> {
        let is_it = |own: &&u32| match self.all.look(**own) {
            Some(Entry::Listener(listener)) => listener.its == its && listener.socket.is_some(),
            _ => false,
        };
        self.listeners.iter().find(is_it).copied()
    }

    /// Number of connections that the guest has ended, and for which the kernel still sends.
    pub fn count_closing(&self) -> u32 {
        self.closing.len() as u32
    }

    /// Endpoints of these.
    pub fn closing(&self) -> Vec<u32> {
        self.closing.clone()
    }

    /// A connection is one of these from now on, until it is removed.
    pub fn note_closing(&mut self, endpoint: u32) {
        if !self.closing.contains(&endpoint) {
            self.closing.push(endpoint);
        }
    }

    /// Closes a connection that the guest has ended, once the kernel has sent all.
    pub fn close(&mut self, endpoint: u32) {
        let is_over = self.stream(endpoint).is_some_and(|stream| {
            stream.close();
            stream.is_over()
        });
        if is_over {
            self.remove(endpoint);
        }
    }

    /// Removes an entry.
    pub fn remove(&mut self, endpoint: u32) -> Option<Entry> {
        let entry = self.all.remove(endpoint)?;
        if let Entry::Datagrams(datagrams) = &entry {
            self.datagrams -= 1;
            self.published -= u32::from(datagrams.published.is_some());
        }
        self.listeners.retain(|listener| *listener != endpoint);
        self.closing.retain(|one| *one != endpoint);
        self.is_freed = true;
        Some(entry)
    }

    /// All UDP sockets.
    pub fn datagrams(&mut self) -> impl Iterator<Item = &mut Datagrams> {
        self.all.entries().filter_map(|entry| match entry {
            Entry::Datagrams(datagrams) => Some(&mut **datagrams),
            _ => None,
        })
    }

    /// Endpoints of UDP sockets.
    pub fn find_datagrams(&mut self, is_it: impl Fn(&mut Datagrams) -> bool) -> Vec<u32> {
        self.all.find_all(|entry| match entry {
            Entry::Datagrams(datagrams) => is_it(datagrams),
            _ => false,
        })
    }

    /// Endpoints of all listeners; the first is the one that has taken no connection for the
    /// longest time.
    pub fn listeners(&self) -> Vec<u32> {
        self.listeners.clone()
    }

    /// A listener has taken a connection: it is the last one.
    pub fn move_to_end(&mut self, listener: u32) {
        self.listeners.retain(|one| *one != listener);
        self.listeners.push(listener);
    }
}
