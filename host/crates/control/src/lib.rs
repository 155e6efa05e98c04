// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `hallwayd` tells over its control socket.
//!
//! One line of JSON asks ([`Query`]), one line answers ([`Answer`]), and the
//! connection ends.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{anyhow, bail, Context, Result};
use serde::{Deserialize, Serialize};

/// Where the daemon keeps its sockets unless told otherwise.
pub const RUN_DIR: &str = "/run/hallway";

/// The control socket in a run directory.
pub fn socket(run_dir: &Path) -> PathBuf {
    run_dir.join("control.sock")
}

/// What one may ask.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "query")]
pub enum Query {
    /// How things are.
    Status,
    /// End daemon and holder, and leave nothing behind.
    Stop,
    /// Begin to migrate a VM.
    Migrate {
        /// Its name in the configuration, or its UUID.
        vm: String,
        /// Where the destination's QEMU awaits it, as QEMU's `migrate` wants it.
        uri: String,
    },
    /// How the last migration of a VM goes, or went.
    Migration {
        /// Its name in the configuration, or its UUID.
        vm: String,
    },
    /// End a migration that goes on; the VM stays.
    CancelMigration {
        /// Its name in the configuration, or its UUID.
        vm: String,
    },
}

/// What comes back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "answer")]
pub enum Answer {
    /// To [`Query::Status`].
    Status(Status),
    /// To [`Query::Stop`]: it is about to.
    Stopping,
    /// To what is asked of a migration.
    Migration(Migration),
    /// It cannot be done.
    Error {
        /// Why.
        message: String,
    },
}

/// How things are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Of the daemon.
    pub version: String,
    /// Of the ABI that it speaks.
    pub abi: String,
    /// Of the daemon.
    pub pid: u32,
    /// Since this daemon started.
    pub uptime_seconds: u64,
    /// Connections taken over from the daemon before this one.
    pub recovered_vms: usize,
    /// Where QEMU connects.
    pub socket: PathBuf,
    /// Every region.
    pub regions: Vec<Region>,
    /// Every QEMU that is connected.
    pub vms: Vec<Vm>,
    /// Every VM that the configuration names.
    pub machines: Vec<Machine>,
}

/// How far a migration is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "stage")]
pub enum Migration {
    /// The guest lets its ring memory go.
    Unplugging,
    /// QEMU migrates.
    Moving {
        /// In QEMU's words.
        status: String,
    },
    /// The guest runs at the destination.
    Done {
        /// For which it stood still, as its QEMU counts.
        downtime_ms: u64,
        /// From QEMU's first byte to its last.
        total_ms: u64,
    },
    /// The guest runs on here, and has its ring memory again.
    Stayed {
        /// Why.
        why: String,
    },
    /// QEMU was lost before it said how it ended: the guest may run at the
    /// destination.
    Unknown {
        /// How it was lost.
        why: String,
    },
}

/// A VM of the configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// In the configuration.
    pub name: String,
    /// In the configuration.
    pub uuid: String,
    /// The monitor that hallwayd uses.
    pub monitor: Option<PathBuf>,
    /// Whether it answers.
    pub connected: bool,
    /// Why it does not.
    pub problem: Option<String>,
    /// Ring memory that it has, or should have.
    pub plugs: Vec<Plug>,
}

/// A region, as a device of a VM.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plug {
    /// Its name.
    pub region: String,
    /// Whether it is there.
    pub plugged: bool,
    /// Why it is not, or why it does not go.
    pub problem: Option<String>,
}

/// A region.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Region {
    /// On this host.
    pub name: String,
    /// Of the region.
    pub uuid: String,
    /// What QEMU maps.
    pub file: PathBuf,
    /// Bytes.
    pub size: u64,
    /// Members that it has room for, the host among them.
    pub slots: u32,
    /// Bytes of each member's slice.
    pub slice_size: u64,
    /// How often the header was found changed by a guest, and put back.
    pub repairs: u64,
    /// Every slot that was ever used.
    pub members: Vec<Member>,
}

/// What the daemon thinks of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Liveness {
    /// It takes part, and its heartbeat counts.
    Alive,
    /// It joined and has not set up its slice yet.
    Joining,
    /// It takes part, and its heartbeat stands still.
    Silent,
    /// It left, or its QEMU is gone.
    Absent,
}

/// A member of a region.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// In the member table.
    pub slot: usize,
    /// Whether it is this host.
    pub host: bool,
    /// Host name.
    pub name: String,
    /// Of the VM.
    pub uuid: String,
    /// Grows with each join.
    pub generation: u32,
    /// What the daemon thinks of it.
    pub liveness: Liveness,
    /// Seconds since its heartbeat last counted.
    pub silent_seconds: Option<u64>,
    /// That it serves.
    pub addresses: Vec<IpAddr>,
    /// Bytes sent through rings.
    pub tx_bytes: u64,
    /// Bytes received through rings.
    pub rx_bytes: u64,
    /// Promoted connections.
    pub channels: u32,
}

/// A connected QEMU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Vm {
    /// The daemon's number for the connection.
    pub connection: u64,
    /// Of the QEMU process, as far as the kernel tells.
    pub pid: Option<i32>,
    /// As its guest says.
    pub name: Option<String>,
    /// As its guest says.
    pub uuid: Option<String>,
    /// Names of the regions that it takes part in.
    pub regions: Vec<String>,
    /// Doorbells of other VMs that its QEMU knows.
    pub doorbells: usize,
    /// Doorbells of other VMs that its QEMU has not read yet.
    pub doorbells_pending: usize,
    /// Requests answered.
    pub requests: u64,
    /// Whether requests wait because there were too many.
    pub throttled: bool,
}

/// Asks the daemon whose run directory this is.
pub fn ask(run_dir: &Path, query: Query) -> Result<Answer> {
    let path = socket(run_dir);
    let mut stream = UnixStream::connect(&path).map_err(|error| {
        let path = path.display();
        if error.kind() == ErrorKind::PermissionDenied {
            anyhow!("{path}: not permitted: run as the user that hallwayd runs as, or as root")
        } else {
            anyhow!(
                "no hallwayd answers at {path} ({error}): start hallwayd, or give the directory \
                 of its sockets with --run-dir"
            )
        }
    })?;
    let limit = Some(Duration::from_secs(10));
    stream.set_read_timeout(limit)?;
    stream.set_write_timeout(limit)?;
    let mut line = serde_json::to_string(&query)?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream)
        .read_line(&mut line)
        .with_context(|| format!("hallwayd at {} does not answer", path.display()))?;
    if line.is_empty() {
        bail!(
            "hallwayd at {} hung up without an answer: see its log",
            path.display()
        );
    }
    serde_json::from_str(&line)
        .context("hallwayd answers what this program does not know: install one release of both")
}
