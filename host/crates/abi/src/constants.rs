// SPDX-License-Identifier: Apache-2.0 OR MIT
// Generated from spec/abi.yaml by spec/generate: do not edit.
//! Numbers of the shared-memory ABI.

/// Of `region.h`.
pub mod region {
    /// Another major version is refused.
    pub const MAJOR: u16 = 3;
    /// Another minor version is served; features have bits.
    pub const MINOR: u16 = 5;
    /// "HALLWAY1", of a formatted region.
    pub const REGION_MAGIC: u64 = 0x3159_4157_4c4c_4148;
    /// "HALLSICE", of a slice that its member has formatted.
    pub const SLICE_MAGIC: u64 = 0x4543_4953_4c4c_4148;
    /// "HALLPAGE", of a private page that the daemon has formatted.
    pub const PAGE_MAGIC: u64 = 0x4547_4150_4c4c_4148;
    /// Members of one region.
    pub const SLOTS_MAX: usize = 64;
    /// Bytes before the first slice.
    pub const HEADER_SIZE: usize = 12288;
    /// Bytes of a name with its final NUL.
    pub const NAME_SIZE: usize = 64;
    /// Addresses that one member publishes.
    pub const ADDRESSES_MAX: usize = 64;
    /// Bytes of the smallest slice.
    pub const SLICE_MIN: u64 = 2 << 20;
    /// hallway_member.state: The slot has no member.
    pub const MEMBER_ABSENT: u32 = 0;
    /// hallway_member.state: The slot has a member.
    pub const MEMBER_PRESENT: u32 = 1;
    /// Messages that a mailbox holds.
    pub const MAILBOX_MESSAGES: usize = 64;
    /// Bytes of a message.
    pub const MESSAGE_SIZE: usize = 128;
    /// Endpoint numbers of one member for another; 0 is the mailbox.
    pub const ENDPOINTS_MAX: usize = 4096;
    /// Bytes of the private page.
    pub const PAGE_SIZE: usize = 4096;
    /// Ranges of ports in a reply.
    pub const TUNNEL_RANGES: usize = 4;
    /// Regions that one VM can join.
    pub const PAGE_ENTRIES: usize = 8;
    /// The first minor version in which the private page has the CIDs of peers.
    pub const MINOR_PEERS: u16 = 3;
    /// The first minor version in which the private page has keys of regions.
    pub const MINOR_KEYS: u16 = 4;
    /// The first minor version in which a VM may have a given CID.
    pub const MINOR_CIDS: u16 = 5;
    /// Peer id of the daemon's doorbell.
    pub const DAEMON_ID: u16 = 1;
    /// hallway_request.command: No request.
    pub const COMMAND_NONE: u32 = 0;
    /// hallway_request.command: The guest asks for a slot of the region.
    pub const COMMAND_JOIN: u32 = 1;
    /// hallway_request.command: The guest gives its slot back.
    pub const COMMAND_LEAVE: u32 = 2;
    /// hallway_request.command: The guest has started; it names no region.
    pub const COMMAND_HELLO: u32 = 3;
    /// hallway_reply.status: Done.
    pub const STATUS_OK: u32 = 0;
    /// hallway_reply.status: The guest has another major version.
    pub const STATUS_VERSION: u32 = 1;
    /// hallway_reply.status: The daemon has no such region.
    pub const STATUS_UNKNOWN: u32 = 2;
    /// hallway_reply.status: The region has no slot left.
    pub const STATUS_FULL: u32 = 3;
    /// hallway_reply.status: The VM may not join the region.
    pub const STATUS_DENIED: u32 = 4;
    /// hallway_reply.status: The request is malformed.
    pub const STATUS_INVALID: u32 = 5;
    /// Addresses that a guest reports to the daemon.
    pub const HOME_MAX: usize = 16;
    /// Addresses of candidates that the daemon reports to a guest.
    pub const CANDIDATES_MAX: usize = 64;
    /// hallway_cpu_report.status: As many CPUs are online.
    pub const CPUS_DONE: u32 = 0;
    /// hallway_cpu_report.status: They are being brought online or offline.
    pub const CPUS_WORKING: u32 = 1;
    /// hallway_cpu_report.status: The guest's kernel does not let it; the guest tries again.
    pub const CPUS_FAILED: u32 = 2;
    /// hallway_cpu_report.status: The guest does not take such orders.
    pub const CPUS_REFUSED: u32 = 3;
    /// hallway_cpu_report.status: There are not that many CPUs.
    pub const CPUS_INVALID: u32 = 4;
}

/// Of `ring.h`.
pub mod ring {
    /// "RING".
    pub const RING_MAGIC: u32 = 0x474e_4952;
    /// Bytes before the data.
    pub const RING_HEADER: usize = 4096;
    /// Fewest bytes of data.
    pub const RING_MIN: u32 = 4096;
    /// Most bytes of data.
    pub const RING_MAX: u32 = 16 << 20;
    /// In start and end: the mark is set.
    pub const MARK_SET: u64 = 1 << 63;
    /// In end, with MARK_SET: the writer resets a tunnel that it has read to the end.
    pub const MARK_RESET: u64 = 1 << 61;
    /// In end: the receiver has truncated the ring.
    pub const MARK_TRUNCATED: u64 = 1 << 62;
    /// In end of a truncated ring: the low bits of the position.
    pub const MARK_POSITION: u64 = 0x3fff_ffff_ffff_ffff;
    /// In grown, alone: the writer has no memory for a larger area now.
    pub const MARK_SHORT: u64 = 1 << 62;
    /// In start: the TCP sequence number.
    pub const MARK_SEQ: u64 = 0xffff_ffff;
    /// index in hallway_options.value: SO_KEEPALIVE
    pub const OPTION_KEEPALIVE: u32 = 0;
    /// index in hallway_options.value: TCP_NODELAY
    pub const OPTION_NODELAY: u32 = 1;
    /// index in hallway_options.value: TCP_CORK
    pub const OPTION_CORK: u32 = 2;
    /// index in hallway_options.value: TCP_KEEPIDLE
    pub const OPTION_KEEPIDLE: u32 = 3;
    /// index in hallway_options.value: TCP_KEEPINTVL
    pub const OPTION_KEEPINTVL: u32 = 4;
    /// index in hallway_options.value: TCP_KEEPCNT
    pub const OPTION_KEEPCNT: u32 = 5;
    /// index in hallway_options.value: TCP_USER_TIMEOUT
    pub const OPTION_USER_TIMEOUT: u32 = 6;
    /// index in hallway_options.value: TCP_SYNCNT
    pub const OPTION_SYNCNT: u32 = 7;
    /// index in hallway_options.value: TCP_MAXSEG
    pub const OPTION_MAXSEG: u32 = 8;
    /// index in hallway_options.value: IP_TOS
    pub const OPTION_TOS: u32 = 9;
    /// index in hallway_options.value: IP_TTL
    pub const OPTION_TTL: u32 = 10;
    /// index in hallway_options.value: IPV6_TCLASS
    pub const OPTION_TCLASS: u32 = 11;
    /// index in hallway_options.value: IPV6_UNICAST_HOPS
    pub const OPTION_HOPS: u32 = 12;
    /// index in hallway_options.value: the highest.
    pub const OPTION_MAX: u32 = 12;
    /// Places in hallway_options.value.
    pub const OPTIONS: usize = 32;
    /// Bytes of hallway_options.info.
    pub const INFO_MAX: usize = 512;
}

/// Of `message.h`.
pub mod message {
    /// hallway_message.type: The sender of a direction offers a ring.
    pub const OFFER: u16 = 1;
    /// hallway_message.type: The receiver has mapped the ring.
    pub const ACCEPT: u16 = 2;
    /// hallway_message.type: The receiver does not take the ring.
    pub const DECLINE: u16 = 3;
    /// hallway_message.type: The receiver asks for the end mark.
    pub const DEMOTE: u16 = 4;
    /// hallway_message.type: The receiver does not touch the ring any more.
    pub const DONE: u16 = 5;
    /// hallway_message.offer.kind: A direction of a TCP connection.
    pub const KIND_STREAM: u16 = 1;
    /// hallway_message.offer.kind: A direction of a socket that the outsourcer executes.
    pub const KIND_SOCKET: u16 = 2;
    /// hallway_message.offer.kind: A listening socket of the guest that the outsourcer publishes.
    pub const KIND_LISTENER: u16 = 3;
    /// hallway_message.offer.kind: A direction of a UDP socket that the outsourcer executes.
    pub const KIND_DATAGRAM: u16 = 4;
    /// hallway_message.offer.kind: A direction of a tunnel between two sockets of AF_VSOCK.
    pub const KIND_TUNNEL: u16 = 5;
    /// hallway_message.offer.kind: the highest.
    pub const KIND_MAX: u16 = 5;
    /// In flags of a SOCKET or LISTENER: the guest's socket is of AF_INET6.
    pub const SOCKET_IPV6: u32 = 1;
    /// In flags of a LISTENER: it takes no IPv4 connection.
    pub const SOCKET_V6ONLY: u32 = 2;
    /// In flags of a LISTENER: other listeners of the guest may have the same address and port.
    pub const SOCKET_REUSEPORT: u32 = 4;
    /// In features of an OFFER: its writer supports rings of outsourced sockets and tunnels that grow.
    pub const FEATURE_GROWTH: u16 = 1;
    /// In features of an OFFER of SOCK_SEQPACKET: the ring began with zeros, so the peer may lend it to a program.
    pub const FEATURE_BLANK: u16 = 2;
    /// Bytes of a handle.
    pub const HANDLE_SIZE: usize = 48;
}

/// Of `datagram.h`.
pub mod datagram {
    /// hallway_datagram.type: To send to the other end; or it came from there.
    pub const DATAGRAM_DATA: u16 = 1;
    /// hallway_datagram.type: Of the outsourcer: the host's policy does not allow it. The guest sends it natively.
    pub const DATAGRAM_RETURNED: u16 = 2;
    /// hallway_datagram.type: Of the outsourcer: one to the other end failed. There is no payload.
    pub const DATAGRAM_ERROR: u16 = 3;
    /// Bytes of payload, at most.
    pub const DATAGRAM_MAX: u32 = 65527;
    /// Positions of records in a ring are multiples of it.
    pub const DATAGRAM_ALIGN: u32 = 8;
}

/// Of `tunnel.h`.
pub mod tunnel {
    /// hallway_tunnel.type: SOCK_STREAM: bytes.
    pub const TUNNEL_STREAM: u32 = 1;
    /// hallway_tunnel.type: SOCK_SEQPACKET: messages, each after a hallway_frame.
    pub const TUNNEL_SEQPACKET: u32 = 2;
    /// hallway_tunnel.type: SOCK_DGRAM: a trunk. Datagrams, each after a hallway_letter.
    pub const TUNNEL_DGRAM: u32 = 3;
    /// In flags of a frame: the message was sent with MSG_EOR.
    pub const FRAME_EOR: u32 = 1;
    /// Positions of frames in a ring are multiples of it.
    pub const FRAME_ALIGN: u32 = 8;
    /// Positions of letters in a ring are multiples of it.
    pub const LETTER_ALIGN: u32 = 16;
    /// Bytes of a datagram in a letter, at most.
    pub const LETTER_MAX: u32 = 65536;
    /// The lowest CID that the configuration can give a VM. AF_VSOCK has its own meaning for lower ones.
    pub const CID_GIVEN_FIRST: u32 = 3;
    /// The lowest CID of a VM that is given none; the given ones are below it.
    pub const CID_FIRST: u32 = 0x4000_0000;
    /// The CID of the host, in a region that it shares with one VM.
    pub const CID_HOST: u32 = 0x4000_0002;
    /// Where a datagram is sent that each other VM gets.
    pub const CID_MULTICAST: u32 = 0x8000_0000;
}

/// Of `socket.h`.
pub mod socket {
    /// "HAL". Level of options that a program in a guest sets on a socket.
    pub const SOL: u32 = 0x48_414c;
    /// Before connect() or listen(), and of UDP before bind(): 0 leaves the socket native, 1 has it outsourced whatever its cgroup is.
    pub const SO_OUTSOURCE: u32 = 1;
    /// Cgroups that outsourcing can be limited to.
    pub const CGROUPS_MAX: usize = 16;
}
