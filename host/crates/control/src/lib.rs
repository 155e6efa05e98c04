// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The protocol of `hallwayd`'s control socket.
//!
//! The client sends one line of JSON ([`Query`]), the daemon answers with one
//! ([`Answer`]), and the connection ends. A field whose name in JSON is an older
//! one keeps that for the programs that read it.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, Context, Result};
use serde::{Deserialize, Serialize};

/// Directory of the daemon's sockets, unless options name another.
pub const RUN_DIR: &str = "/run/hallway";

/// The variable that the option `--run-dir` takes its value from.
pub const RUN_DIR_VARIABLE: &str = "HALLWAY_RUN_DIR";

/// Removes [`RUN_DIR_VARIABLE`] if it is empty: as in a shell, an empty variable is none.
/// Call it before options are parsed, and before the program has threads.
pub fn drop_empty_variable() {
    if std::env::var_os(RUN_DIR_VARIABLE).is_some_and(|value| value.is_empty()) {
        std::env::remove_var(RUN_DIR_VARIABLE);
    }
}

/// Path of the control socket in a run directory.
pub fn socket(run_dir: &Path) -> PathBuf {
    run_dir.join("control.sock")
}

/// Path of the holder's socket in a run directory.
pub fn holder(run_dir: &Path) -> PathBuf {
    run_dir.join("holder.sock")
}

/// Whether there is a holder: VMs may have ring memory then, also while no hallwayd answers.
pub fn has_holder(run_dir: &Path) -> bool {
    // The holder has packets. A stream takes none of its time: the kernel answers EPROTOTYPE.
    match UnixStream::connect(holder(run_dir)) {
        Err(error) => !is_absent(&error),
        Ok(_) => true,
    }
}

/// Whether nothing listens at a socket's path, or nothing can.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::ConnectionRefused | ErrorKind::InvalidInput
    )
}

/// What the configuration takes as the name of a VM, in words.
pub const VM_NAMES: &str = "up to 64 letters, digits, - _";

/// Whether the configuration takes a name for a VM. Two of them make the name of a region,
/// which must differ from all others.
pub fn is_vm_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    !name.is_empty() && name.len() <= 64 && name.chars().all(plain)
}

/// How long a [`Query::Drain`] holds. A client that needs longer asks again.
pub const DRAIN_LEASE: Duration = Duration::from_secs(5);

/// A question or an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "query")]
pub enum Query {
    /// Ask for the [`Status`].
    Status,
    /// End daemon and holder, and leave nothing behind.
    Stop,
    /// Read the configuration again. No connection is lost; the daemon answers no query for
    /// a moment, and its uptime begins again.
    Reload,
    /// Have a VM get no more outsourced connections, for the next [`DRAIN_LEASE`].
    Drain {
        /// Its name in the configuration, or its UUID.
        vm: String,
    },
    /// Begin to migrate a VM.
    Migrate {
        /// Its name in the configuration, or its UUID.
        vm: String,
        /// URI at which the destination's QEMU waits for it, for QEMU's `migrate`.
        uri: String,
        /// Go on where that resets outsourced connections.
        #[serde(default)]
        reset_outsourced: bool,
    },
    /// Ask for the stage of the last migration of a VM.
    Migration {
        /// Its name in the configuration, or its UUID.
        vm: String,
    },
    /// End the migration of a VM; the VM stays.
    CancelMigration {
        /// Its name in the configuration, or its UUID.
        vm: String,
    },
    /// Begin to have a VM release its ring memory, which stays out then.
    Release {
        /// Its name in the configuration, or its UUID.
        vm: String,
        /// Seconds that the guest has for each region.
        timeout: u64,
        /// Go on where that resets outsourced connections.
        #[serde(default)]
        reset_outsourced: bool,
    },
    /// Ask for the stage of the last release of a VM's ring memory.
    ReleaseStage {
        /// Its name in the configuration, or its UUID.
        vm: String,
    },
    /// Plug in again the ring memory that a VM released, or that others took out.
    Resume {
        /// Its name in the configuration, or its UUID.
        vm: String,
    },
}

/// The answer to a [`Query`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "answer")]
pub enum Answer {
    /// The answer to [`Query::Status`].
    Status(Status),
    /// The answer to [`Query::Stop`]: the daemon is about to end.
    Stopping,
    /// The answer to [`Query::Reload`]: the configuration is good, and the daemon reads it.
    Reloading,
    /// The answer to the queries about a migration: its stage.
    Migration(Migration),
    /// The answer to [`Query::Release`] and [`Query::ReleaseStage`].
    Release(Release),
    /// The answer to [`Query::Resume`]: the memory is plugged in again.
    Resuming,
    /// The answer to [`Query::Drain`]: the VM gets no more outsourced connections.
    Draining {
        /// Those that it has.
        connections: u32,
    },
    /// The answer to [`Query::Resume`] where the VM does not run here: it has no memory to get.
    Away {
        /// How it is not here.
        message: String,
    },
    /// The query failed.
    Error {
        /// Why, and what to do.
        message: String,
    },
}

/// State of the daemon, and of all that it serves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
    /// Version of the ABI that it speaks, MAJOR.MINOR.
    pub abi: String,
    /// Process of the daemon.
    pub pid: u32,
    /// Seconds since this daemon started.
    pub uptime_seconds: u64,
    /// Connections taken over from the daemon before this one.
    #[serde(rename = "recovered_vms")]
    pub recovered_connections: usize,
    /// Path of the socket to which QEMUs connect.
    pub socket: PathBuf,
    /// Every region.
    pub regions: Vec<Region>,
    /// Every connection to a QEMU.
    #[serde(rename = "vms")]
    pub connections: Vec<Connection>,
    /// Every VM of the configuration.
    #[serde(rename = "machines")]
    pub vms: Vec<Vm>,
    /// The domains of Xen; nothing without `hallwayd --xen`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xen: Option<Box<Xen>>,
}

/// The domains of Xen, but dom0, as XenStore has them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Xen {
    /// Why XenStore can't be read; what follows is from before.
    pub problem: Option<String>,
    /// Every domain.
    pub domains: Vec<Domain>,
    /// Each two of them.
    pub pairs: Vec<DomainPair>,
}

/// A domain of Xen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Domain {
    /// Its number.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
}

/// Two domains of Xen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainPair {
    /// Their numbers.
    pub domains: [u32; 2],
    /// Why they may not share memory.
    pub refused: Option<String>,
    /// Numbers of those that have announced their module to the other one. Both do before
    /// memory is offered.
    #[serde(default)]
    pub announced: Vec<u32>,
    /// Numbers of those that offer the other one memory. Both do where memory is shared.
    pub offering: Vec<u32>,
}

/// Stage of a migration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "stage")]
pub enum Migration {
    /// The guest lets its ring memory go.
    Unplugging,
    /// QEMU migrates.
    Moving {
        /// QEMU's word for its stage.
        status: String,
    },
    /// The guest runs at the destination.
    Done {
        /// Milliseconds for which the guest stood still, as QEMU counts.
        downtime_ms: u64,
        /// Milliseconds from QEMU's first byte to its last.
        total_ms: u64,
    },
    /// The guest runs on here, and has its ring memory again.
    Stayed {
        /// Why it did not migrate.
        why: String,
    },
    /// QEMU was lost before it reported the end: the guest may run at the
    /// destination.
    Unknown {
        /// How QEMU was lost.
        why: String,
    },
}

/// Stage of a release of ring memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "stage")]
pub enum Release {
    /// The guest is asked to let its ring memory go.
    Unplugging,
    /// The memory is out, and stays out until it is resumed, or another QEMU runs the VM.
    Out,
    /// The guest has its ring memory again.
    Failed {
        /// Why it has.
        why: String,
    },
}

/// A VM of the configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Vm {
    /// Its name in the configuration.
    pub name: String,
    /// Its UUID in the configuration.
    pub uuid: String,
    /// Path of the monitor that hallwayd uses, or `libvirt`.
    pub monitor: Option<PathBuf>,
    /// Whether the monitor answers.
    pub connected: bool,
    /// Why the monitor does not answer.
    pub problem: Option<String>,
    /// Whether libvirt says that it is shut off: [`Self::problem`] says so, and is none then.
    #[serde(default)]
    pub off: bool,
    /// Ring memory that it has, or should have.
    pub plugs: Vec<Plug>,
    /// Whether its ring memory was released, and stays out; false while its monitor does not
    /// answer.
    #[serde(default)]
    pub released: bool,
    /// The process that executes sockets for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outsourcer: Option<Helper>,
    /// The process that is the host's end of its tunnels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_end: Option<Helper>,
    /// Processes that the configuration gives it, and that cannot be started.
    #[serde(default)]
    pub not_running: Vec<NotRunning>,
    /// Its CPUs, if hallwayd says how many are online.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Cpus>,
}

/// The CPUs of a VM, as they were a second ago or two.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpus {
    /// How they are given: `park` or `weight`.
    pub mechanism: String,
    /// How many it is given at least.
    pub min: u32,
    /// How many it is given at most.
    pub max: u32,
    /// How many it is given; nothing: its guest or its cgroup is not known.
    pub given: Option<u32>,
    /// The reason for this number.
    pub why: String,
    /// Seconds since that last changed.
    pub since_seconds: u64,
    /// How many are online, as its guest says.
    pub online: Option<u32>,
    /// The weight of its cgroup; nothing: it parks, or that is not known.
    pub weight: Option<u32>,
    /// Connections and tunnels on which it sends, as its guest says.
    pub senders: u32,
    /// Share of the time that its CPUs that are online ran, in percent; nothing: not measured.
    pub busy_percent: Option<u32>,
    /// Share of the time that those CPUs waited for a CPU of the host, in percent.
    pub waiting_percent: Option<u32>,
    /// Why that is not as it should be.
    pub problem: Option<String>,
}

/// A process that serves one VM, as it was a second ago or two.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Helper {
    /// Pid of the process.
    pub pid: u32,
    /// Connections, also those that are being made or ended.
    pub sockets: u32,
    /// Connections besides, which the guest has ended: the host still sends.
    #[serde(default)]
    pub closing: u32,
    /// Published ports.
    pub listeners: u32,
    /// UDP sockets, those with a published port too.
    #[serde(default)]
    pub datagrams: u32,
    /// Bytes sent by sockets of the host.
    pub sent_bytes: u64,
    /// Bytes received by sockets of the host.
    pub received_bytes: u64,
    /// How often each rule or cause refused the guest something.
    pub refused: BTreeMap<String, u64>,
    /// Connections that had to wait, since the guest makes no more in a second.
    #[serde(default)]
    pub delayed: u64,
    /// How often the guest broke the protocol.
    pub corrupt: u64,
}

/// A process of the configuration that does not run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotRunning {
    /// What it is: `outsourcer` or `host end`.
    pub helper: String,
    /// Why it does not run.
    pub why: String,
    /// Seconds until it is started again.
    pub next_try_seconds: u64,
}

impl std::fmt::Display for NotRunning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            helper,
            why,
            next_try_seconds,
        } = self;
        write!(
            f,
            "its {helper} is configured, not running: {why} (next try in {next_try_seconds} s)"
        )
    }
}

/// The device of a region in a VM.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plug {
    /// Name of the region.
    pub region: String,
    /// Whether the device is plugged in.
    pub plugged: bool,
    /// Why the device is not plugged in, or does not go; or why the region cannot be made.
    pub problem: Option<String>,
}

/// A region.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Region {
    /// Its name on this host.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// The file that QEMUs map; without one hallwayd hands them the memory.
    pub file: Option<PathBuf>,
    /// Bytes of the region.
    pub size: u64,
    /// Number of slots, the host's among them.
    pub slots: u32,
    /// Bytes of each member's slice.
    pub slice_size: u64,
    /// How often a guest changed the header, and the daemon put it back.
    pub repairs: u64,
    /// The members of all slots that were ever used.
    pub members: Vec<Member>,
}

/// Whether a member lives, as far as the daemon can see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Liveness {
    /// The member has joined, and its heartbeat counts.
    Alive,
    /// The member has joined, and has not set up its slice yet.
    Joining,
    /// The member has joined, and its heartbeat stands still.
    #[serde(rename = "silent")]
    Unresponsive,
    /// The member has left, or its QEMU has ended.
    Absent,
}

/// A member of a region.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// Its slot.
    pub slot: usize,
    /// Whether it is the host.
    pub host: bool,
    /// Name that its guest gave.
    pub name: String,
    /// UUID of its VM.
    pub uuid: String,
    /// Its CID in `AF_VSOCK`. Nothing: it is the host, or has left, or has no tunnels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cid: Option<u32>,
    /// Its generation; each join has a new one.
    pub generation: u32,
    /// Whether it lives.
    pub liveness: Liveness,
    /// Seconds for which its heartbeat stands still.
    #[serde(rename = "silent_seconds")]
    pub still_seconds: Option<u64>,
    /// Addresses that it publishes.
    pub addresses: Vec<IpAddr>,
    /// Bytes that it sent through rings.
    pub tx_bytes: u64,
    /// Bytes that it received through rings.
    pub rx_bytes: u64,
    /// Its promoted connections.
    pub channels: u32,
}

/// A connection to a QEMU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Connection {
    /// Number of the connection.
    pub connection: u64,
    /// Process of the QEMU, if the kernel can name it.
    pub pid: Option<i32>,
    /// Name that its guest gave.
    pub name: Option<String>,
    /// UUID that its guest named.
    pub uuid: Option<String>,
    /// Names of the regions that its guest has joined.
    pub regions: Vec<String>,
    /// Number of other VMs' doorbells that its QEMU knows.
    pub doorbells: usize,
    /// Number of other VMs' doorbells that its QEMU has not read yet.
    pub doorbells_pending: usize,
    /// Number of requests that the daemon answered.
    pub requests: u64,
    /// Whether requests wait because the guest made too many.
    pub throttled: bool,
    /// Why its QEMU may soon hear of no other VM.
    pub problem: Option<String>,
    /// The last request of its guest that was refused, until that is granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
}

/// A request that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// UUID of the VM that the guest said it was.
    pub vm: String,
    /// Why it was refused, and what to do.
    pub why: String,
}

/// The error of [`ask`] where this user may not reach the daemon.
#[derive(Debug)]
pub struct NotPermitted(String);

impl std::fmt::Display for NotPermitted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotPermitted {}

/// How long hallwayd may be away while it reads its configuration again, or is restarted.
const AWAY: Duration = Duration::from_secs(5);

/// Between two looks for it.
const LOOK: Duration = Duration::from_millis(20);

/// Connects to the daemon of a run directory. Where there is a holder, it is back soon.
fn connect(run_dir: &Path, until: Instant) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(socket(run_dir)) {
            Err(error) if is_absent(&error) && Instant::now() < until && has_holder(run_dir) => {
                std::thread::sleep(LOOK);
            }
            ended => return ended,
        }
    }
}

/// Writes a line to the daemon, and returns its answer.
fn exchange(mut stream: UnixStream, line: &str) -> Result<String> {
    let limit = Some(Duration::from_secs(10));
    stream.set_read_timeout(limit)?;
    stream.set_write_timeout(limit)?;
    let mut answer = String::new();
    // As text: a program must not take a daemon that hung up for a reader of its own output
    // that has had enough.
    stream
        .write_all(line.as_bytes())
        .and_then(|()| BufReader::new(stream).read_line(&mut answer))
        .map_err(|error| anyhow!("it does not answer: {error}"))?;
    if !answer.ends_with('\n') {
        bail!("it hung up before the end of its answer: see its log");
    }
    Ok(answer)
}

/// Sends a query to the daemon of a run directory, and returns its answer. If there is a holder
/// and no daemon, one has some seconds to come back, and is asked for its status again. An error may
/// be [`NotPermitted`].
pub fn ask(run_dir: &Path, query: Query) -> Result<Answer> {
    let path = socket(run_dir);
    let mut line = serde_json::to_string(&query)?;
    line.push('\n');
    let mut until = Instant::now();
    // One that is gone has nothing to stop.
    if query != Query::Stop {
        until += AWAY;
    }
    let answer = loop {
        match exchange(reach(run_dir, until)?, &line) {
            Err(_) if query == Query::Status && Instant::now() < until && has_holder(run_dir) => {
                std::thread::sleep(LOOK);
            }
            ended => break ended.with_context(|| format!("hallwayd at {}", path.display()))?,
        }
    };
    serde_json::from_str(&answer)
        .context("hallwayd answers what this program does not know: install one release of both")
}

/// Connects to the daemon, or says what to do.
fn reach(run_dir: &Path, until: Instant) -> Result<UnixStream> {
    connect(run_dir, until).map_err(|error| {
        let path = socket(run_dir);
        let path = path.display();
        if error.kind() == ErrorKind::PermissionDenied {
            NotPermitted(format!(
                "{path}: not permitted: run as the user that hallwayd runs as, or as root, or for \
                 the status as a member of its --status-group"
            ))
            .into()
        } else {
            anyhow!(
                "no hallwayd answers at {path} ({error}): start hallwayd, or give the directory \
                 of its sockets with --run-dir"
            )
        }
    })
}

/// Has the daemon read its configuration again. An error: it could not, and why.
pub fn reload(run_dir: &Path) -> Result<()> {
    match ask(run_dir, Query::Reload)? {
        Answer::Reloading => Ok(()),
        Answer::Error { message } => bail!("{message}"),
        other => bail!("hallwayd answers {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_is_back_soon_answers() {
        let run_dir = std::env::temp_dir().join(format!("control-{}", std::process::id()));
        std::fs::create_dir(&run_dir).unwrap();
        let refused = ask(&run_dir, Query::Reload).unwrap_err().to_string();
        assert!(refused.contains("no hallwayd answers"), "{refused}");
        // Of another type than a stream, as the holder's is.
        let _holder = std::os::unix::net::UnixDatagram::bind(holder(&run_dir)).unwrap();
        let path = socket(&run_dir);
        let daemon = std::thread::spawn(move || {
            std::thread::sleep(3 * LOOK);
            let listener = std::os::unix::net::UnixListener::bind(path).unwrap();
            // The first one ends before it has answered.
            listener.accept().unwrap();
            let (stream, _) = listener.accept().unwrap();
            let mut query = String::new();
            BufReader::new(&stream).read_line(&mut query).unwrap();
            let message = query.clone();
            let answer = serde_json::to_string(&Answer::Error { message }).unwrap();
            writeln!(&stream, "{answer}").unwrap();
        });
        let Answer::Error { message } = ask(&run_dir, Query::Status).unwrap() else {
            panic!("another answer")
        };
        assert!(message.contains("status"), "{message}");
        daemon.join().unwrap();
        std::fs::remove_dir_all(run_dir).unwrap();
    }

    #[test]
    fn older_names_stay_in_the_json() {
        let status = r#"{"version":"1","abi":"1.0","pid":1,"uptime_seconds":2,"recovered_vms":3,
            "socket":"/s","regions":[{"name":"r","uuid":"u","file":"/f","size":1,"slots":2,
            "slice_size":3,"repairs":0,"members":[{"slot":1,"host":false,"name":"n","uuid":"u",
            "generation":1,"liveness":"silent","silent_seconds":9,"addresses":["10.0.0.1"],
            "tx_bytes":1,"rx_bytes":2,"channels":3}]}],"vms":[{"connection":4,"pid":null,
            "name":"n","uuid":"u","regions":[],"doorbells":0,"doorbells_pending":0,"requests":0,
            "throttled":false,"problem":null}],"machines":[{"name":"m","uuid":"u","monitor":null,
            "connected":false,"problem":null,"plugs":[]}]}"#;
        let read: Status = serde_json::from_str(status).unwrap();
        let member = &read.regions[0].members[0];
        assert_eq!(member.liveness, Liveness::Unresponsive);
        assert_eq!(member.still_seconds, Some(9));
        assert_eq!((read.connections[0].connection, read.vms.len()), (4, 1));
        let mut old: serde_json::Value = serde_json::from_str(status).unwrap();
        old["machines"][0]["released"] = false.into();
        old["machines"][0]["off"] = false.into();
        old["machines"][0]["not_running"] = Vec::<String>::new().into();
        assert_eq!(serde_json::to_value(&read).unwrap(), old);
    }
}
