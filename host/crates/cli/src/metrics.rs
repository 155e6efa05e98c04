// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hallway metrics`: what hallwayd shows, as OpenMetrics, once or at a Unix socket.
//!
//! A name and a label never change their meaning. Bytes are those through rings, as the
//! members count them: a hostile member may count what it likes, for itself alone.

use std::collections::VecDeque;
use std::fs::Permissions;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use hallway_control::{Liveness, Status};
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::host::ask_status;

/// How long a client may take for its request, and then for the answer.
const PATIENCE: Duration = Duration::from_secs(5);
const REQUEST_MAX: usize = 8 << 10;
/// Clients that are served at a time at most.
const CLIENTS: usize = 16;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfRegion {
    region: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfMember {
    region: String,
    vm: String,
    uuid: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfVm {
    vm: String,
}

/// Prints the metrics once.
pub fn print(run_dir: &Path) -> Result<()> {
    io::stdout().write_all(text(run_dir)?.as_bytes())?;
    Ok(())
}

/// A client that is being served, by a thread.
struct Client {
    /// Gone with the thread.
    stream: Weak<UnixStream>,
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
        self.stream.read(bytes)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Serves them by HTTP at a Unix socket: each user that can enter its directory may read them.
/// Clients are served side by side, so that one that does not read delays no other.
pub fn listen(run_dir: &Path, path: &Path) -> Result<()> {
    match UnixStream::connect(path) {
        Ok(_) => bail!("{}: another program listens there", path.display()),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path)?,
        Err(_) => {}
    }
    let listener =
        UnixListener::bind(path).with_context(|| format!("{}: cannot listen", path.display()))?;
    std::fs::set_permissions(path, Permissions::from_mode(0o666))?;
    let mut clients = VecDeque::new();
    for stream in listener.incoming() {
        let served = match stream {
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
            other => Arc::new(other?),
        };
        make_place(&mut clients);
        let stream = Arc::downgrade(&served);
        let run_dir = run_dir.to_owned();
        let serve = move || {
            // One that hangs up early is no fault of ours.
            let _ = answer(&run_dir, &served);
        };
        let thread = std::thread::Builder::new().spawn(serve)?;
        clients.push_back(Client { stream, thread });
    }
    Ok(())
}

fn answer(run_dir: &Path, stream: &UnixStream) -> Result<()> {
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
    let (state, kind, body) = match text(run_dir) {
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

fn text(run_dir: &Path) -> Result<String> {
    render(&ask_status(run_dir)?)
}

fn render(status: &Status) -> Result<String> {
    let mut registry = Registry::with_prefix("hallway");
    let connected = Gauge::<i64>::default();
    registry.register("qemus", "QEMUs that are connected", connected.clone());
    connected.set(status.connections.len() as i64);
    let up = Family::<OfVm, Gauge>::default();
    registry.register(
        "vm_monitor_up",
        "Whether the monitor of a VM of the configuration answers",
        up.clone(),
    );
    let problems = Family::<OfVm, Gauge>::default();
    registry.register(
        "vm_problems",
        "What hallway doctor would say of a VM of the configuration",
        problems.clone(),
    );
    let given = Family::<OfVm, Gauge>::default();
    registry.register(
        "vm_cpus",
        "CPUs that a VM with [vm.cpus] is to have online",
        given.clone(),
    );
    for vm in &status.vms {
        let label = OfVm {
            vm: vm.name.clone(),
        };
        up.get_or_create(&label).set(vm.connected.into());
        let of_plugs = vm.plugs.iter().filter(|plug| plug.problem.is_some());
        let cpus = vm.cpus.as_ref();
        if let Some(count) = cpus.and_then(|cpus| cpus.given) {
            given.get_or_create(&label).set(count.into());
        }
        let of_cpus = cpus.is_some_and(|cpus| cpus.problem.is_some());
        let count = of_plugs.count() + usize::from(vm.problem.is_some()) + usize::from(of_cpus);
        problems.get_or_create(&label).set(count as i64);
    }
    let memory = Family::<OfRegion, Gauge>::default();
    registry.register("region_bytes", "Ring memory", memory.clone());
    let repairs = Family::<OfRegion, Counter>::default();
    registry.register(
        "region_repairs",
        "How often a member wrote on a region's header",
        repairs.clone(),
    );
    let alive = Family::<OfMember, Gauge>::default();
    registry.register(
        "member_alive",
        "Whether a member's heartbeat counts",
        alive.clone(),
    );
    let channels = Family::<OfMember, Gauge>::default();
    registry.register(
        "member_connections",
        "Promoted connections of a member",
        channels.clone(),
    );
    let sent = Family::<OfMember, Counter>::default();
    registry.register(
        "member_sent_bytes",
        "Bytes that a member sent through rings",
        sent.clone(),
    );
    let received = Family::<OfMember, Counter>::default();
    registry.register(
        "member_received_bytes",
        "Bytes that a member received through rings",
        received.clone(),
    );
    for region in &status.regions {
        let label = OfRegion {
            region: region.name.clone(),
        };
        memory.get_or_create(&label).set(region.size as i64);
        repairs.get_or_create(&label).inc_by(region.repairs);
        for member in region.members.iter().filter(|member| !member.host) {
            let label = OfMember {
                region: region.name.clone(),
                vm: member.name.clone(),
                uuid: member.uuid.clone(),
            };
            let is_alive = member.liveness == Liveness::Alive;
            alive.get_or_create(&label).set(is_alive.into());
            channels.get_or_create(&label).set(member.channels.into());
            sent.get_or_create(&label).inc_by(member.tx_bytes);
            received.get_or_create(&label).inc_by(member.rx_bytes);
        }
    }
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}
