// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The region and the private page (`abi/hallway/region.h`).

use std::mem::{offset_of, size_of};

pub use crate::constants::region::*;

/// One slot of the member table.
#[repr(C)]
pub struct Member {
    /// UUID of the VM, as in DMI (RFC 4122 order).
    pub uuid: [u8; 16],
    /// 0: never used; a joining member gets a new one.
    pub generation: u32,
    /// [`MEMBER_ABSENT`] or [`MEMBER_PRESENT`].
    pub state: u32,
    /// Position of the slice, in bytes from the start of the region.
    pub slice_offset: u64,
    /// Size of the slice, in bytes.
    pub slice_size: u64,
    /// Host name; to be shown only.
    pub name: [u8; NAME_SIZE],
    /// CID that the configuration gives; 0: none.
    pub cid: u32,
    /// Zero.
    pub reserved: [u8; 20],
}

/// The head of a region.
#[repr(C)]
pub struct Region {
    /// [`REGION_MAGIC`].
    pub magic: u64,
    /// [`MAJOR`].
    pub major: u16,
    /// [`MINOR`].
    pub minor: u16,
    /// [`HEADER_SIZE`].
    pub header_size: u32,
    /// Bytes of the whole region, a power of two.
    pub size: u64,
    /// Name of the region among all regions.
    pub uuid: [u8; 16],
    /// Key of the connection tokens.
    pub key: [u8; 16],
    /// Entries used in the member table.
    pub slots: u32,
    /// Incremented after every change of the table.
    pub change: u32,
    /// Zero.
    pub reserved: [u8; 64],
    /// The member table.
    pub member: [Member; SLOTS_MAX],
}

/// The head of a slice.
#[repr(C)]
pub struct Slice {
    /// [`SLICE_MAGIC`].
    pub magic: u64,
    /// As in the member table: else stale.
    pub generation: u32,
    /// Incremented at least each second.
    pub heartbeat: u32,
    /// Odd while the addresses are being written.
    pub address_seq: u32,
    /// Number of addresses, at most [`ADDRESSES_MAX`].
    pub address_count: u32,
    /// Bytes through rings to all members; to be shown only.
    pub tx_bytes: u64,
    /// Bytes through rings from all members; to be shown only.
    pub rx_bytes: u64,
    /// Promoted connections now; to be shown only.
    pub channels: u32,
    /// A `change` of the region: no channel to a member that had departed by then is left.
    pub settled: u32,
    /// Connections and tunnels, trunks too, through which it sent in the last half second or so.
    pub senders: u32,
    /// Zero.
    pub reserved: [u8; 12],
    /// IPv6, or IPv4-mapped.
    pub address: [[u8; 16]; ADDRESSES_MAX],
    /// Zero.
    pub reserved2: [u8; 3008],
}

/// One index of a mailbox, in its own cache line.
#[repr(C)]
pub struct MailboxIndex {
    /// Runs freely modulo 2^32.
    pub index: u32,
    /// Generation of the mailbox's sender.
    pub sender_generation: u32,
    /// Generation of the mailbox's receiver.
    pub receiver_generation: u32,
    /// Zero.
    pub reserved: [u8; 52],
}

/// Messages and pending bits from one member to another.
#[repr(C)]
pub struct Mailbox {
    /// Written by the sender.
    pub head: MailboxIndex,
    /// Written by the receiver.
    pub tail: MailboxIndex,
    /// Zero.
    pub reserved: [u8; 384],
    /// One bit for each endpoint of the receiver.
    pub pending: [u64; ENDPOINTS_MAX / 64],
    /// Zero.
    pub reserved2: [u8; 3072],
    /// The messages.
    pub message: [[u8; MESSAGE_SIZE]; MAILBOX_MESSAGES],
}

/// A request of the guest.
#[repr(C)]
pub struct Request {
    /// Counts up; 0: no request; written last.
    pub serial: u32,
    /// Major version of the guest.
    pub major: u16,
    /// Minor version of the guest.
    pub minor: u16,
    /// `COMMAND_*`.
    pub command: u32,
    /// Zero.
    pub reserved: u32,
    /// UUID of the region.
    pub region: [u8; 16],
    /// UUID of the VM.
    pub vm: [u8; 16],
    /// Host name of the VM.
    pub name: [u8; NAME_SIZE],
    /// Zero.
    pub reserved2: [u8; 16],
}

/// Ports of `AF_VSOCK`.
#[repr(C)]
pub struct Ports {
    /// The first one.
    pub first: u32,
    /// The last one.
    pub last: u32,
}

/// The daemon's reply.
#[repr(C)]
pub struct Reply {
    /// Serial of the request answered; written last.
    pub serial: u32,
    /// `STATUS_*`.
    pub status: u32,
    /// Slot of this VM in the region.
    pub slot: u32,
    /// Generation of this VM in the region.
    pub generation: u32,
    /// Major version of the daemon.
    pub major: u16,
    /// Minor version of the daemon.
    pub minor: u16,
    /// Slot of the outsourcer in the region; 0: there is none.
    pub outsourcer: u32,
    /// Ports of the VM that others may reach by tunnels: 1 + the number of ranges, or 0 for
    /// any; current while the guest is joined.
    pub tunnel_ranges: u32,
    /// The ranges of these ports.
    pub tunnel_ports: [Ports; TUNNEL_RANGES],
    /// CID of the one other member that the region has; 0: none is known.
    pub peer_cid: u32,
    /// Peer id that rings the slot; 0: none; current while the guest is joined.
    pub doorbell: [u16; SLOTS_MAX],
}

/// One request and its reply.
#[repr(C)]
pub struct PageEntry {
    /// Written by the guest.
    pub request: Request,
    /// Written by the daemon.
    pub reply: Reply,
}

/// Written by the guest: its own addresses.
#[repr(C)]
pub struct Home {
    /// Odd while the rest is being written.
    pub seq: u32,
    /// Number of addresses, at most [`HOME_MAX`].
    pub count: u32,
    /// Zero.
    pub reserved: [u8; 8],
    /// IPv6, or IPv4-mapped.
    pub address: [[u8; 16]; HOME_MAX],
}

/// Written by the daemon: addresses of VMs with which a region can be made.
#[repr(C)]
pub struct Candidates {
    /// Odd while the rest is being written.
    pub seq: u32,
    /// Number of addresses, at most [`CANDIDATES_MAX`].
    pub count: u32,
    /// Zero.
    pub reserved: [u8; 8],
    /// IPv6, or IPv4-mapped.
    pub address: [[u8; 16]; CANDIDATES_MAX],
}

/// Written by the guest: candidates with which it has traffic.
#[repr(C)]
pub struct Wanted {
    /// Bit n: address n of the candidates.
    pub set: u64,
    /// That of the list of candidates that this is about; written last.
    pub seq: u32,
    /// Zero.
    pub reserved: u32,
}

/// Written by the daemon: how many of its CPUs a guest is to have online.
#[repr(C)]
pub struct CpuOrder {
    /// CPUs; 0: all, the daemon does not care.
    pub online: u32,
    /// Zero.
    pub reserved: u32,
}

/// Written by the guest: what came of the order.
#[repr(C)]
pub struct CpuReport {
    /// Odd while the rest is being written; 0: the guest knows nothing of such orders.
    pub seq: u32,
    /// The order that this is about.
    pub order: u32,
    /// `CPUS_*`.
    pub status: u32,
    /// CPUs that are online.
    pub online: u32,
    /// CPUs that there are.
    pub present: u32,
    /// Zero.
    pub reserved: u32,
}

/// The private page.
#[repr(C)]
pub struct Page {
    /// [`PAGE_MAGIC`].
    pub magic: u64,
    /// Major version of the daemon.
    pub major: u16,
    /// Minor version of the daemon.
    pub minor: u16,
    /// Zero.
    pub reserved: [u8; 52],
    /// One for each region that the VM can join.
    pub entry: [PageEntry; PAGE_ENTRIES],
    /// Written by the guest.
    pub home: Home,
    /// Written by the daemon.
    pub candidates: Candidates,
    /// Written by the guest.
    pub wanted: Wanted,
    /// Written by the daemon.
    pub cpu_order: CpuOrder,
    /// Written by the guest.
    pub cpu_report: CpuReport,
    /// Written by the daemon: how the key of each entry's region begins.
    pub region_key: [[u8; 8]; PAGE_ENTRIES],
    /// Written by the daemon: CID of this VM; 0: that of its UUID.
    pub cid: u32,
    /// Written by the daemon: CID of the one other member that each entry's region has by the
    /// configuration; 0: the daemon knows of none.
    pub peer_cid: [u32; PAGE_ENTRIES],
    /// Zero.
    pub reserved2: [u8; 12],
}

const _: () = {
    assert!(size_of::<Member>() == 128);
    assert!(offset_of!(Member, slice_offset) == 24);
    assert!(offset_of!(Member, name) == 40);
    assert!(offset_of!(Member, cid) == 104);
    assert!(size_of::<Region>() == 128 + 64 * 128);
    assert!(offset_of!(Region, uuid) == 24);
    assert!(offset_of!(Region, slots) == 56);
    assert!(offset_of!(Region, member) == 128);
    assert!(size_of::<Region>() <= HEADER_SIZE);
    assert!(size_of::<Slice>() == 4096);
    assert!(offset_of!(Slice, senders) == 48);
    assert!(offset_of!(Slice, address) == 64);
    assert!(size_of::<MailboxIndex>() == 64);
    assert!(size_of::<Mailbox>() == 12288);
    assert!(offset_of!(Mailbox, pending) == 512);
    assert!(offset_of!(Mailbox, message) == 4096);
    assert!(size_of::<Request>() == 128);
    assert!(offset_of!(Request, region) == 16);
    assert!(size_of::<Reply>() == 192);
    assert!(offset_of!(Reply, peer_cid) == 60);
    assert!(offset_of!(Reply, doorbell) == 64);
    assert!(size_of::<Page>() == PAGE_SIZE);
    assert!(offset_of!(Page, entry) == 64);
    assert!(offset_of!(Page, home) == 2624);
    assert!(offset_of!(Page, candidates) == 2896);
    assert!(offset_of!(Page, wanted) == 3936);
    assert!(size_of::<CpuReport>() == 24);
    assert!(offset_of!(Page, cpu_order) == 3952);
    assert!(offset_of!(Page, cpu_report) == 3960);
    assert!(offset_of!(Page, region_key) == 3984);
    assert!(offset_of!(Page, cid) == 4048);
    assert!(offset_of!(Page, peer_cid) == 4052);
};
