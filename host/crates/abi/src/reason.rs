// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a connection is not on a ring, or left it (`abi/hallway/reason.h`).

/// Every reason: its number is its index; then its name and its words.
pub const REASONS: &[(&str, &str)] = &[
    ("NONE", "promoted, or nothing against it"),
    ("YOUNG", "too few bytes and too young to earn a ring yet"),
    ("OFFERED", "offered to the peer, no answer yet"),
    (
        "NO_MATCH",
        "the peer has no such connection (NAT or a proxy between?)",
    ),
    ("NO_MEMORY", "no ring memory left in this member's slice"),
    ("NO_ENDPOINT", "no endpoint number left towards this peer"),
    (
        "BUSY",
        "a call from before Hallway came is still inside the socket",
    ),
    (
        "FOREIGN",
        "a kernel user owns the callbacks and was not seen to call recvmsg",
    ),
    ("UNACCEPTED", "not yet accepted by its program"),
    ("STATE", "TCP is not in a state that carries data both ways"),
    ("OFF", "switched off by the operator"),
    ("UNLOAD", "the module is being unloaded"),
    ("PEER_LEFT", "the peer left the region or died"),
    ("REGION_GONE", "the region's memory was unplugged"),
    (
        "ULP",
        "TCP_ULP: another protocol (kTLS) takes the socket over",
    ),
    ("SOCKMAP", "sockmap takes the socket over"),
    ("REPAIR", "TCP_REPAIR: the socket is being checkpointed"),
    (
        "ADDRFORM",
        "IPV6_ADDRFORM turns the socket into another family",
    ),
    ("ZEROCOPY", "MSG_ZEROCOPY or TCP_ZEROCOPY_RECEIVE is in use"),
    ("URGENT", "urgent data is in use"),
    (
        "SECURED",
        "the packets are signed or encrypted (IPsec, TCP MD5 or AO)",
    ),
    (
        "CORRUPT",
        "the ring or a message was corrupt: the connection is reset",
    ),
    (
        "TIMEOUT",
        "one end did not answer in time: the other has cut the ring",
    ),
    ("CLOSED", "the socket was closed"),
    ("KIND", "the peer does not know this kind of channel"),
    ("SILENT", "the peer's heartbeat stands still"),
    ("TIMESTAMP", "timestamps of packets are asked for"),
    ("IDLE", "it was idle, and gave its ring back"),
    ("FILTERED", "packet filters are to see its packets"),
    ("SMALL", "its reader waits for more than the ring holds"),
];

/// Name and words of a reason, if its number is known.
pub fn find(number: u32) -> Option<(&'static str, &'static str)> {
    REASONS.get(usize::try_from(number).ok()?).copied()
}
