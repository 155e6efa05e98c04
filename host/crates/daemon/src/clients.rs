// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The clients of the control socket: `hallway`, `hallwayd --stop`.
//!
//! This user and root may ask and order all. Members of the group of `--status-group` may
//! ask for the status, and for nothing else. The kernel says what a client is, as it was
//! when it connected.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use hallway_control::{Answer, Query};
use hallway_membership::is_own;
use hallway_unix::{receive, Stream};
use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use nix::sys::socket::{getsockopt, sockopt};

use crate::access::Access;
use crate::poller::{Poller, Source};

/// Bytes of a client's longest query.
const QUERY_MAX: usize = 4096;
/// Clients that there may be at once.
const CLIENTS_MAX: usize = 32;
/// Groups that a process has at most.
const GROUPS_MAX: usize = 65536;
const REFUSED: &str = "not permitted: this takes the user that hallwayd runs as, or root; members \
     of its --status-group may ask for the status alone";

/// What a client may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rights {
    All,
    Status,
    Nothing,
}

impl Rights {
    fn allow(self, query: &Query) -> bool {
        match self {
            Self::All => true,
            Self::Status => *query == Query::Status,
            Self::Nothing => false,
        }
    }
}

/// The supplementary groups of a client.
fn groups(stream: &UnixStream) -> nix::Result<Vec<u32>> {
    let mut groups = vec![0_u32; 64];
    loop {
        let mut bytes = size_of_val(&groups[..]) as libc::socklen_t;
        // SAFETY: the kernel writes to the vector, which has that many bytes.
        let result = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &mut bytes,
            )
        };
        match Errno::result(result) {
            Ok(_) => {
                groups.truncate(bytes as usize / size_of::<u32>());
                return Ok(groups);
            }
            Err(Errno::ERANGE) if groups.len() < GROUPS_MAX => groups.resize(GROUPS_MAX, 0),
            Err(errno) => return Err(errno),
        }
    }
}

/// What the client at the other end may do, where `group` may ask for the status.
fn find_rights(stream: &UnixStream, group: Option<u32>) -> nix::Result<Rights> {
    let peer = getsockopt(stream, sockopt::PeerCredentials)?;
    if is_own(peer.uid()) {
        return Ok(Rights::All);
    }
    let is_asker = match group {
        Some(group) => peer.gid() == group || groups(stream)?.contains(&group),
        None => false,
    };
    Ok(if is_asker {
        Rights::Status
    } else {
        Rights::Nothing
    })
}

struct Client {
    stream: Stream,
    rights: Rights,
    query: Vec<u8>,
    answer: Vec<u8>,
}

/// The control socket and its clients.
pub struct Clients {
    listener: UnixListener,
    /// Whose members may ask for the status.
    group: Option<u32>,
    all: BTreeMap<u64, Client>,
    next: u64,
}

impl Clients {
    /// Listens at `path`, in place of a daemon before this one. `askers` may ask for the
    /// status.
    pub fn listen(path: &Path, askers: &Access) -> Result<Self> {
        let _ = std::fs::remove_file(path);
        let listener = hallway_unix::listen(path)
            .with_context(|| format!("{}: cannot listen", path.display()))?;
        listener.set_nonblocking(true)?;
        askers.share_socket(path)?;
        Ok(Self {
            listener,
            group: askers.gid(),
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
        // Bounded: clients that connect without end are looked at again later.
        for _ in 0..16 {
            match self.listener.accept() {
                Ok((stream, _)) => self.take_in(stream, poller),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    // Descriptors have run out: this must not become a tight loop.
                    std::thread::sleep(Duration::from_millis(10));
                    return;
                }
            }
        }
    }

    fn take_in(&mut self, stream: UnixStream, poller: &Poller) {
        let stream = Stream::from(stream);
        let number = self.next;
        self.next += 1;
        let source = Source::Client(number);
        let ready = stream
            .set_nonblocking(true)
            .map_err(Into::into)
            .and_then(|()| poller.watch(&stream, source, EpollFlags::EPOLLIN));
        if ready.is_err() {
            return;
        }
        if self.all.len() == CLIENTS_MAX {
            // A client is served at once: the oldest has asked nothing, or does not read.
            self.all.pop_first();
        }
        let client = Client {
            rights: find_rights(&stream, self.group).unwrap_or(Rights::Nothing),
            stream,
            query: Vec::new(),
            answer: Vec::new(),
        };
        self.all.insert(number, client);
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
            Ok(Some(line)) => {
                let message = match serde_json::from_slice(&line) {
                    Ok(query) if client.rights.allow(&query) => return Some(query),
                    Ok(_) => REFUSED.into(),
                    Err(error) => format!("unknown question: {error}"),
                };
                self.answer(number, &Answer::Error { message }, poller);
                None
            }
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
            match receive(&self.stream, &mut bytes) {
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
            match (&*self.stream).write(&self.answer) {
                Ok(count) => drop(self.answer.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }
}
