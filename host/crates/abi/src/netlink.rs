// SPDX-License-Identifier: Apache-2.0 OR MIT
// Generated from spec/netlink.yaml by spec/generate: do not edit.
//! The generic netlink family.

/// Name of the family.
pub const GENL_NAME: &str = "hallway";
/// Version of the family.
pub const GENL_VERSION: u8 = 1;

/// Switch and counters.
pub const CMD_GET: u8 = 1;
/// Turn promotion on; or turn it off, and demote all that is promoted. Turn outsourcing on, with the cgroups that are given, or for all; or turn it off for new sockets and listeners. At least one of the two.
pub const CMD_SET: u8 = 2;
/// Members of every region, one message each.
pub const CMD_MEMBERS: u8 = 3;
/// Attached connections and outsourced sockets, one message each.
pub const CMD_CONNECTIONS: u8 = 4;

/// string: Version of the module.
pub const A_VERSION: u16 = 1;
/// u8: Whether connections are promoted, 0 or 1.
pub const A_ENABLED: u16 = 2;
/// u8: Whether new sockets may be outsourced, 0 or 1.
pub const A_OUTSOURCING: u16 = 3;
/// binary: Ids of the cgroups that may have sockets outsourced, and those of cgroups below them; u64 each. None: all sockets.
pub const A_CGROUPS: u16 = 4;
/// nest, repeated: One counter, as name and value.
pub const A_COUNTER: u16 = 5;
/// string: Name of a counter, or host name of a member.
pub const A_NAME: u16 = 6;
/// u64: Value of a counter.
pub const A_VALUE: u16 = 7;
/// string: Transport that reaches a member, such as ivshmem or loopback.
pub const A_TRANSPORT: u16 = 8;
/// u32: Slot of a member in its region.
pub const A_SLOT: u16 = 9;
/// 16 bytes: UUID of a member's VM, in RFC 4122 order.
pub const A_UUID: u16 = 10;
/// u32: Generation of a member; each join gives it a new one.
pub const A_GENERATION: u16 = 11;
/// flag: The member is this guest.
pub const A_SELF: u16 = 12;
/// 16 bytes, repeated: Address of a member; IPv6, or IPv4 mapped.
pub const A_ADDRESS: u16 = 13;
/// 16 bytes: Address of this end; IPv6, or IPv4 mapped.
pub const A_LOCAL: u16 = 14;
/// 16 bytes: Address of the other end; IPv6, or IPv4 mapped.
pub const A_REMOTE: u16 = 15;
/// u16: Port of this end, in host order.
pub const A_LOCAL_PORT: u16 = 16;
/// u16: Port of the other end, in host order.
pub const A_REMOTE_PORT: u16 = 17;
/// u32: Carrier of the bytes sent; even is TCP, odd is a ring.
pub const A_TX_CARRIER: u16 = 18;
/// u32: Carrier of the bytes received; even is TCP, odd is a ring.
pub const A_RX_CARRIER: u16 = 19;
/// u64: Bytes sent over TCP.
pub const A_TX_TCP: u16 = 20;
/// u64: Bytes sent through rings.
pub const A_TX_RING: u16 = 21;
/// u64: Bytes received over TCP.
pub const A_RX_TCP: u16 = 22;
/// u64: Bytes received through rings.
pub const A_RX_RING: u16 = 23;
/// u32: Why the connection is not on a ring, or was demoted.
pub const A_REASON: u16 = 24;
/// string: Text of the reason.
pub const A_REASON_TEXT: u16 = 25;
/// u8: State of TCP, as in /proc/net/tcp.
pub const A_STATE: u16 = 26;
/// u32: Inode number of the connection's network namespace.
pub const A_NETNS: u16 = 27;
/// flag: The host executes the socket: its bytes are those of rings, and its peer is the outsourcer. The state is what TCP's would be.
pub const A_OUTSOURCED: u16 = 28;
/// pad: Alignment of u64 attributes.
pub const A_PAD: u16 = 29;
/// flag: It is a UDP socket. The state is TCP_ESTABLISHED if it is connected, else TCP_CLOSE.
pub const A_DATAGRAM: u16 = 30;
/// u32: CID of a member in AF_VSOCK.
pub const A_CID: u16 = 31;
/// u32: Tunnels with a member now, those that are being closed too.
pub const A_TUNNELS: u16 = 32;
/// nest, repeated: Directions that this end sends and that were demoted for one reason, as reason and value. The reason is none if a larger ring replaced theirs.
pub const A_DEMOTIONS: u16 = 33;
/// nest, repeated: Calls of connect() that were left to the native stack for one reason, as reason and value. They are counted from the first outsourcer on.
pub const A_NATIVES: u16 = 34;
/// flag: The member is an outsourcer, which is no VM and has no tunnels.
pub const A_OUTSOURCER: u16 = 35;
/// The highest attribute.
pub const A_MAX: u16 = 35;
