// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The generic netlink family (`abi/hallway/netlink.h`, `spec/netlink.yaml`).

/// Name of the family.
pub const GENL_NAME: &str = "hallway";
/// Version of the family.
pub const GENL_VERSION: u8 = 1;

/// Do: switch and counters.
pub const CMD_GET: u8 = 1;
/// Do, admin: ENABLED.
pub const CMD_SET: u8 = 2;
/// Dump: members of every region.
pub const CMD_MEMBERS: u8 = 3;
/// Dump: attached connections.
pub const CMD_CONNECTIONS: u8 = 4;
/// String: of the module.
pub const A_VERSION: u16 = 1;
/// U8: 0 or 1.
pub const A_ENABLED: u16 = 2;
/// Nest, repeated: NAME, VALUE.
pub const A_COUNTER: u16 = 3;
/// String.
pub const A_NAME: u16 = 4;
/// U64.
pub const A_VALUE: u16 = 5;
/// String: loopback, ivshmem.
pub const A_TRANSPORT: u16 = 6;
/// U32.
pub const A_SLOT: u16 = 7;
/// 16 bytes.
pub const A_UUID: u16 = 8;
/// U32.
pub const A_GENERATION: u16 = 9;
/// Flag: the member is this guest.
pub const A_SELF: u16 = 10;
/// 16 bytes, repeated.
pub const A_ADDRESS: u16 = 11;
/// 16 bytes, IPv4 mapped.
pub const A_LOCAL: u16 = 12;
/// 16 bytes, IPv4 mapped.
pub const A_REMOTE: u16 = 13;
/// U16, host order.
pub const A_LOCAL_PORT: u16 = 14;
/// U16, host order.
pub const A_REMOTE_PORT: u16 = 15;
/// U32: even TCP, odd ring.
pub const A_TX_CARRIER: u16 = 16;
/// U32: even TCP, odd ring.
pub const A_RX_CARRIER: u16 = 17;
/// U64: bytes.
pub const A_TX_TCP: u16 = 18;
/// U64: bytes.
pub const A_TX_RING: u16 = 19;
/// U64: bytes.
pub const A_RX_TCP: u16 = 20;
/// U64: bytes.
pub const A_RX_RING: u16 = 21;
/// U32: `reason::*`.
pub const A_REASON: u16 = 22;
/// String.
pub const A_REASON_TEXT: u16 = 23;
/// U8: TCP state, as in /proc/net/tcp.
pub const A_STATE: u16 = 24;
/// U32: inode number of the namespace.
pub const A_NETNS: u16 = 25;
/// Alignment.
pub const A_PAD: u16 = 26;
/// Highest attribute.
pub const A_MAX: u16 = 26;
