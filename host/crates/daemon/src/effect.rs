// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What one component wants of another.
//!
//! A component changes itself alone. What follows from that for others it
//! returns, and `Picture::apply` hands it to the component that it is for.

use hallway_membership::Uuid;

/// What one component wants of another.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Effect {
    /// For the regions: a member has left.
    Leave {
        /// Its connection, for the log.
        label: String,
        /// Name of the region.
        region: String,
        /// Its slot there.
        slot: usize,
    },
    /// For the connections: the guest of this one has gone, or is another than it
    /// said.
    Disown(u64),
    /// For the connections: the guest of this one no longer has this region.
    PutOut(u64, String),
    /// For the connections: this QEMU has the monitor of the VM with this UUID.
    Verified(i32, Uuid),
    /// For the VMs and the connections: look for the connection of this VM, whose
    /// guest may have arrived by migration.
    Recognise(usize),
    /// For the VMs: the module of the guest with this UUID has started.
    Started(Uuid),
    /// For the VMs: the connection of the QEMU with this process has ended, as it does with it.
    Ended(i32),
    /// For the VMs: find the threads of this VM's vCPUs.
    AskVcpus(usize),
}
