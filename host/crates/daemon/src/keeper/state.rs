// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a daemon must know to go on from where another died.
//!
//! The holder keeps it as JSON. Fields whose name in JSON is an older one keep
//! that: another release of hallwayd may read it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use crate::config::Listen;
use anyhow::{bail, Context, Result};
use hallway_abi::region::{MAJOR, PAGE_ENTRIES};
use hallway_membership::{Header, Uuid};
use nix::sys::memfd::{memfd_create, MFdFlags};
use serde::{Deserialize, Serialize};

const VERSION: u32 = 2;

fn first_major() -> u16 {
    3
}

/// The daemon's state.
#[derive(Debug, Serialize, Deserialize)]
pub struct State {
    version: u32,
    /// Major version of the ABI that the guests speak. A state of an older daemon does
    /// not say: there was one.
    #[serde(default = "first_major")]
    major: u16,
    /// Path of the socket to which QEMUs connect.
    pub socket: PathBuf,
    /// Directories that a daemon made; the last one removes them.
    pub made: Vec<PathBuf>,
    /// Every region.
    pub regions: Vec<SavedRegion>,
    /// Every connection to a QEMU.
    #[serde(rename = "vms")]
    pub connections: Vec<SavedConnection>,
    /// Number of the next connection.
    #[serde(rename = "next_vm")]
    pub next_connection: u64,
    /// Doorbells of helpers. A state of an older daemon has none.
    #[serde(default, rename = "bells")]
    pub doorbells: Vec<SavedDoorbell>,
    /// Processes of helpers. A state of an older daemon has none.
    #[serde(default, rename = "outsourcers")]
    pub helpers: Vec<SavedHelper>,
    /// VMs that have released their ring memory. A state of an older daemon has none.
    #[serde(default)]
    pub releases: Vec<SavedRelease>,
    /// Weights of cgroups that may have been raised. A state of an older daemon has none.
    #[serde(default)]
    pub weights: Vec<SavedWeight>,
}

/// The weight of the cgroup of a VM's QEMU, as the state has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedWeight {
    /// UUID of the VM.
    pub vm: Uuid,
    /// Device and inode of the file that has the weight: its path may be another's later.
    pub id: (u64, u64),
    /// That file.
    pub file: PathBuf,
    /// The weight without what was given.
    pub base: u32,
}

/// A release of ring memory that is not over, in the state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedRelease {
    /// UUID of the VM.
    pub vm: Uuid,
    /// Process of its QEMU.
    pub qemu: i32,
}

/// The doorbell of a helper, as the state has it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SavedDoorbell {
    /// The region that it belongs to.
    pub region: String,
    /// Slot of the helper there.
    pub slot: usize,
    /// Its number among the peers of a QEMU, where connections have theirs.
    pub number: u64,
}

/// The process of a helper, as the state has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedHelper {
    /// The region that it shares with its guest.
    pub region: String,
    /// Its generation there.
    pub generation: u32,
    /// The process.
    pub pid: u32,
    /// Path of the network namespace in which it was started.
    pub netns: Option<PathBuf>,
    /// User that it runs as.
    pub user: u32,
    /// Main group that it runs as.
    pub group: u32,
    /// Where it listens.
    #[serde(default)]
    pub listen: Option<Listen>,
}

/// A region, as the state has it.
#[derive(Debug, Serialize, Deserialize)]
pub struct SavedRegion {
    /// Its name on this host.
    pub name: String,
    /// The file that QEMUs map; without one the holder keeps the memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Its header; the copy in the file may be newer or scribbled on, and does not count.
    pub header: Header,
    /// Whether the configuration says which VMs may join. A state of an older daemon
    /// does not say.
    #[serde(default)]
    pub configured: bool,
    /// The VMs that it is made for: a name may be that of another VM later. A state of an
    /// older daemon does not say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owners: Vec<Uuid>,
}

/// Another connection's doorbell, as one connection's QEMU knows it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Peer {
    /// Id of the doorbell in this connection.
    pub id: u16,
    /// Whether QEMU has read it, so that the guest may ring it.
    pub known: bool,
}

/// One entry of a connection's page: the reply to its last request.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Entry {
    /// Serial of the last request that was answered.
    pub serial: u32,
    /// Status of the reply.
    pub status: u32,
    /// The region that the guest has joined by this entry.
    pub region: Option<String>,
    /// Slot in that region.
    pub slot: u32,
    /// Generation in that region.
    pub generation: u32,
}

/// A CID that the configuration gives a VM, for as long as its QEMU is connected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Given {
    /// UUID of the VM.
    pub vm: Uuid,
    /// The CID.
    pub cid: u32,
}

/// A connection to a QEMU, as the state has it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SavedConnection {
    /// Number of the connection; never used twice.
    pub number: u64,
    /// Whether its QEMU was sent all that it waits for at its start.
    pub greeted: bool,
    /// UUID that its guest named.
    pub uuid: Option<Uuid>,
    /// UUID of the VM whose monitor its QEMU had. A state of an older daemon does not
    /// say.
    #[serde(default)]
    pub verified: Option<Uuid>,
    /// The CID that its guest's VM was given. A state of an older daemon does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given: Option<Given>,
    /// Name that its guest gave; printable.
    pub name: Option<String>,
    /// Id of the next peer that its QEMU learns of.
    pub next_peer: u32,
    /// The peers that its QEMU was sent, by number of their connections.
    pub peers: BTreeMap<u64, Peer>,
    /// The entries of its page.
    pub entries: [Entry; PAGE_ENTRIES],
}

impl State {
    /// A state of this daemon's version, with nothing in it.
    pub fn new(socket: PathBuf, made: Vec<PathBuf>) -> Self {
        Self {
            version: VERSION,
            major: MAJOR,
            socket,
            made,
            regions: Vec::new(),
            connections: Vec::new(),
            next_connection: 1,
            doorbells: Vec::new(),
            helpers: Vec::new(),
            releases: Vec::new(),
            weights: Vec::new(),
        }
    }

    /// Writes the state to a file that the holder can keep.
    pub fn save(&self) -> Result<OwnedFd> {
        let mut file = File::from(memfd_create("hallway-state", MFdFlags::MFD_CLOEXEC)?);
        file.write_all(&serde_json::to_vec(self)?)?;
        Ok(file.into())
    }

    /// Reads the state from such a file.
    pub fn load(fd: OwnedFd) -> Result<Self> {
        let mut file = File::from(fd);
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(0))?;
        file.read_to_end(&mut bytes)?;
        let state: Self = serde_json::from_slice(&bytes).context(
            "the holder's state is not what this hallwayd writes: run the release that wrote it, \
             or end all with hallwayd --stop and restart the VMs",
        )?;
        if state.version != VERSION {
            bail!(
                "the holder's state has version {}, and this hallwayd writes {VERSION}: run the \
                 release that wrote it, or end all with hallwayd --stop and restart the VMs",
                state.version
            );
        }
        if state.major != MAJOR {
            bail!(
                "the VMs here speak ABI version {}, and this hallwayd {MAJOR}: run the release \
                 that served them, or put them back on TCP with hallwayd --stop, and load \
                 modules of this release",
                state.major
            );
        }
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_of_an_older_daemon_is_read() {
        let entry = r#"{"serial":3,"status":1,"region":"default","slot":2,"generation":7}"#;
        let text = format!(
            r#"{{"version":2,"socket":"/run/s","made":["/run"],"regions":[{{"name":"default",
            "file":"/dev/shm/default","header":{{"uuid":"00112233-4455-6677-8899-aabbccddeeff",
            "key":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15],"size":16777216,"change":4,
            "members":[{{"uuid":"00112233-4455-6677-8899-aabbccddeeff","generation":1,
            "present":true,"name":"host"}}]}}}}],"vms":[{{"number":5,"greeted":true,
            "uuid":"00112233-4455-6677-8899-aabbccddeeff","name":"vm","next_peer":9,
            "peers":{{"4":{{"id":8,"known":true}}}},"entries":[{}]}}],"next_vm":6}}"#,
            [entry; PAGE_ENTRIES].join(",")
        );
        let mut file = File::from(memfd_create("state", MFdFlags::empty()).unwrap());
        file.write_all(text.as_bytes()).unwrap();
        let state = State::load(file.into()).unwrap();
        assert_eq!(state.next_connection, 6);
        assert_eq!(state.regions[0].header.members[0].name, "host");
        let saved = &state.connections[0];
        assert_eq!((saved.number, saved.peers[&4].id), (5, 8));
        assert_eq!(saved.entries[0].region.as_deref(), Some("default"));

        let mut old: serde_json::Value = serde_json::from_str(&text).unwrap();
        old["regions"][0]["configured"] = false.into();
        old["vms"][0]["verified"] = serde_json::Value::Null;
        old["major"] = 3.into();
        old["bells"] = serde_json::json!([]);
        old["outsourcers"] = serde_json::json!([]);
        old["releases"] = serde_json::json!([]);
        old["weights"] = serde_json::json!([]);
        assert_eq!(serde_json::to_value(&state).unwrap(), old);
        for (key, said) in [
            ("major", "speak ABI version 1"),
            ("version", "has version 1"),
        ] {
            old[key] = 1.into();
            let mut file = File::from(memfd_create("state", MFdFlags::empty()).unwrap());
            file.write_all(old.to_string().as_bytes()).unwrap();
            let refused = State::load(file.into()).unwrap_err().to_string();
            assert!(refused.contains(said), "{refused}");
        }
    }
}
