// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a daemon must know to go on from where another died.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use anyhow::{bail, Context, Result};
use hallway_abi::region::PAGE_ENTRIES;
use hallway_membership::{Header, Uuid};
use nix::sys::memfd::{memfd_create, MFdFlags};
use serde::{Deserialize, Serialize};

const VERSION: u32 = 2;

/// All of it.
#[derive(Debug, Serialize, Deserialize)]
pub struct State {
    version: u32,
    /// Where QEMU connects.
    pub socket: PathBuf,
    /// Directories that were made, to be removed in the end.
    pub made: Vec<PathBuf>,
    /// Every region.
    pub regions: Vec<SavedRegion>,
    /// Every connected VM.
    pub vms: Vec<SavedVm>,
    /// Number of the next connection.
    pub next_vm: u64,
}

/// A region.
#[derive(Debug, Serialize, Deserialize)]
pub struct SavedRegion {
    /// On this host.
    pub name: String,
    /// What QEMU maps.
    pub file: PathBuf,
    /// Decides.
    pub header: Header,
}

/// Another VM, as one VM's QEMU knows it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Peer {
    /// Its id in this connection.
    pub id: u16,
    /// Whether QEMU has read it, so that the guest may ring it.
    pub known: bool,
}

/// One entry of a VM's page.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Entry {
    /// Of the last request that was answered.
    pub serial: u32,
    /// Answered.
    pub status: u32,
    /// That the VM takes part in through this entry.
    pub region: Option<String>,
    /// Answered.
    pub slot: u32,
    /// Answered.
    pub generation: u32,
}

/// A connected VM.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SavedVm {
    /// Of the connection; never used twice.
    pub number: u64,
    /// Whether its QEMU was told what it waits for.
    pub greeted: bool,
    /// As its guest says.
    pub uuid: Option<Uuid>,
    /// As its guest says; printable.
    pub name: Option<String>,
    /// Next peer id.
    pub next_peer: u32,
    /// By number of their connections.
    pub peers: BTreeMap<u64, Peer>,
    /// Of the page.
    pub entries: [Entry; PAGE_ENTRIES],
}

impl State {
    /// Puts a state together.
    pub fn new(
        socket: PathBuf,
        made: Vec<PathBuf>,
        regions: Vec<SavedRegion>,
        vms: Vec<SavedVm>,
        next_vm: u64,
    ) -> Self {
        Self {
            version: VERSION,
            socket,
            made,
            regions,
            vms,
            next_vm,
        }
    }

    /// Into a file that a holder can keep.
    pub fn save(&self) -> Result<OwnedFd> {
        let mut file = File::from(memfd_create("hallway-state", MFdFlags::MFD_CLOEXEC)?);
        file.write_all(&serde_json::to_vec(self)?)?;
        Ok(file.into())
    }

    /// Out of such a file.
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
        Ok(state)
    }
}
