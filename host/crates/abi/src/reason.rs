// SPDX-License-Identifier: Apache-2.0 OR MIT
// Generated from spec/netlink.yaml by spec/generate: do not edit.
//! Why a direction of a connection is not on a ring, or was demoted.

/// On a ring, or nothing prevents it.
pub const REASON_NONE: u32 = 0;
/// Too new, and too few bytes so far, to earn a ring.
pub const REASON_YOUNG: u32 = 1;
/// A ring is offered, and the peer has not answered yet.
pub const REASON_OFFERED: u32 = 2;
/// The peer has no such connection (NAT or a proxy between?).
pub const REASON_NO_MATCH: u32 = 3;
/// No ring memory left in this member's slice.
pub const REASON_NO_MEMORY: u32 = 4;
/// No endpoint number left for this peer.
pub const REASON_NO_ENDPOINT: u32 = 5;
/// A call that is older than Hallway is in the socket, or an earlier ring is not drained.
pub const REASON_BUSY: u32 = 6;
/// A kernel user owns the callbacks, and was not seen to read by calls of the socket.
pub const REASON_FOREIGN: u32 = 7;
/// Its program has not accepted it yet.
pub const REASON_UNACCEPTED: u32 = 8;
/// TCP is not in a state that carries data both ways.
pub const REASON_STATE: u32 = 9;
/// Switched off by the operator.
pub const REASON_OFF: u32 = 10;
/// The module is being unloaded.
pub const REASON_UNLOAD: u32 = 11;
/// The peer left the region or died.
pub const REASON_PEER_LEFT: u32 = 12;
/// The region's memory was unplugged.
pub const REASON_REGION_GONE: u32 = 13;
/// TCP_ULP: another protocol (kTLS) takes the socket over.
pub const REASON_ULP: u32 = 14;
/// Sockmap takes the socket over.
pub const REASON_SOCKMAP: u32 = 15;
/// TCP_REPAIR: the socket is being checkpointed.
pub const REASON_REPAIR: u32 = 16;
/// IPV6_ADDRFORM turns the socket into another family.
pub const REASON_ADDRFORM: u32 = 17;
/// MSG_ZEROCOPY or TCP_ZEROCOPY_RECEIVE is in use.
pub const REASON_ZEROCOPY: u32 = 18;
/// Urgent data is in use.
pub const REASON_URGENT: u32 = 19;
/// The packets are signed or encrypted (IPsec, TCP MD5 or AO).
pub const REASON_SECURED: u32 = 20;
/// The ring or a message was corrupt: the connection is reset.
pub const REASON_CORRUPT: u32 = 21;
/// One end did not answer in time, and the other truncated the ring.
pub const REASON_TIMEOUT: u32 = 22;
/// The socket was closed.
pub const REASON_CLOSED: u32 = 23;
/// The peer does not know this kind of channel.
pub const REASON_KIND: u32 = 24;
/// The peer is unresponsive: its heartbeat has stopped.
pub const REASON_UNRESPONSIVE: u32 = 25;
/// Timestamps of packets are requested.
pub const REASON_TIMESTAMP: u32 = 26;
/// Its ring was idle.
pub const REASON_IDLE: u32 = 27;
/// Packet filters must see its packets.
pub const REASON_FILTERED: u32 = 28;
/// Its reader waits for more bytes than the ring holds.
pub const REASON_SMALL: u32 = 29;
/// This VM is being saved or migrated.
pub const REASON_SUSPENDED: u32 = 30;
/// It is in another network namespace than the first.
pub const REASON_NAMESPACE: u32 = 31;
/// Its cgroup is not one of those that are outsourced.
pub const REASON_SCOPE: u32 = 32;
/// Its address is this VM's own, loopback, link-local or multicast.
pub const REASON_LOCAL: u32 = 33;
/// Its peer is a VM with which this one shares memory.
pub const REASON_MEMBER: u32 = 34;
/// Its program has bound it before connect().
pub const REASON_BOUND: u32 = 35;
/// It has an option or a device that a socket of the host cannot have.
pub const REASON_OPTION: u32 = 36;
/// The policy of the host, or a limit of its outsourcer, is against it.
pub const REASON_REFUSED: u32 = 37;
/// This VM has no outsourcer now, or no memory for the socket.
pub const REASON_NO_OUTSOURCER: u32 = 38;

/// Name and text of each reason; a reason's number is its index.
#[rustfmt::skip]
pub const REASONS: &[(&str, &str)] = &[
    ("NONE", "on a ring, or nothing prevents it"),
    ("YOUNG", "too new, and too few bytes so far, to earn a ring"),
    ("OFFERED", "a ring is offered, and the peer has not answered yet"),
    ("NO_MATCH", "the peer has no such connection (NAT or a proxy between?)"),
    ("NO_MEMORY", "no ring memory left in this member's slice"),
    ("NO_ENDPOINT", "no endpoint number left for this peer"),
    ("BUSY", "a call that is older than Hallway is in the socket, or an earlier ring is not drained"),
    ("FOREIGN", "a kernel user owns the callbacks, and was not seen to read by calls of the socket"),
    ("UNACCEPTED", "its program has not accepted it yet"),
    ("STATE", "TCP is not in a state that carries data both ways"),
    ("OFF", "switched off by the operator"),
    ("UNLOAD", "the module is being unloaded"),
    ("PEER_LEFT", "the peer left the region or died"),
    ("REGION_GONE", "the region's memory was unplugged"),
    ("ULP", "TCP_ULP: another protocol (kTLS) takes the socket over"),
    ("SOCKMAP", "sockmap takes the socket over"),
    ("REPAIR", "TCP_REPAIR: the socket is being checkpointed"),
    ("ADDRFORM", "IPV6_ADDRFORM turns the socket into another family"),
    ("ZEROCOPY", "MSG_ZEROCOPY or TCP_ZEROCOPY_RECEIVE is in use"),
    ("URGENT", "urgent data is in use"),
    ("SECURED", "the packets are signed or encrypted (IPsec, TCP MD5 or AO)"),
    ("CORRUPT", "the ring or a message was corrupt: the connection is reset"),
    ("TIMEOUT", "one end did not answer in time, and the other truncated the ring"),
    ("CLOSED", "the socket was closed"),
    ("KIND", "the peer does not know this kind of channel"),
    ("UNRESPONSIVE", "the peer is unresponsive: its heartbeat has stopped"),
    ("TIMESTAMP", "timestamps of packets are requested"),
    ("IDLE", "its ring was idle"),
    ("FILTERED", "packet filters must see its packets"),
    ("SMALL", "its reader waits for more bytes than the ring holds"),
    ("SUSPENDED", "this VM is being saved or migrated"),
    ("NAMESPACE", "it is in another network namespace than the first"),
    ("SCOPE", "its cgroup is not one of those that are outsourced"),
    ("LOCAL", "its address is this VM's own, loopback, link-local or multicast"),
    ("MEMBER", "its peer is a VM with which this one shares memory"),
    ("BOUND", "its program has bound it before connect()"),
    ("OPTION", "it has an option or a device that a socket of the host cannot have"),
    ("REFUSED", "the policy of the host, or a limit of its outsourcer, is against it"),
    ("NO_OUTSOURCER", "this VM has no outsourcer now, or no memory for the socket"),
];

/// Returns name and text of a reason, if its number is known.
pub fn find(number: u32) -> Option<(&'static str, &'static str)> {
    REASONS.get(usize::try_from(number).ok()?).copied()
}
