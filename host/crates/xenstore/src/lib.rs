// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client of XenStore, by the socket that xenstored has in dom0.
//!
//! XenStore is a tree of small nodes, with watches. Each request is a header of four
//! words (type, number, transaction, length), followed by strings; the answer has
//! the same form. Events of watches come in between. The protocol is described in
//! Xen's `docs/misc/xenstore.txt`.
//!
//! # Why a client of our own
//!
//! The crates for it bind Xen's C library, are under the GPL, or are empty. What is
//! needed of the protocol is a few requests.

mod wire;

use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use wire::{Kind, Message};

/// Where xenstored listens.
pub const SOCKET: &str = "/run/xenstored/socket";
/// Time that xenstored has for an answer.
const ANSWER: Duration = Duration::from_secs(30);

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no xenstored, or we may not reach it.
    #[error("{path}: no xenstored answers ({error}): run hallwayd as root in dom0, with Xen's services started")]
    Connect {
        /// Path of the socket.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The connection broke.
    #[error("the connection to xenstored broke: {0}")]
    Broken(#[from] io::Error),
    /// What came is not of this protocol.
    #[error("what came from xenstored is not its protocol: {0}")]
    Protocol(&'static str),
    /// An answer did not come in time.
    #[error("xenstored did not answer within {} s", ANSWER.as_secs())]
    Timeout,
    /// xenstored refused a request.
    #[error("xenstored refuses {what}: {reason}")]
    Refused {
        /// The request, and its node.
        what: String,
        /// The name of an errno, such as `EACCES`.
        reason: String,
    },
}

/// The result of a request.
pub type Result<T> = std::result::Result<T, Error>;

/// Something changed at a watched node, or below it. What it was is not said: of those that
/// wait, each watch has one event, however often guests write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The token that the watch was set with.
    pub token: String,
}

/// A connection to xenstored.
#[derive(Debug)]
pub struct Store {
    stream: UnixStream,
    last: u32,
    events: VecDeque<Event>,
}

impl Store {
    /// Connects.
    pub fn connect(path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path).map_err(|error| Error::Connect {
            path: path.into(),
            error,
        })?;
        Ok(Self {
            stream,
            last: 0,
            events: VecDeque::new(),
        })
    }

    /// Sends a request and returns the answer's body.
    fn ask(&mut self, kind: Kind, parts: &[&str]) -> Result<Vec<u8>> {
        self.last = self.last.wrapping_add(1);
        let mut request = Message {
            kind: kind as u32,
            number: self.last,
            body: Vec::new(),
        };
        for part in parts {
            request.body.extend_from_slice(part.as_bytes());
            request.body.push(0);
        }
        // The value of a node is the rest of the message.
        if kind == Kind::Write {
            request.body.pop();
        }
        request.send(&mut self.stream)?;
        let deadline = Instant::now() + ANSWER;
        loop {
            let Some(answer) = Message::receive(&mut self.stream, Some(deadline))? else {
                return Err(Error::Timeout);
            };
            if answer.kind == Kind::Event as u32 {
                self.keep(&answer)?;
            } else if answer.number != request.number {
                return Err(Error::Protocol("an answer to another request"));
            } else if answer.kind == Kind::Error as u32 {
                let what = format!("{kind:?} of {}", parts.first().unwrap_or(&""));
                let reason = answer.strings().into_iter().next().unwrap_or_default();
                return Err(Error::Refused { what, reason });
            } else if answer.kind != request.kind {
                return Err(Error::Protocol("an answer of another type"));
            } else {
                return Ok(answer.body);
            }
        }
    }

    fn keep(&mut self, message: &Message) -> Result<()> {
        let mut strings = message.strings().into_iter();
        let (Some(_), Some(token)) = (strings.next(), strings.next()) else {
            return Err(Error::Protocol("an event without path and token"));
        };
        let event = Event { token };
        if !self.events.contains(&event) {
            self.events.push_back(event);
        }
        Ok(())
    }

    /// Returns what a node holds; nothing if there is no such node.
    pub fn read(&mut self, path: &str) -> Result<Option<String>> {
        let body = absent(self.ask(Kind::Read, &[path]))?;
        Ok(body.map(|body| String::from_utf8_lossy(&body).into_owned()))
    }

    /// Returns the names of a node's children; none if there is no such node.
    pub fn list(&mut self, path: &str) -> Result<Vec<String>> {
        let body = absent(self.ask(Kind::Directory, &[path]))?;
        Ok(wire::strings(&body.unwrap_or_default()))
    }

    /// Writes a node, and makes it if need be, as well as those above it.
    pub fn write(&mut self, path: &str, value: &str) -> Result<()> {
        self.ask(Kind::Write, &[path, value]).map(drop)
    }

    /// Removes a node and all below it, if it is there.
    pub fn remove(&mut self, path: &str) -> Result<()> {
        absent(self.ask(Kind::Remove, &[path])).map(drop)
    }

    /// Has a node belong to a domain, and lets these domains read it; no other may.
    pub fn permit(&mut self, path: &str, owner: u32, readers: &[u32]) -> Result<()> {
        let mut words = vec![path.to_owned(), format!("n{owner}")];
        words.extend(readers.iter().map(|domain| format!("r{domain}")));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.ask(Kind::SetPermissions, &words).map(drop)
    }

    /// Has events come with this token from now on, the first one at once.
    pub fn watch(&mut self, path: &str, token: &str) -> Result<()> {
        self.ask(Kind::Watch, &[path, token]).map(drop)
    }

    /// Has no events come of that watch any more, if there is one.
    pub fn unwatch(&mut self, path: &str, token: &str) -> Result<()> {
        absent(self.ask(Kind::Unwatch, &[path, token]))?;
        self.events.retain(|event| event.token != token);
        Ok(())
    }

    /// Waits for the next event; nothing if none comes in time. Without `patience` it
    /// waits for as long as that takes.
    pub fn wait(&mut self, patience: Option<Duration>) -> Result<Option<Event>> {
        let deadline = patience.map(|patience| Instant::now() + patience);
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            let Some(message) = Message::receive(&mut self.stream, deadline)? else {
                return Ok(None);
            };
            if message.kind != Kind::Event as u32 {
                return Err(Error::Protocol("an answer without a request"));
            }
            self.keep(&message)?;
        }
    }
}

/// Takes a node that is not there for an answer.
fn absent<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(Error::Refused { reason, .. }) if reason == "ENOENT" => Ok(None),
        other => other.map(Some),
    }
}
