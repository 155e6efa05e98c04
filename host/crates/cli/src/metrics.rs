// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallway metrics`: what hallwayd shows, or a guest's module, as OpenMetrics, once or at a
//! Unix socket. A name and a label never change their meaning.

mod guest;
mod host;

use std::collections::VecDeque;
use std::fmt::Debug;
use std::hash::Hash;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hallway_unix::{receive, Stream};
use nix::sys::stat::{umask, Mode};
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::Place;

/// How long a client may take for its request, and then for the answer.
const PATIENCE: Duration = Duration::from_secs(5);
const REQUEST_MAX: usize = 8 << 10;
/// Clients that are served at a time at most.
const CLIENTS: usize = 16;

/// Prints the metrics once.
pub fn print(place: Place, run_dir: &Path) -> Result<()> {
    io::stdout().write_all(text(place, run_dir)?.as_bytes())?;
    Ok(())
}

/// A client that is being served, by a thread.
struct Client {
    /// Gone with the thread.
    stream: Weak<Stream>,
    thread: JoinHandle<()>,
}

/// Hangs up on the client that is served longest, if there are as many as there may be.
fn make_place(clients: &mut VecDeque<Client>) {
    clients.retain(|client| client.stream.strong_count() > 0);
    while clients.len() >= CLIENTS {
        let Some(oldest) = clients.pop_front() else {
            return;
        };
        if let Some(stream) = oldest.stream.upgrade() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // It may be waiting for hallwayd, which takes no longer than `ask` lets it.
        let _ = oldest.thread.join();
    }
}

/// A connection that has to be done with by then.
struct Timed<'a> {
    stream: &'a UnixStream,
    deadline: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        receive(&self.stream, bytes)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        (&mut &*self.stream).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Serves them by HTTP at a Unix socket: each user that can enter its directory may read them.
/// Clients are served side by side, so that one that does not read delays no other.
pub fn listen(place: Place, run_dir: &Path, path: &Path) -> Result<()> {
    // Not by its name afterwards: another file may have that.
    let before = umask(Mode::from_bits_retain(0o111));
    let listener = hallway_unix::listen(path).with_context(|| path.display().to_string())?;
    umask(before);
    let mut clients = VecDeque::new();
    for stream in listener.incoming() {
        let served = match stream {
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
            other => Arc::new(Stream::from(other?)),
        };
        make_place(&mut clients);
        let stream = Arc::downgrade(&served);
        let run_dir = run_dir.to_owned();
        let serve = move || {
            // One that hangs up early is no fault of ours.
            let _ = answer(place, &run_dir, &served);
        };
        let thread = std::thread::Builder::new().spawn(serve)?;
        clients.push_back(Client { stream, thread });
    }
    Ok(())
}

fn answer(place: Place, run_dir: &Path, stream: &UnixStream) -> Result<()> {
    let timed = || Timed {
        stream,
        deadline: Instant::now() + PATIENCE,
    };
    let mut input = timed();
    let mut request = Vec::new();
    let mut bytes = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = input.read(&mut bytes)?;
        if count == 0 || request.len() > REQUEST_MAX {
            return Ok(());
        }
        request.extend_from_slice(&bytes[..count]);
    }
    let (state, kind, body) = match text(place, run_dir) {
        Ok(text) => (
            "200 OK",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            text,
        ),
        Err(error) => (
            "503 Service Unavailable",
            "text/plain; charset=utf-8",
            format!("{error:#}\n"),
        ),
    };
    let length = body.len();
    write!(
        timed(),
        "HTTP/1.1 {state}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: \
         close\r\n\r\n{body}"
    )?;
    Ok(())
}

fn text(place: Place, run_dir: &Path) -> Result<String> {
    let mut registry = Registry::with_prefix("hallway");
    match place {
        Place::Host => host::register(&mut registry, &crate::host::ask_status(run_dir)?),
        Place::Guest => {
            let mut client = crate::guest::client()?;
            guest::register(&mut registry, client.get()?, &client.connections()?);
        }
    }
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// Adds a number that goes up and down, of each of some.
fn gauges<L>(registry: &mut Registry, name: &str, help: &str) -> Family<L, Gauge>
where
    L: EncodeLabelSet + Debug + Clone + Eq + Hash + Send + Sync + 'static,
{
    let family = Family::default();
    registry.register(name, help, family.clone());
    family
}

/// Adds a number that grows, of each of some.
fn counters<L>(registry: &mut Registry, name: &str, help: &str) -> Family<L, Counter>
where
    L: EncodeLabelSet + Debug + Clone + Eq + Hash + Send + Sync + 'static,
{
    let family = Family::default();
    registry.register(name, help, family.clone());
    family
}
