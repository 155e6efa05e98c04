// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The clients of the control socket: `hallway`, `hallwayd --stop`.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use anyhow::{Context, Result};
use hallway_control::{Answer, Query};
use nix::sys::epoll::EpollFlags;

use crate::poller::{Poller, Source};

/// Bytes of a client's longest query.
const QUERY_MAX: usize = 4096;
/// Clients that there may be at once.
const CLIENTS_MAX: usize = 32;

struct Client {
    stream: UnixStream,
    query: Vec<u8>,
    answer: Vec<u8>,
}

/// The control socket and its clients.
pub struct Clients {
    listener: UnixListener,
    all: BTreeMap<u64, Client>,
    next: u64,
}

impl Clients {
    /// Listens at `path`, in place of a daemon before this one.
    pub fn listen(path: &Path) -> Result<Self> {
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path)
            .with_context(|| format!("{}: cannot listen", path.display()))?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            all: BTreeMap::new(),
            next: 0,
        })
    }

    /// Watches for clients.
    pub fn watch(&self, poller: &Poller) -> Result<()> {
        poller.watch(&self.listener, Source::Control, EpollFlags::EPOLLIN)
    }

    /// Takes in the clients that connect.
    pub fn accept(&mut self, poller: &Poller) {
        while let Ok((stream, _)) = self.listener.accept() {
            let number = self.next;
            self.next += 1;
            let source = Source::Client(number);
            let ready = stream
                .set_nonblocking(true)
                .map_err(Into::into)
                .and_then(|()| poller.watch(&stream, source, EpollFlags::EPOLLIN));
            if ready.is_ok() {
                if self.all.len() == CLIENTS_MAX {
                    // A client is served at once: the oldest has asked nothing, or does
                    // not read.
                    self.all.pop_first();
                }
                let client = Client {
                    stream,
                    query: Vec::new(),
                    answer: Vec::new(),
                };
                self.all.insert(number, client);
            }
        }
    }

    /// Reads from a client, or writes what is left of its answer. Returns its query,
    /// once it is there whole.
    pub fn serve(&mut self, number: u64, poller: &Poller) -> Option<Query> {
        let client = self.all.get_mut(&number)?;
        if !client.answer.is_empty() {
            self.write(number, poller);
            return None;
        }
        match client.read() {
            Ok(None) => None,
            Ok(Some(line)) => match serde_json::from_slice(&line) {
                Ok(query) => Some(query),
                Err(error) => {
                    let message = format!("unknown question: {error}");
                    self.answer(number, &Answer::Error { message }, poller);
                    None
                }
            },
            Err(_) => {
                // Closing it ends the watch too.
                self.all.remove(&number);
                None
            }
        }
    }

    /// Answers a client.
    pub fn answer(&mut self, number: u64, answer: &Answer, poller: &Poller) {
        let Some(client) = self.all.get_mut(&number) else {
            return;
        };
        client.answer = serde_json::to_vec(answer).unwrap_or_default();
        client.answer.push(b'\n');
        self.write(number, poller);
    }

    fn write(&mut self, number: u64, poller: &Poller) {
        let Some(client) = self.all.get_mut(&number) else {
            return;
        };
        let source = Source::Client(number);
        let rest = client.write().and_then(|done| {
            if !done {
                poller.rewatch(&client.stream, source, EpollFlags::EPOLLOUT)?;
            }
            Ok(done)
        });
        if !matches!(rest, Ok(false)) {
            self.all.remove(&number);
        }
    }
}

impl Client {
    /// Reads the query's line. Nothing: it is not there whole yet.
    fn read(&mut self) -> Result<Option<Vec<u8>>> {
        let mut bytes = [0; 1024];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(count) => self.query.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
            if self.query.len() > QUERY_MAX {
                return Err(io::Error::from(io::ErrorKind::InvalidData).into());
            }
        }
        let end = self.query.iter().position(|byte| *byte == b'\n');
        Ok(end.map(|end| self.query[..end].to_vec()))
    }

    /// Writes the answer. True once all of it is written.
    fn write(&mut self) -> Result<bool> {
        while !self.answer.is_empty() {
            match self.stream.write(&self.answer) {
                Ok(count) => drop(self.answer.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }
}
