// SPDX-License-Identifier: Apache-2.0 OR MIT
// Generated from spec/netlink.yaml by spec/generate: do not edit.
//! Why a direction of a connection is not on a ring, or was demoted.

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
];

/// Returns name and text of a reason, if its number is known.
pub fn find(number: u32) -> Option<(&'static str, &'static str)> {
    REASONS.get(usize::try_from(number).ok()?).copied()
}
